"""What code sees of the cluster while it is part of a run, or of a term.

`cluster_context` is the one place that says what that is; log records and spans carry the same, under the same names.
It travels in context variables: into tasks that a handler starts and into `asyncio.to_thread`, not into bare threads.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

import msgspec

from rota.contract.roles import Fence
from rota.store import Claim

NAMES = ("replica_id", "replica", "job", "run_id", "attempt", "idempotency_key", "correlation_id", "role", "term")
"""All that the cluster context may have."""

leadership: ContextVar[Fence | None] = ContextVar("rota_leadership", default=None)
"""The term that this code is part of."""
_current: ContextVar[Context | None] = ContextVar("rota_context", default=None)
_log = logging.getLogger("rota.job")


class Member(NamedTuple):
    """A replica as its handlers know it."""

    id: int
    name: str


Report: TypeAlias = Callable[[Claim, str], None]
_NOBODY = Member(0, "")


@dataclass(frozen=True, slots=True)
class TickInfo:
    """What the run is for, whenever it really started."""

    due_at: datetime
    """The instant at which the schedule was due; for a run made by hand, when it was made."""
    schedule_id: int | None = None
    """The schedule that it belongs to, if it belongs to one."""


class Context(msgspec.Struct, eq=False, gc=False):
    """One attempt of one run. A handler asks for it by a first parameter annotated `Context`."""

    # A struct, which the garbage collector does not see: thousands of them are at hand at a time.
    _claim: Claim
    _member: Member = _NOBODY
    _report: Report | None = None
    _app: object = None
    _stopping: bool = False
    connection: Any = None
    """With `transactional=True`: the connection in whose transaction the run will be completed."""

    def __repr__(self) -> str:
        """Without the parameters: they may be nobody's business."""
        return f"<run {self.run_id} of job {self.job!r}, attempt {self.attempt}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """The same for `rich`, which would show all that a struct has."""
        return [("run_id", self.run_id), ("job", self.job), ("attempt", self.attempt)]

    def _leave(self) -> None:
        """The attempt is over. Somebody may keep this, and the collector does not see what it leads to: nothing."""
        self._report = self._app = self.connection = None

    @property
    def replica_id(self) -> int:
        """The number of the replica that runs this; 0 outside of any."""
        return self._member.id

    @property
    def replica(self) -> str:
        """The replica's name, for people."""
        return self._member.name

    @property
    def run_id(self) -> int:
        """The number of the run, as in `job_runs`; 0 where the function was just called."""
        return self._claim.id

    @property
    def job(self) -> str:
        """The job's name."""
        return self._claim.job_id

    @property
    def attempt(self) -> int:
        """1 for the first."""
        return self._claim.attempt

    @property
    def correlation_id(self) -> str:
        """The same for a run, its retries, and the runs it makes."""
        return self._claim.correlation_id

    @property
    def idempotency_key(self) -> str:
        """For the other side: the same for every attempt of this run. That of a tick names its job and its schedule
        too: others are due at the same instant."""
        claim = self._claim
        if claim.key is None:
            return f"run:{claim.id}"
        return claim.key if claim.config_id is None else f"{claim.job_id}:{claim.config_id}:{claim.key}"

    @property
    def tick(self) -> TickInfo:
        """What the run is for: the instant that was due, and of which schedule."""
        return TickInfo(self._claim.due_at, self._claim.config_id)

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records carry all that the cluster context has of this run."""
        return logging.LoggerAdapter(_log, _facts(self))

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Say how far it is. Shown while the run is running; the newest report wins. From any thread."""
        if self._report is not None:
            self._report(self._claim, msgspec.json.encode({"done": done, "total": total, "note": note}).decode())

    @property
    def stopping(self) -> bool:
        """Somebody wants this run to stop: asked to cancel, timed out, or the replica shuts down.

        An async handler is cancelled by itself; a plain function in a thread has to look.
        """
        return self._stopping


def detached_context(job: str) -> Context:
    """For a function that is called outside of any run."""
    return Context(Claim(0, 0, job, 1, 0, "{}", None, int(time.time() * 1e6), None, "", False, 0))


def current_context() -> Context | None:
    """The run that this code is part of, if it is part of one."""
    return _current.get()


def cluster_context() -> dict[str, str | int]:
    """Where this code runs and what for: replica and run inside a run, role and term inside a term; else empty."""
    context, fence = _current.get(), leadership.get()
    found = {} if context is None else _facts(context)
    if fence is not None:
        found["role"], found["term"] = fence.role, fence.term
    return found


def _facts(context: Context) -> dict[str, str | int]:
    return {
        "replica_id": context.replica_id, "replica": context.replica, "job": context.job, "run_id": context.run_id,
        "attempt": context.attempt, "idempotency_key": context.idempotency_key,
        "correlation_id": context.correlation_id,
    }  # fmt: skip
