"""`rota schedules backfill`: the runs of ticks that the ledger does not have."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from rota.cli.look import AsJson, Url, Yes, ask, echo_json, sure
from rota.cli.say import on_one_line, say
from rota.cli.schedule_name import Named, label, the_schedule
from rota.errors import BadInput, WrongState
from rota.moment import read_moment, show_moment
from rota.store import RunRow, ScheduleRow, Store
from rota.timetable import timetable

MOST = 10_000
_TOGETHER = 200  # ticks of one transaction
_INSTANT = timedelta(microseconds=1)


@dataclass
class Stock:
    """The ticks of a range, by what the ledger knows of them."""

    absent: list[datetime] = field(default_factory=list)
    summed: list[datetime] = field(default_factory=list)
    """Skipped, in a row that stands for several."""
    skipped: list[int] = field(default_factory=list)
    """Skipped, each in a row of its own: the ids of those rows."""
    known: int = 0
    """Ran, or will."""

    @property
    def ticks(self) -> int:
        return len(self.absent) + len(self.summed) + len(self.skipped) + self.known


def take_stock(ticks: Sequence[datetime], rows: Sequence[RunRow]) -> Stock:
    own = {row.due_at: row for row in rows if row.missed_count is None}
    stretches = [(row.missed_from, row.missed_to) for row in rows if row.missed_from and row.missed_to]
    stock = Stock()
    for tick in ticks:
        row = own.get(tick)
        if row is not None and row.state == "skipped":
            stock.skipped.append(row.id)
        elif row is not None:
            stock.known += 1
        elif any(first <= tick <= last for first, last in stretches):
            stock.summed.append(tick)
        else:
            stock.absent.append(tick)
    return stock


def backfill(
    named: Named,
    start: Annotated[str, typer.Option("--from", help="The first time, itself included.")],
    until: Annotated[str, typer.Option(help="The last time, itself included.")] = "now",
    skipped: Annotated[bool, typer.Option("--skipped", help="Also ticks that were skipped or missed.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Refuse a range with more ticks than this.")] = MOST,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be made.")] = False,
    yes: Yes = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Make the runs of past ticks that the ledger does not have. A tick exists once: repeat it as often as you like.

    A time without an offset is in the schedule's zone. The runs keep to the schedule's concurrency limit.

    Example: rota schedules backfill close_books --from 2027-03-01 --until 2027-03-31 --dry-run
    """
    row, first, last, stock = ask(url, lambda store: _look(store, named, start, until, limit))
    wanted = sorted([*stock.absent, *(stock.summed if skipped else [])])
    again = stock.skipped if skipped else []
    made = 0
    if not as_json:
        _tell(row, first, last, stock, skipped)
    elif not (yes or dry_run) and (wanted or again):
        raise typer.BadParameter("--json asks nobody; give --yes or --dry-run too", param_hint="--json")
    if (wanted or again) and not dry_run:
        sure(f"Make {len(wanted) + len(again)} runs?", yes)
        made = ask(url, lambda store: _make(store, row, wanted, again))
        if not as_json:
            say(f"made {made} runs of {label(row)}")
    if as_json:
        echo_json(_document(row, first, last, stock) | {"to_make": len(wanted) + len(again), "made": made})


async def _look(
    store: Store, named: str, start: str, until: str, limit: int
) -> tuple[ScheduleRow, datetime, datetime, Stock]:
    row, now = await the_schedule(store, named), await store.now()
    first, last = read_moment(start, row.timezone, now), read_moment(until, row.timezone, now)
    if first > last:
        raise BadInput(f"--from {show_moment(first, row.timezone)} is after --until {show_moment(last, row.timezone)}")
    if last > now:
        raise BadInput(f"--until {show_moment(last, row.timezone)} is to come: {label(row)} makes those ticks itself")
    table = timetable(row.cron, row.timezone)
    if (count := table.count(first - _INSTANT, last)) > limit:
        raise BadInput(f"that is {count:,} ticks, more than {limit:,}: narrow it, or allow them by --limit {count}")
    ticks = list(table.between(first - _INSTANT, last))
    return row, first, last, take_stock(ticks, await store.ledger(row.id, first, last))


async def _make(store: Store, row: ScheduleRow, ticks: list[datetime], again: list[int]) -> int:
    """Oldest first. Whatever stops it in between, the rest is made by the next try."""
    from rich.markup import escape
    from rich.progress import Progress  # only here: it takes long to import

    from rota.cli.table import console

    made, out = 0, console()
    with Progress(console=out, disable=not out.is_terminal, transient=True) as progress:
        task = progress.add_task(escape(on_one_line(label(row))), total=len(ticks) + len(again))
        for at in range(0, len(ticks), _TOGETHER):
            some = await store.trigger_ticks(row.id, ticks[at : at + _TOGETHER])
            made += sum(each.created for each in some)
            progress.advance(task, len(some))
        for run_id in again:
            with contextlib.suppress(WrongState):  # somebody else had the same idea
                await store.retry_run(run_id)
                made += 1
            progress.advance(task)
    await store.hint("schedules")
    return made


def _tell(row: ScheduleRow, first: datetime, last: datetime, stock: Stock, skipped: bool) -> None:
    zone, not_run = row.timezone, len(stock.summed) + len(stock.skipped)
    say(f"{label(row)} from {show_moment(first, zone)} to {show_moment(last, zone)}: {stock.ticks} ticks")
    say(f"  {stock.known} have a run")
    say(f"  {not_run} were skipped" + ("" if skipped or not not_run else "; --skipped makes their runs too"))
    say(f"  {len(stock.absent)} are not in the ledger")
    if not row.enabled:
        say("  the schedule is paused; these runs are made all the same")


def _document(row: ScheduleRow, first: datetime, last: datetime, stock: Stock) -> dict[str, Any]:
    return {
        "schedule": label(row),
        "from": first,
        "until": last,
        "ticks": stock.ticks,
        "known": stock.known,
        "skipped": len(stock.summed) + len(stock.skipped),
        "absent": len(stock.absent),
    }
