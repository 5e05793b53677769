"""`rota schedules trigger`: a run now, and how it ends."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from rota.cli.look import AsJson, Url, ask, echo_json, spoken
from rota.cli.say import say
from rota.cli.schedule_name import Named, label, the_schedule
from rota.cli.story import Names, as_data
from rota.moment import read_moment, show_moment
from rota.results import Results
from rota.schedule import check_tick
from rota.store import FINISHED, Enqueued, RunRow, ScheduleRow, Store


def trigger(
    named: Named,
    due_at: Annotated[str | None, typer.Option(help="The run of this tick, which exists once only.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it has finished; exit with 1 if it failed.")] = False,
    timeout: Annotated[float | None, typer.Option(min=0, help="How many seconds to wait, at most.")] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Make a run now, with the schedule's parameters, besides its own ticks.

    Example: rota schedules trigger close_books --wait
    """

    async def go(store: Store) -> tuple[ScheduleRow, Enqueued, RunRow]:
        row = await the_schedule(store, named)
        tick = None if due_at is None else await _tick(store, row, due_at)
        made = await store.trigger(row.id, tick)
        await store.hint("schedules")
        if not as_json:
            await _announce(store, row, made, tick)
        if wait:
            return row, made, await _finished(store, made.id, timeout)
        [run] = await store.get_runs([made.id])
        return row, made, run

    async def document(store: Store) -> dict[str, Any]:
        names = Names([row], await store.list_replicas())
        return {"schedule": label(row), "created": made.created, "run": as_data(run, names, await store.now())}

    row, made, run = ask(url, go)
    if as_json:
        echo_json(ask(url, document))
    elif run.state in FINISHED:
        _report(run)
    raise typer.Exit(0 if not wait or run.state == "succeeded" else 1)


async def _announce(store: Store, row: ScheduleRow, made: Enqueued, tick: datetime | None) -> None:
    about = f"the tick {show_moment(tick, row.timezone)} of " if tick else ""
    say(f"run {made.id} of {about}{label(row)}" + ("" if made.created else " was there already"))
    if made.created and not any(row.job_id in replica.jobs for replica in await store.list_replicas()):
        say(f"no running replica declares job {row.job_id!r}: it waits for one", err=True)


async def _finished(store: Store, run_id: int, timeout: float | None) -> RunRow:
    from rota.cli.table import console  # only here: it takes long to import

    results = Results(lambda: store)
    try:
        with console().status(f"run {run_id} is under way"):
            return await results.wait(run_id, timeout)
    finally:
        await results.close()


async def _tick(store: Store, row: ScheduleRow, text: str) -> datetime:
    moment = read_moment(text, row.timezone, await store.now())
    check_tick(row, moment)
    return moment.astimezone(UTC)


def _report(run: RunRow) -> None:
    took = ""
    if run.started_at is not None and run.finished_at is not None:
        took = f" after {spoken((run.finished_at - run.started_at).total_seconds())}"
    say(f"run {run.id} {run.state}{took}")
    if run.state == "succeeded" and run.result is not None:
        say(run.result)
    if (why := run.error or run.reason) is not None:
        say(why.rstrip(), err=True)
