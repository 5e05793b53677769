"""`rota runs`: what ran, what did not and why; what runs now; to stop it, or to run it again."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
import typer

from rota import Settings
from rota.cli.change import change, chosen
from rota.cli.complete import run_ids as ids_offered
from rota.cli.follow import Following, follow_all, follow_one, quietly
from rota.cli.look import AsJson, Url, Yes, ask, lasted, show, show_one, when
from rota.cli.say import say
from rota.cli.story import Names, as_data, attempts, explained, progress_of, state_of, took
from rota.cli.which import (
    Correlation,
    JobOf,
    Key,
    RunId,
    RunIds,
    RunState,
    ScheduleOf,
    Since,
    StateOf,
    Which,
    storable,
)
from rota.errors import NotFound
from rota.store import ReplicaRow, RunFilter, RunRow, Store

app = typer.Typer(
    help="What ran, what did not and why, what runs now; to stop it, or to run it again.", no_args_is_help=True
)

_FAMILY, _SHORT = 1000, 60


@app.command("list")
def list_(
    job: JobOf = None,
    schedule: ScheduleOf = None,
    state: StateOf = None,
    since: Since = None,
    key: Key = None,
    correlation: Correlation = None,
    limit: Annotated[int, typer.Option(min=1, callback=storable, help="At most so many.")] = 20,
    longest: Annotated[bool, typer.Option("--longest", help="Those that took longest first, not the newest.")] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Runs, newest first. Times are UTC.

    Examples: rota runs list --state failed --since 1d; what is slow: rota runs list --longest --since 1d
    """
    which = Which(job=job, schedule=schedule, states=state, since=since, key=key, correlation=correlation)

    async def go(store: Store) -> list[dict[str, Any]]:
        now = await store.now()
        rows = await store.find_runs(await which.filter(store, now, limit=limit, longest=longest))
        names = Names(await store.list_schedules(), await store.list_replicas())
        return [as_data(row, names, now) if as_json else _brief(row, names, now) for row in rows]

    show(ask(url, go), as_json=as_json, nothing="no such run" if which else "nothing ever ran here")


def _brief(row: RunRow, names: Names, now: datetime) -> dict[str, Any]:
    return {
        "id": row.id,
        "job": row.job_id,
        "schedule": (names.schedule(row) or "-").removeprefix(f"{row.job_id}/"),
        "state": state_of(row),
        "due": when(row.due_at or row.run_at, now),
        "started": when(row.started_at, now),
        "took": lasted(took(row, now)),
        "attempts": attempts(row),
        "replica": names.replica(row),
    }


@app.command("show")
def show_(run_id: RunId, url: Url = None, as_json: AsJson = False) -> None:
    """Everything about one run: its times, its arguments, how far it is, what came of it, its family.

    Example: rota runs show 17
    """

    async def go(store: Store) -> dict[str, Any]:
        rows = await store.get_runs([run_id])
        if not rows:
            raise NotFound(f"there is no run {run_id}; it may have been pruned")
        now, replicas = await store.now(), await store.list_replicas()
        names = Names(await store.list_schedules(), replicas)
        same = await store.find_runs(RunFilter(correlation_id=rows[0].correlation_id, limit=_FAMILY))
        parents = await store.get_runs([rows[0].parent_id]) if rows[0].parent_id is not None else []
        family = {row.id: row for row in (*reversed(same), *parents) if row.id != run_id}
        if as_json:
            return _document(rows[0], family, names, now, replicas)
        return _everything(rows[0], family, names, now, replicas)

    shown = ask(url, go)
    error = None if as_json else shown.pop("error", None)
    show_one(shown, as_json=as_json)
    if error:
        say(f"\n{error}")


def _document(
    row: RunRow, family: dict[int, RunRow], names: Names, now: datetime, replicas: list[ReplicaRow]
) -> dict[str, Any]:
    children = [other.id for other in family.values() if other.parent_id == row.id]
    return as_data(row, names, now) | {
        "why": explained(row, now, replicas),
        "children": children,
        "correlated": [other.id for other in family.values() if other.correlation_id == row.correlation_id],
    }


def _everything(
    row: RunRow, family: dict[int, RunRow], names: Names, now: datetime, replicas: list[ReplicaRow]
) -> dict[str, Any]:
    def told(runs: list[RunRow]) -> str | None:
        return "\n".join(f"{other.id} {other.job_id}: {state_of(other)}" for other in runs) or None

    parent = [family[row.parent_id]] if row.parent_id in family else []
    children = [other for other in family.values() if other.parent_id == row.id]
    others = [other for other in family.values() if other not in parent and other not in children]
    shown = {
        "run": row.id,
        "job": row.job_id,
        "schedule": names.schedule(row),
        "state": state_of(row),
        "why": explained(row, now, replicas),
        "times (UTC)": _timeline(row, now),
        "took": lasted(took(row, now)),
        "attempts": attempts(row),
        "replica": names.replica(row),
        "priority": row.priority,
        "key": row.idempotency_key,
        "parameters": _pretty(row.parameters),
        "progress": progress_of(row),
        "result": _pretty(row.result),
        "parent": told(parent) or (f"{row.parent_id} (pruned)" if row.parent_id is not None else None),
        "children": told(children),
        "correlation": row.correlation_id,
        "also of it": told(others),
        "error": row.error.rstrip() if row.error else None,
    }
    return {name: value for name, value in shown.items() if value is not None}


