"""What a handler sees of the cluster while it runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

_current: ContextVar[Context | None] = ContextVar("rota_context", default=None)
_log = logging.getLogger("rota.job")


@dataclass(frozen=True, slots=True)
class TickInfo:
    """What the run is for, whenever it really started."""

    due_at: datetime
    """The instant at which the schedule was due; for a run made by hand, when it was made."""
    schedule_id: int | None = None
    """The schedule that it belongs to, if it belongs to one."""


class Context:
    """One attempt of one run. A handler asks for it by a first parameter annotated `Context`."""

    __slots__ = (
        "_report", "_stop", "attempt", "connection", "correlation_id", "idempotency_key", "job", "replica_id", "run_id",
        "tick",
    )  # fmt: skip

    def __init__(
        self,
        *,
        run_id: int,
        job: str,
        attempt: int = 1,
        replica_id: int = 0,
        correlation_id: str = "",
        idempotency_key: str | None = None,
        tick: TickInfo | None = None,
        report: Callable[[str], None] | None = None,
    ) -> None:
        self.run_id = run_id
        self.job = job
        self.attempt = attempt
        self.replica_id = replica_id
        self.correlation_id = correlation_id
        self.idempotency_key = idempotency_key or f"run:{run_id}"
        """For the other side: the same for every attempt of this run."""
        self.tick = tick or TickInfo(datetime.now(UTC))
        self.connection: Any = None
        """With `transactional=True`: the connection in whose transaction the run will be completed."""
        self._report = report
        self._stop: threading.Event | None = None

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records carry the run, the job and the correlation id."""
        extra = {
            "run_id": self.run_id, "job": self.job, "attempt": self.attempt, "replica_id": self.replica_id,
            "correlation_id": self.correlation_id,
        }  # fmt: skip
        return logging.LoggerAdapter(_log, extra)

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Say how far it is. Shown while the run is running; the newest report wins. From any thread."""
        if self._report is not None:
            self._report(msgspec.json.encode({"done": done, "total": total, "note": note}).decode())

    @property
    def stopping(self) -> bool:
        """Somebody wants this run to stop: asked to cancel, timed out, or the replica shuts down.

        An async handler is cancelled by itself; a plain function in a thread has to look.
        """
        return self._stop is not None and self._stop.is_set()


def current_context() -> Context | None:
    """The run that this code is part of, if it is part of one."""
    return _current.get()
