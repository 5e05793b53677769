"""How a schedule is named on the command line: JOB, JOB/NAME or its id."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer

from rota import Settings
from rota.cli.look import opened
from rota.errors import BadInput, NotFound
from rota.store import ScheduleRow, Store

_MOST_LISTED = 20


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
    near = get_close_matches(text, names, 5) or [name for name in names if text.lower() in name.lower()][:5]
    hint = f"near it: {', '.join(near)}" if near else f"there are: {_listed(rows)}"
    raise NotFound(f"there is no schedule {text!r}; {hint}")


async def the_schedule(store: Store, text: str) -> ScheduleRow:
    return find_schedule(await store.list_schedules(), text)


def _main(rows: Sequence[ScheduleRow]) -> list[ScheduleRow]:
    return list(rows) if len(rows) == 1 else [row for row in rows if row.name == "default"]


def _listed(rows: Sequence[ScheduleRow]) -> str:
    shown = [f"{label(row)} ({row.id})" for row in rows[:_MOST_LISTED]]
    return ", ".join(shown) + (", ..." if len(rows) > _MOST_LISTED else "")


def complete(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names for the shell to complete: soon, or none at all."""

    async def look(url: str) -> list[str]:
        async with asyncio.timeout(1.0), opened(url) as store:
            return [label(row) for row in await store.list_schedules()]

    with contextlib.suppress(Exception):
        url = Settings.load(url=ctx.params.get("url")).url
        if not url.startswith("sqlite:") or Path(url.removeprefix("sqlite:///")).exists():  # looking makes no file
            return [name for name in asyncio.run(look(url)) if name.startswith(incomplete)]
    return []


Named = Annotated[
    str,
    typer.Argument(metavar="SCHEDULE", help="JOB, JOB/NAME or its id.", autocompletion=complete, show_default=False),
]
SeveralNamed = Annotated[
    list[str] | None,
    typer.Argument(metavar="SCHEDULE", help="JOB, JOB/NAME or its id.", autocompletion=complete),
]
