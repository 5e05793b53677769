"""Inline: `enqueue` runs the job at once, in the same call. For unit tests of code that enqueues; there is no database.

What a database would have done to the arguments and the result is done: both go through JSON, and through the checks of
the annotations. What it would not have done is not: a job that fails raises where it was enqueued, without retries.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast

import msgspec

from rota.app import Rota
from rota.attempt import Attempt
from rota.context import Member, _current
from rota.errors import BadInput, RunFailed, UnknownJob
from rota.job import Call, Job
from rota.portal import Portal, running_loop
from rota.store import Claim, Enqueued, NewRun, RunFilter, RunRow, State, Store
from rota.testing.enqueued import by_hand, check, wanted

T = TypeVar("T")
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)


class Inline:
    """What was run inside an `inline` block."""

    def __init__(self, store: InlineStore) -> None:
        self._store = store

    def all_enqueued(self, job: Job[..., Any] | None = None) -> list[RunRow]:
        """The runs, of all jobs or of one; the oldest first."""
        return by_hand([row for row in self._store.rows.values() if job is None or row.job_id == job.name])

    def assert_enqueued(
        self,
        job: Job[..., Any] | Call[Any],
        /,
        *args: Any,
        times: int = 1,
        key: str | None = None,
        state: State | None = None,
        **kwargs: Any,
    ) -> list[RunRow]:
        """That the job was enqueued so many times with these arguments; those left out match anything. The runs."""
        return check(self.all_enqueued(), wanted(job, args, kwargs, key, state), times)

    def refute_enqueued(
        self,
        job: Job[..., Any] | Call[Any],
        /,
        *args: Any,
        key: str | None = None,
        state: State | None = None,
        **kwargs: Any,
    ) -> None:
        """That the job was not enqueued with these arguments; without any, that it was not enqueued at all."""
        self.assert_enqueued(job, *args, times=0, key=key, state=state, **kwargs)


class InlineStore:
    """What an app asks of its store when it enqueues: answered by running the job. The ledger is nowhere stored."""

    def __init__(self, app: Rota) -> None:
        self._app = app
        self._ids = itertools.count(1)
        self.rows: dict[int, RunRow] = {}

    async def enqueue(self, runs: Sequence[NewRun], connection: Any = None) -> list[Enqueued]:
        return [await self._enqueue(new, connection) for new in runs]

    async def enqueue_one(self, run: NewRun, *, tell: bool = False) -> Enqueued:
        return await self._enqueue(run, None)

    async def get_runs(self, ids: Sequence[int]) -> list[RunRow]:
        return [self.rows[run_id] for run_id in ids if run_id in self.rows]

    async def find_runs(self, which: RunFilter) -> list[RunRow]:
        found = [row for row in self.rows.values() if which.job_id in (None, row.job_id)]
        return sorted(found, key=lambda row: -row.id)[: which.limit]

    async def now(self) -> datetime:
        return datetime.now(UTC)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise BadInput(
            f"inline mode has no database, so there is no {name}(): "
            "`async with cluster(app)` has one, and run_due() runs what was enqueued"
        )

    def enqueue_sync(self, runs: Sequence[NewRun], connection: Any) -> list[Enqueued]:
        """On a thread of its own: this one may have an event loop at work."""
        with ThreadPoolExecutor(1) as other:
            return other.submit(copy_context().run, asyncio.run, self.enqueue(runs, connection)).result()

    # -- running -------------------------------------------------------------------------------------

    async def _enqueue(self, new: NewRun, connection: Any) -> Enqueued:
        for row in self.rows.values():
            if new.key is not None and (row.job_id, row.idempotency_key) == (new.job_id, new.key):
                return Enqueued(id=row.id, created=False)
        job = self._app.jobs.get(new.job_id)
        if job is None:
            raise UnknownJob(f"unknown job {new.job_id!r}")
        run_id = next(self._ids)
        self.rows[run_id] = row = _row(run_id, new)
        state: State = "failed"
        result = error = None
        try:
            result = await self._run(job, row, connection)
            state = "succeeded"
        except BaseException as raised:
            error = f"{type(raised).__name__}: {raised}"
            raise
        finally:
            self.rows[run_id] = msgspec.structs.replace(
                row, state=state, result=result, error=error, finished_at=datetime.now(UTC)
            )
        return Enqueued(id=run_id, created=True)

    async def _run(self, job: Job[..., Any], row: RunRow, connection: Any) -> str | None:
        due = (row.created_at - _EPOCH) // _MICROSECOND
        claim = Claim(
            0, row.id, row.job_id, 1, 0, row.parameters, row.idempotency_key, due, None, row.correlation_id, False, 0
        )
        [attempt] = Attempt.begun([claim], {claim.job_id: job}, Member(0, "inline"), lambda claim, report: None)
        attempt.context.connection = connection
        values, token = job.arguments.decode(row.parameters), _current.set(attempt.context)
        args = (attempt.context,) if job.arguments.wants_context else ()
        try:
            value = await (job.fn(*args, **values) if job.is_async else asyncio.to_thread(job.fn, *args, **values))
        finally:
            _current.reset(token)
        outcome = attempt.succeeded(value)
        if outcome.state != "succeeded":
            raise RunFailed(row.id, row.job_id, "failed", outcome.error)
        return outcome.result


class InlinePortal(Portal):
    """The app is open in whichever loop asks, and in none: `app.wait` makes one."""

    def __init__(self) -> None:
        pass

    def check_process(self) -> None:
        pass

    def check_caller(self, control: asyncio.AbstractEventLoop | None) -> None:
        pass

    def wait(self, coroutine: Coroutine[Any, Any, T], timeout: float | None) -> T:
        if running_loop() is not None:
            coroutine.close()
            raise BadInput("app.wait() would hold up the event loop of this thread: await it")
        return asyncio.run(asyncio.wait_for(coroutine, timeout))

    def close(self) -> None:
        pass


@contextmanager
def inline(app: Rota) -> Iterator[Inline]:
    """For the time of the block, whatever is enqueued runs at once; delays are not waited for.

    A job that raises raises out of `enqueue`. `with inline(app) as done:` tells afterwards what was enqueued.
    """
    if app._store is not None:
        raise BadInput("this Rota is open already; inline mode is for one that is not")
    store = InlineStore(app)
    app._store, app._portal = cast(Store, store), InlinePortal()
    try:
        yield Inline(store)
    finally:
        app._store = app._portal = None


def _row(run_id: int, new: NewRun) -> RunRow:
    now = datetime.now(UTC)
    return RunRow(
        id=run_id, job_id=new.job_id, config_id=None, idempotency_key=new.key,
        correlation_id=new.correlation_id or str(run_id), parent_id=new.parent_id, parameters=new.parameters,
        priority=new.priority, state="running", reason=None, attempt=1, losses=0,
        run_at=new.run_at or now + timedelta(seconds=new.delay), due_at=None, missed_from=None, missed_to=None,
        missed_count=None, replica_id=None, created_at=now, started_at=now, finished_at=None, progress=None,
        result=None, error=None,
    )  # fmt: skip
