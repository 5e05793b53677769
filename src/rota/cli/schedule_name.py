"""How a schedule is named on the command line: JOB, JOB/NAME or its id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from rota.cli.complete import schedule_names
from rota.cli.near import listed, near
from rota.errors import BadInput, NotFound
from rota.store import ScheduleRow, Store


def label(row: ScheduleRow) -> str:
    return f"{row.job_id}/{row.name}"


def find_schedule(rows: Sequence[ScheduleRow], text: str) -> ScheduleRow:
    """The one that is meant. A job alone means its only schedule, or the one called `default`."""
    exact = [row for row in rows if label(row) == text or str(row.id) == text]
    of_job = [row for row in rows if row.job_id == text]
    meant = {row.id: row for row in [*exact, *(_main(of_job) or ([] if exact else of_job))]}
    if len(meant) == 1:
        return next(iter(meant.values()))
    if meant:
        raise BadInput(f"{text!r} may mean {_listed(list(meant.values()))}: write JOB/NAME or the id")
    if not rows:
        raise NotFound(f"there is no schedule {text!r}: there is none at all")
    names = sorted({name for row in rows for name in (row.job_id, label(row))})
    hint = f"near it: {', '.join(found)}" if (found := near(text, names)) else f"there are: {_listed(rows)}"
    raise NotFound(f"there is no schedule {text!r}; {hint}")


async def the_schedule(store: Store, text: str) -> ScheduleRow:
    return find_schedule(await store.list_schedules(), text)


def _main(rows: Sequence[ScheduleRow]) -> list[ScheduleRow]:
    return list(rows) if len(rows) == 1 else [row for row in rows if row.name == "default"]


def _listed(rows: Sequence[ScheduleRow]) -> str:
    return listed([f"{label(row)} ({row.id})" for row in rows])


Named = Annotated[
    str,
    typer.Argument(
        metavar="SCHEDULE", help="JOB, JOB/NAME or its id.", autocompletion=schedule_names, show_default=False
    ),
]
SeveralNamed = Annotated[
    list[str] | None,
    typer.Argument(metavar="SCHEDULE", help="JOB, JOB/NAME or its id.", autocompletion=schedule_names),
]
