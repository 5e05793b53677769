"""Run: one execution of a job, as its maker sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from rota.errors import NotFound, RunFailed
from rota.store import FINISHED, RunRow, State

if TYPE_CHECKING:
    from rota.app import Rota

R_co = TypeVar("R_co", covariant=True)


class Run(Generic[R_co]):
    """A handle on a run; it holds nothing but the id, so it is cheap to keep and to throw away."""

    __slots__ = ("_app", "created", "id", "job_id")

    def __init__(self, app: Rota, run_id: int, job_id: str, *, created: bool = True) -> None:
        self._app = app
        self.id = run_id
        """Its number, as in `job_runs`."""
        self.job_id = job_id
        """The job's name; empty for a handle that was made by `app.run`."""
        self.created = created
        """False: its key had made it before; this is that run."""

    def __repr__(self) -> str:
        return f"<Run {self.id} of {self.job_id}>"

    async def row(self) -> RunRow:
        """The run as it stands in the table now."""
        rows = await self._app.store.get_runs([self.id])
        if not rows:
            raise NotFound(f"there is no run {self.id}; it may have been pruned")
        return rows[0]

    async def state(self) -> State:
        """`queued`, `running`, `succeeded`, `failed`, `cancelled` or `skipped`, as it is now."""
        return (await self.row()).state

    async def progress(self) -> dict[str, Any] | None:
        """The newest report of `ctx.progress(done, total, note)`."""
        progress = (await self.row()).progress
        return msgspec.json.decode(progress) if progress else None

    async def result(self, timeout: float | None = None) -> R_co:
        """Wait until it has finished. Raises `RunFailed` when it did not succeed, `Timeout` when it takes longer."""
        row = await self._app.results.wait(self.id, timeout)
        if row.state == "succeeded":
            job = self._app.jobs.get(row.job_id)
            if job is None:
                return msgspec.json.decode(row.result) if row.result else None  # type: ignore[return-value]
            return job.decode_result(row.result)  # type: ignore[no-any-return]
        raise RunFailed(self.id, row.job_id, row.state, row.error or row.reason)

    async def cancel(self) -> State:
        """Not start it, or ask it to stop. The state right after: a running one is still `running` for a moment."""
        state = await self._app.store.cancel_run(self.id)
        if state == "running":
            self._app.hint("cancel")
        return state

    async def retry(self) -> None:
        """Queue it again, under the same key; for a run that failed, was cancelled or skipped."""
        await self._app.store.retry_run(self.id)
        self._app.hint("schedules")

    async def finished(self) -> bool:
        """Whether nothing more will happen to it by itself."""
        return await self.state() in FINISHED
