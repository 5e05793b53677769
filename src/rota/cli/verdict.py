"""The verdict over a ledger: what an independent enumeration expects, against what is in the tables.

Independent: ticks of `every Ns` are counted here by plain arithmetic, not by the code that made them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rota import Rota
from rota.errors import BadInput, NotFound
from rota.store import RunFilter, RunRow, ScheduleRow, Store

_PAGE = 1_000_000
_ENDED_WITHIN = 30.0
_SILENT = timedelta(seconds=60)

SCHEDULES = {"heartbeat": 1, "report": 2, "thumbnails": 2, "import_feed": 2}
"""The jobs of the sample and the seconds between their ticks."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The books of one schedule, from its first tick to its frontier. With no tick at all they are not clean."""

    schedule: str
    expected: int
    run: int
    skipped: int
    lost: int
    duplicated: int

    @property
    def clean(self) -> bool:
        return self.expected > 0 and self.lost == 0 and self.duplicated == 0


async def require_unused(store: Store) -> None:
    """Whoever closes the books pauses every schedule, so there must be no others."""
    now = await store.now()
    living = [row.name for row in await store.list_replicas() if now - row.beat_at < _SILENT]
    schedules = [f"{row.job_id}/{row.name}" for row in await store.list_schedules()]
    if found := living + schedules:
        raise BadInput(f"this database is in use ({', '.join(found[:5])}), which would be disturbed: name an empty one")


async def withdraw(app: Rota) -> None:
    """Leave somebody's database without the schedules of the sample; its runs stay."""
    for schedule in await app.schedules():
        if schedule.row.job_id in SCHEDULES:
            await schedule.delete()


async def close_books(app: Rota) -> list[Verdict]:
    """Pause every schedule, let what was started come to its end, and judge. What has not ended counts as lost."""
    for schedule in await app.schedules():
        await schedule.pause()
    deadline = time.monotonic() + _ENDED_WITHIN
    while await app.store.find_runs(RunFilter(states=("queued", "running"), limit=1)) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    rows = {schedule.row.job_id: schedule.row for schedule in await app.schedules()}
    if missing := SCHEDULES.keys() - rows.keys():
        raise NotFound(f"the schedule of {sorted(missing)[0]!r} is gone; there are: {', '.join(rows) or 'none'}")
    return [await _judged(app.store, rows[job], every) for job, every in SCHEDULES.items()]


async def _judged(store: Store, schedule: ScheduleRow, seconds: int) -> Verdict:
    return judge(schedule, await store.find_runs(RunFilter(config_id=schedule.id, limit=_PAGE)), seconds)


def judge(schedule: ScheduleRow, rows: Sequence[RunRow], seconds: int) -> Verdict:
    """Judge a schedule `every {seconds}s` by all of its rows in the ledger."""
    ticks = [row for row in rows if row.due_at is not None]
    covered: list[int] = []
    for row in ticks:
        covered.extend(_instants(row, seconds))
    if schedule.next_run_at is None or not covered:
        return Verdict(schedule.job_id, 0, 0, 0, 0, 0)
    # A new schedule never back-fills: its books begin with the first tick after a scheduler first saw it.
    expected = set(range(min(covered), int(schedule.next_run_at.timestamp()), seconds))
    finished = sum(1 for row in ticks if row.state == "succeeded")
    unfinished = sum(1 for row in ticks if row.state in ("queued", "running", "failed", "cancelled"))
    skipped = sum(row.missed_count or 1 for row in ticks if row.state == "skipped")
    return Verdict(
        schedule=schedule.job_id,
        expected=len(expected),
        run=finished,
        skipped=skipped,
        lost=len(expected - set(covered)) + unfinished,
        duplicated=len(covered) - len(set(covered)) + len(set(covered) - expected),
    )


def _instants(row: RunRow, seconds: int) -> range | list[int]:
    if row.missed_from is not None and row.missed_to is not None:
        return range(int(row.missed_from.timestamp()), int(row.missed_to.timestamp()) + 1, seconds)
    assert row.due_at is not None
    return [int(row.due_at.timestamp())]


def print_verdict(console: Console, verdicts: Sequence[Verdict]) -> None:
    """What the clock says was due, against the ledger."""
    console.print("[bold]Verdict[/]  the ticks that were due, counted by the clock alone, against the ledger")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("schedule", "due by the clock", "completed", "skipped", "lost", "twice"):
        table.add_column(column, justify="left" if column == "schedule" else "right")
    for v in verdicts:
        faults = (Text(str(n), "bold red" if n else "green") for n in (v.lost, v.duplicated))
        table.add_row(v.schedule, str(v.expected), str(v.run), str(v.skipped), *faults)
    console.print(table)
    if any(verdict.skipped for verdict in verdicts):
        console.print("Skipped ticks are in the ledger, each with its reason.")
