"""`rota schedules`: what runs when, what became of it, and what comes next."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any

import msgspec
import typer

from rota.cli.ahead import Ahead, ahead
from rota.cli.backfill import backfill
from rota.cli.complete import schedule_names
from rota.cli.look import AsJson, Url, ago, ask, show, show_one, spoken
from rota.cli.plan import apply, diff, export, words
from rota.cli.say import say
from rota.cli.schedule_edit import edit, pause, resume
from rota.cli.schedule_name import Named, find_schedule, label
from rota.cli.story import Names, as_data
from rota.cli.trigger import trigger
from rota.cli.which import JobOf
from rota.errors import BadInput
from rota.moment import read_moment, show_duration, show_moment
from rota.plan import drift
from rota.store import RunFilter, RunRow, ScheduleRow, Store, TrippedBreaker
from rota.timetable import next_by_rules, timetable

app = typer.Typer(help="Schedules: what runs when, what became of it, what comes next.", no_args_is_help=True)


@app.command("list")
def list_(
    job: JobOf = None,
    paused: Annotated[bool, typer.Option("--paused", help="Only those that are paused.")] = False,
    failing: Annotated[bool, typer.Option("--failing", help="Only those that failed last, or are invalid.")] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """All schedules, when they tick next and how they did last.

    Example: rota schedules list --failing
    """

    async def go(store: Store) -> tuple[datetime, list[ScheduleRow], list[ScheduleRow]]:
        rows = await store.list_schedules(job)
        wanted = [row for row in rows if not (paused and row.enabled)]
        return await store.now(), rows, [row for row in wanted if not failing or await _fails(store, row)]

    now, rows, wanted = ask(url, go)
    shown = [as_document(row) if as_json else _line(row, now) for row in wanted]
    nothing = "no schedule is like that" if rows or job else "there is no schedule"
    show(shown, as_json=as_json, nothing=nothing)


@app.command("show")
def show_(named: Named, url: Url = None, as_json: AsJson = False) -> None:
    """One schedule: all of it, its last runs, its next ticks, and where it is not as code declares it.

    Example: rota schedules show close_books
    """

    async def go(store: Store) -> tuple[datetime, ScheduleRow, list[RunRow], list[TrippedBreaker], Names]:
        row = find_schedule(await store.list_schedules(), named)
        runs = await store.find_runs(RunFilter(config_id=row.id, limit=5))
        breakers = [breaker for breaker in await store.tripped_breakers() if breaker.job_id == row.job_id]
        return await store.now(), row, runs, breakers, Names([row], await store.list_replicas())

    now, row, runs, breakers, names = ask(url, go)
    ticks = _upcoming(row, now, 5)
    if as_json:
        told = [as_data(run, names, now) for run in runs]
        more = {"upcoming": ticks, "runs": told, "breaker": next(iter(breakers), None), "differs": drift(row)}
        show_one(as_document(row) | more, as_json=True)
    else:
        show_one(_page(row, now, runs, ticks, breakers), as_json=False)


@app.command("next")
def next_(
    named: Annotated[
        str | None, typer.Argument(metavar="SCHEDULE", help="JOB, JOB/NAME or its id.", autocompletion=schedule_names)
    ] = None,
    cron: Annotated[str | None, typer.Option(help="An expression instead; no database is needed.")] = None,
    timezone: Annotated[str | None, typer.Option(help="The zone of --cron; UTC if left out.")] = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=10_000, help="How many ticks.")] = 10,
    start: Annotated[str | None, typer.Option("--from", help="After this time, instead of now.")] = None,
    until: Annotated[str | None, typer.Option(help="Not after this time.")] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """The ticks to come, in the schedule's zone and in UTC, with a remark where the clocks change.

    A time without an offset is in the schedule's zone: 2027-03-28, 2027-03-28T02:30, now, -3d, +90m.

    Example: rota schedules next --cron "30 2 * * *" --timezone Europe/Paris --from 2027-03-27 --count 3
    """
    if (named is None) == (cron is None):
        raise typer.BadParameter("name a schedule, or give --cron", param_hint="SCHEDULE")
    if named is not None and timezone is not None:
        raise typer.BadParameter("a schedule has a zone of its own; give it with --cron only", param_hint="--timezone")

    async def go(store: Store) -> tuple[datetime, ScheduleRow]:
        return await store.now(), find_schedule(await store.list_schedules(), str(named))

    row = None
    if cron is None:
        now, row = ask(url, go)
        cron, timezone = row.cron, row.timezone
    else:
        now = datetime.now(UTC)
    after = now if start is None else read_moment(start, timezone, now)
    last = None if until is None else read_moment(until, timezone, now)
    pending = row.next_run_at if row is not None and start is None else None
    ticks = list(islice(ahead(timetable(cron, timezone), after, last, pending, now), count))
    show([_tick(tick, timezone, as_json) for tick in ticks], as_json=as_json, nothing="no tick until then")
    if row is not None and not as_json and (idle := _idle(row)):
        say(f"none of these will run: {label(row)} is {idle}")


def _tick(tick: Ahead, timezone: str | None, as_json: bool) -> dict[str, Any]:
    shown = show_moment(tick.at, timezone)
    if as_json:
        return {"at": tick.at, "local": shown, "timezone": timezone or "UTC", "remark": tick.remark}
    utc = {} if timezone in (None, "UTC") else {"UTC": show_moment(tick.at, None)}
    return {timezone or "UTC": shown} | utc | {"remark": tick.remark or ""}


def as_document(row: ScheduleRow) -> dict[str, Any]:
    """A schedule for scripts: its columns, with what is JSON as JSON."""
    declared = msgspec.json.decode(row.declared) if row.declared else None
    fields = {"schedule": label(row)} | msgspec.structs.asdict(row)
    return fields | {"parameters": msgspec.json.decode(row.parameters), "declared": declared}


async def _fails(store: Store, row: ScheduleRow) -> bool:
    if row.last_state in ("queued", "running"):  # the one before it tells
        ended = await store.find_runs(RunFilter(config_id=row.id, states=("succeeded", "failed"), limit=1))
        return row.invalid_reason is not None or any(run.state == "failed" for run in ended)
    return row.last_state == "failed" or row.invalid_reason is not None


def _idle(row: ScheduleRow) -> str | None:
    if not row.enabled:
        return "paused"
    return f"invalid: {row.invalid_reason}" if row.invalid_reason else None


def _line(row: ScheduleRow, now: datetime) -> dict[str, Any]:
    return {
        "id": row.id,
        "schedule": label(row),
        "expression": row.cron,
        "zone": row.timezone or "UTC",
        "state": _idle(row) or "enabled",
        "next tick": _next_tick(row, now),
        "last run": " ".join(filter(None, (row.last_state, ago(row.last_run_at, now)))) or None,
        "runs": row.run_count,
        "failures": row.failure_count,
    }


def _next_tick(row: ScheduleRow, now: datetime) -> str | None:
    at = row.next_run_at or next_by_rules(row.cron, row.timezone, now)
    if at is None or _idle(row):
        return None
    away = (at - now).total_seconds()
    return f"{_moment(at, row.timezone)} ({f'in {spoken(away)}' if away >= 0 else f'overdue {spoken(-away)}'})"


def _moment(at: datetime, timezone: str | None) -> str:
    """Also for a row whose zone makes no sense."""
    try:
        return show_moment(at, timezone)
    except BadInput:
        return show_moment(at, None)


def _upcoming(row: ScheduleRow, now: datetime, count: int) -> list[Ahead]:
    try:
        return list(islice(ahead(timetable(row.cron, row.timezone), now, None, row.next_run_at, now), count))
    except BadInput:
        return []


def _page(
    row: ScheduleRow, now: datetime, runs: list[RunRow], ticks: list[Ahead], breakers: list[TrippedBreaker]
) -> dict[str, Any]:
    zone = row.timezone
    code = [f"{d.field}: {words(d.field, d.before)} in code, {words(d.field, d.after)} here" for d in drift(row)]
    return {
        "schedule": label(row),
        "id": row.id,
        "state": _idle(row) or "enabled",
        "expression": row.cron,
        "zone": zone or "UTC",
        "parameters": row.parameters,
        "priority": row.priority,
        "concurrency limit": row.concurrency_limit or "none",
        "overlap": row.overlap,
        "catch up": f"{row.catch_up} (at most {row.catch_up_limit})" if row.catch_up == "all" else row.catch_up,
        "skip if older than": show_duration(row.skip_if_older_than_seconds),
        "lock timeout": show_duration(row.lock_timeout_seconds),
        "breaker": "\n".join(_breaker(each, now) for each in breakers) or "closed",
        "declared": "\n".join(code) or ("as in code" if row.declared else "not by code"),
        "version": row.version,
        "created": _moment(row.created_at, zone),
        "updated": _moment(row.updated_at, zone),
        "runs": f"{row.run_count}, of which {row.failure_count} failed",
        "last error": row.last_error,
        "last runs": "\n".join(_run(run, zone, now) for run in runs) or None,
        "next ticks": "\n".join(f"{show_moment(t.at, zone)}  {t.remark or ''}".rstrip() for t in ticks) or None,
    }


def _run(run: RunRow, zone: str | None, now: datetime) -> str:
    what = f"tick {_moment(run.due_at, zone)}" if run.idempotency_key and run.due_at else "by hand"
    if run.missed_count is not None and run.missed_from is not None and run.missed_to is not None:
        what = f"{run.missed_count} ticks from {_moment(run.missed_from, zone)} to {_moment(run.missed_to, zone)}"
    why = f" ({run.reason})" if run.reason else ""
    return f"{run.id}  {run.state}{why}  {what}  {ago(run.finished_at or run.started_at or run.created_at, now)}"


def _breaker(tripped: TrippedBreaker, now: datetime) -> str:
    left = tripped.pause - (now - tripped.changed_at).total_seconds()
    probe = f"the next probe in {spoken(left)}" if left > 0 else "the next tick is a probe"
    spelled = "half open: a probe is under way" if tripped.breaker == "half_open" else f"open: {probe}"
    return f"{spelled}; {tripped.consecutive_failures} failures in a row"


for command in (pause, resume, trigger, edit, backfill, diff, apply, export):
    app.command()(command)