def _timeline(row: RunRow, now: datetime) -> str:
    """What happened to it, in the order in which it did."""
    attempt = f"attempt {row.attempt} started" if row.attempt > 1 else "started"
    moments = [
        ("due: the tick" if row.due_at else "", row.due_at),
        ("made", row.created_at),
        ("not before" if row.run_at > row.created_at and row.run_at != row.due_at else "", row.run_at),
        (attempt, row.started_at if row.state != "skipped" else None),
        (row.state, row.finished_at),
    ]
    known = sorted(((at, what) for what, at in moments if what and at is not None), key=lambda moment: moment[0])
    return "\n".join(f"{when(at, now)}  {what}" for at, what in known)


def _pretty(text: str | None) -> str | None:
    """On one line where that is short."""
    if text is None:
        return None
    short = msgspec.json.format(text, indent=0)
    return short if len(short) <= _SHORT else msgspec.json.format(text, indent=2)


@app.command()
def follow(
    run_id: Annotated[
        int | None,
        typer.Argument(
            metavar="[ID]", min=1, callback=storable, help="This run, until it ends.", autocompletion=ids_offered
        ),
    ] = None,
    job: JobOf = None,
    schedule: ScheduleOf = None,
    state: StateOf = None,
    key: Key = None,
    correlation: Correlation = None,
    seconds: Annotated[float | None, typer.Option("--for", metavar="SECONDS", min=0, help="No longer than.")] = None,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="Until nothing of it runs or waits for a replica.")
    ] = False,
    url: Url = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document per line and change.")] = False,
) -> None:
    """Watch runs as they change, or one until it ends. Ctrl-C ends it, nothing else is touched.

    With an ID it exits with 0 when the run succeeded, 1 when it did not, 3 when it was not over after --for SECONDS.

    Examples: rota runs follow 17; rota runs follow --job resize --state failed
    """
    which = Which(job=job, schedule=schedule, states=state, key=key, correlation=correlation)
    if run_id is not None and (which or until_idle):
        raise typer.BadParameter("one run, or those that the options choose; not both", param_hint="ID")

    async def go(store: Store) -> int:
        following = Following(store, as_json=as_json, seconds=seconds, hints=Settings.load(url=url).hints)
        if run_id is not None:
            return await follow_one(following, run_id)
        return await follow_all(following, await which.filter(store, await store.now()), until_idle=until_idle)

    with quietly():
        raise typer.Exit(ask(url, go))


@app.command()
def retry(
    run_ids: RunIds = None,
    failed: Annotated[bool, typer.Option("--failed", help="Those that failed: the same as --state failed.")] = False,
    job: JobOf = None,
    schedule: ScheduleOf = None,
    state: StateOf = None,
    since: Since = None,
    key: Key = None,
    correlation: Correlation = None,
    limit: Annotated[int, typer.Option(min=1, callback=storable, help="At most so many, the newest.")] = 1000,
    yes: Yes = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Queue runs again, under the same id and key, with all their attempts: what failed, was cancelled or skipped.

    Examples: rota runs retry 17 18; rota runs retry --failed --job resize --since 1d
    """
    states = [*(state or []), *([RunState.failed] if failed else [])]
    which = Which(job=job, schedule=schedule, states=states, since=since, key=key, correlation=correlation)
    if which and not states:
        raise typer.BadParameter("say which of them: --failed, or --state cancelled, or --state skipped")
    ids = chosen(url, run_ids, which, limit, "retry", yes=yes)

    async def one(store: Store, run_id: int) -> tuple[bool, str]:
        return True, await store.retry_run(run_id)

    change(url, ids, one, hint="schedules", words={"queued": "queued again"}, as_json=as_json)


@app.command()
def cancel(
    run_ids: RunIds = None,
    job: JobOf = None,
    schedule: ScheduleOf = None,
    state: StateOf = None,
    since: Since = None,
    key: Key = None,
    correlation: Correlation = None,
    limit: Annotated[int, typer.Option(min=1, callback=storable, help="At most so many, the newest.")] = 1000,
    yes: Yes = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Cancel runs: what is queued does not start, what is running is asked to stop. Returns when it was asked.

    Examples: rota runs cancel 17; rota runs cancel --job resize --state queued
    """
    open_ = [RunState.queued, RunState.running]
    which = Which(job=job, schedule=schedule, states=state, since=since, key=key, correlation=correlation)
    if state and not set(state) <= set(open_):
        raise typer.BadParameter("only what is queued or running can be cancelled", param_hint="--state")
    if which and not state:
        which = Which(job=job, schedule=schedule, states=open_, since=since, key=key, correlation=correlation)
    ids = chosen(url, run_ids, which, limit, "cancel", yes=yes)

    async def one(store: Store, run_id: int) -> tuple[bool, str]:
        after = await store.cancel_run(run_id)
        return after in ("cancelled", "running"), after

    change(url, ids, one, hint="cancel", words={"cancelled": "cancelled", "running": "asked to stop"}, as_json=as_json)
