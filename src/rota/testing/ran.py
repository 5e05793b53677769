"""Ran: one attempt that ended during a test, with what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import msgspec

from rota.errors import RunFailed
from rota.events import RunFinished
from rota.job import Job
from rota.store import RunRow


@dataclass(frozen=True, slots=True)
class Ran:
    """An attempt. A run that is tried three times gives three of them."""

    run_id: int
    job: str
    state: Literal["succeeded", "failed", "cancelled", "queued"]
    """`queued`: it failed, and is tried again when its time has come."""
    attempt: int
    parameters: dict[str, Any]
    """As they are stored: plain JSON, by name."""
    key: str | None
    due_at: datetime | None
    """Its tick, in UTC; None for a run made by hand."""
    error: str | None
    """The exception, in its first line, and the way to it."""
    replica: int
    """Which replica of the cluster it was."""
    value: Any
    """What the job returned, as its annotated type; None unless it succeeded."""

    @property
    def succeeded(self) -> bool:
        return self.state == "succeeded"

    def result(self) -> Any:
        """What the job returned; `RunFailed`, with the error, when it did not succeed."""
        if not self.succeeded:
            raise RunFailed(self.run_id, self.job, "failed" if self.state == "queued" else self.state, self.error)
        return self.value

    def __str__(self) -> str:
        tick = f" for {self.due_at:%Y-%m-%d %H:%M:%S} UTC" if self.due_at else ""
        why = f": {self.error.splitlines()[0]}" if self.error else ""
        return f"run {self.run_id} of {self.job!r}{tick}, attempt {self.attempt}, {self.state}{why}"


def ran(event: RunFinished, row: RunRow, job: Job[..., Any], replica: int) -> Ran:
    """What the event tells, with what the ledger has of it."""
    done = event.state == "succeeded"
    return Ran(
        run_id=row.id, job=row.job_id, state=event.state, attempt=event.attempt,  # type: ignore[arg-type]
        parameters=msgspec.json.decode(row.parameters), key=row.idempotency_key,
        due_at=row.due_at if row.config_id is not None else None, error=event.error, replica=replica,
        value=job.decode_result(row.result) if done else None,
    )  # fmt: skip
