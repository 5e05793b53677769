"""Which runs a command is about: the same options everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated

import msgspec
import typer

from rota.cli.complete import job_names, run_ids, schedule_names
from rota.cli.schedule_name import the_schedule
from rota.cli.since import parse_since
from rota.errors import BadInput
from rota.store import RunFilter, RunRow, Store

_GREATEST = 2**63 - 1


def storable(number: int | list[int] | None) -> int | list[int] | None:
    """What no column of either store can hold is no number of a run, nor a limit."""
    numbers = number if isinstance(number, list) else [number or 0]
    if any(each > _GREATEST for each in numbers):
        raise typer.BadParameter(f"{max(numbers)} is too large")
    return number


class RunState(StrEnum):
    """As the table `job_runs` spells them."""

    queued = "queued"
    running = "running"
    succeeded = "succeeded"
    failed = "failed"
    cancelled = "cancelled"
    skipped = "skipped"


JobOf = Annotated[str | None, typer.Option("--job", help="Of this job.", autocompletion=job_names)]
ScheduleOf = Annotated[
    str | None,
    typer.Option(
        "--schedule",
        metavar="SCHEDULE",
        help="Made by this one: JOB, JOB/NAME or its id.",
        autocompletion=schedule_names,
    ),
]
StateOf = Annotated[list[RunState] | None, typer.Option("--state", help="In this state; may be repeated.")]
Since = Annotated[
    str | None,
    typer.Option("--since", help="Made since: 30m, 1h, 2d, today, yesterday, 03:04, 2026-01-02T03:04 (UTC)."),
]
Key = Annotated[str | None, typer.Option("--key", metavar="PREFIX", help="Whose idempotency key begins so.")]
Correlation = Annotated[str | None, typer.Option("--correlation", metavar="ID", help="With this correlation id.")]
RunId = Annotated[
    int, typer.Argument(metavar="ID", min=1, callback=storable, help="The run's number.", autocompletion=run_ids)
]
RunIds = Annotated[
    list[int] | None,
    typer.Argument(metavar="ID...", min=1, callback=storable, help="Numbers of runs.", autocompletion=run_ids),
]


@dataclass(frozen=True, kw_only=True)
class Which:
    """What was asked for, before the store was asked what it means."""

    job: str | None = None
    schedule: str | None = None
    states: list[RunState] | None = None
    since: str | None = None
    key: str | None = None
    correlation: str | None = None

    def __bool__(self) -> bool:
        return any((self.job, self.schedule, self.states, self.since, self.key, self.correlation))

    async def filter(self, store: Store, now: datetime, *, limit: int = 100, longest: bool = False) -> RunFilter:
        if limit < 1:
            raise BadInput(f"--limit must be above 0, not {limit}")
        return RunFilter(
            job_id=self.job,
            config_id=(await the_schedule(store, self.schedule)).id if self.schedule else None,
            states=tuple(state.value for state in self.states) if self.states else None,
            since=parse_since(self.since, now) if self.since else None,
            key_prefix=self.key,
            correlation_id=self.correlation,
            longest=longest,
            limit=limit,
        )


def matches(row: RunRow, which: RunFilter) -> bool:
    """Whether a run is one of those, whatever its state and its age."""
    return (
        which.job_id in (None, row.job_id)
        and which.config_id in (None, row.config_id)
        and which.correlation_id in (None, row.correlation_id)
        and (which.key_prefix is None or (row.idempotency_key or "").startswith(which.key_prefix))
        and (which.since is None or row.created_at >= which.since)
    )


def unbound(which: RunFilter, **changes: object) -> RunFilter:
    """The same runs, in another light."""
    return msgspec.structs.replace(which, **changes)
