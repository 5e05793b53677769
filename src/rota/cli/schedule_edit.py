"""`rota schedules pause`, `resume`, `edit`."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from rota.baseline import read_fields, schedule_toml
from rota.cli.complete import job_names
from rota.cli.look import AsJson, Url, Yes, ask, echo_json, sure
from rota.cli.near import unknown
from rota.cli.plan import print_differences
from rota.cli.say import say
from rota.cli.schedule_name import Named, SeveralNamed, find_schedule, label, the_schedule
from rota.errors import BadInput
from rota.moment import read_duration, read_moment
from rota.plan import Difference, differences
from rota.schedule import checked_changes, write_changes
from rota.store import Revision, ScheduleRow, Store

All = Annotated[bool, typer.Option("--all", help="All of them; asks first.")]
OfJob = Annotated[str | None, typer.Option("--job", help="All schedules of this job.", autocompletion=job_names)]


def pause(
    named: SeveralNamed = None, of_job: OfJob = None, all_: All = False, yes: Yes = False, url: Url = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """No more ticks, until resumed. Runs that are queued or running go on.

    Example: rota schedules pause close_books collect/eu
    """
    _switch(named or [], of_job, all_, yes, url, as_json, enabled=False)


def resume(
    named: SeveralNamed = None, of_job: OfJob = None, all_: All = False, yes: Yes = False, url: Url = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Tick again. The ticks of the pause are recorded as skipped, and do not run.

    Example: rota schedules resume --job collect
    """
    _switch(named or [], of_job, all_, yes, url, as_json, enabled=True)


def _switch(
    named: list[str], of_job: str | None, all_: bool, yes: bool, url: str | None, as_json: bool, *, enabled: bool
) -> None:
    if bool(named) + (of_job is not None) + all_ != 1:
        raise typer.BadParameter("name schedules, or give --job, or --all", param_hint="SCHEDULE")
    verb = "resume" if enabled else "pause"
    if all_:
        rows = ask(url, lambda store: store.list_schedules())
        sure(f"{verb.capitalize()} all {len(rows)} schedules?", yes)
    told: list[tuple[ScheduleRow, bool]] = []

    def revise(rows: Sequence[ScheduleRow]) -> Revision:
        chosen = {row.id: row for row in _chosen(rows, named, of_job)}
        told[:] = [(row, row.enabled != enabled) for row in chosen.values()]
        return Revision(change=tuple((row.id, {"enabled": enabled}) for row, changed in told if changed))

    async def go(store: Store) -> None:
        await store.revise_schedules(revise)
        await store.hint("schedules")

    ask(url, go)
    if as_json:
        echo_json([{"schedule": label(r), "id": r.id, "enabled": enabled, "changed": changed} for r, changed in told])
        return
    for row, changed in told:
        say(f"{verb}d {label(row)}" if changed else f"{label(row)} was {_already(enabled)} already")
    if not told:
        say(f"there is nothing to {verb}")


def _already(enabled: bool) -> str:
    return "enabled" if enabled else "paused"


def _chosen(rows: Sequence[ScheduleRow], named: list[str], of_job: str | None) -> list[ScheduleRow]:
    if named:
        return [find_schedule(rows, text) for text in named]
    of = [row for row in rows if of_job in (None, row.job_id)]
    if of_job is not None and not of:
        raise unknown("schedule of job", of_job, sorted({row.job_id for row in rows}))
    return of


def edit(
    named: Named,
    cron: Annotated[str | None, typer.Option(help="The expression, e.g. '0 3 * * *' or 'every 5m'.")] = None,
    timezone: Annotated[str | None, typer.Option(help="An IANA name, e.g. Europe/Paris.")] = None,
    priority: Annotated[int | None, typer.Option(help="0 (first) to 99.")] = None,
    concurrency_limit: Annotated[int | None, typer.Option(help="Runs at once in the cluster; 0: no limit.")] = None,
    overlap: Annotated[str | None, typer.Option(help="skip, queue, queue_one or cancel.")] = None,
    catch_up: Annotated[str | None, typer.Option(help="latest, all or skip.")] = None,
    catch_up_limit: Annotated[int | None, typer.Option(help="How many, with catch_up all.")] = None,
    skip_if_older_than: Annotated[str | None, typer.Option(help="Ticks older than this never run, e.g. 1d12h.")] = None,
    lock_timeout: Annotated[str | None, typer.Option(help="When a slot that nobody renews is free, e.g. 5m.")] = None,
    param: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Set one; JSON, else text.")] = None,
    unset: Annotated[list[str] | None, typer.Option(metavar="KEY", help="Take one parameter out.")] = None,
    parameters: Annotated[str | None, typer.Option(metavar="JSON", help="All parameters: a JSON object.")] = None,
    next_run_at: Annotated[str | None, typer.Option(help="The next tick; auto: by the expression, from now.")] = None,
    enabled: Annotated[bool | None, typer.Option("--enable/--disable", help="As resume and pause.")] = None,
    yes: Yes = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Change a schedule, if nobody else did since it was read. Without options: in $EDITOR.

    A changed expression or zone starts anew from now. Parameters are checked by the replicas, which have the code.

    Example: rota schedules edit collect --cron "every 5m" --param max_x=20
    """
    plain = {
        "cron": cron, "timezone": timezone, "priority": priority, "concurrency_limit": concurrency_limit,
        "overlap": overlap, "catch_up": catch_up, "catch_up_limit": catch_up_limit, "enabled": enabled,
        "skip_if_older_than": None if skip_if_older_than is None else read_duration(skip_if_older_than),
        "lock_timeout_seconds": None if lock_timeout is None else int(read_duration(lock_timeout)),
    }  # fmt: skip
    given = {name: value for name, value in plain.items() if value is not None}
    if next_run_at is not None and given.keys() & {"cron", "timezone"}:
        raise typer.BadParameter("a changed expression or zone computes it anew", param_hint="--next-run-at")
    if parameters is not None and (param or unset):
        raise typer.BadParameter("--parameters are all of them; leave out --param and --unset", param_hint="--param")
    row = ask(url, lambda store: the_schedule(store, named))
    if parameters is not None or param or unset:
        given["parameters"] = _parameters(row, parameters, param or [], unset or [])
    if next_run_at is not None:
        given["next_run_at"] = ask(url, lambda store: _next_run_at(store, row, next_run_at))
    if given:
        changes = checked_changes(row, given)
    elif sys.stdin.isatty() and sys.stdout.isatty():
        changes = _in_editor(row)
    else:
        raise typer.BadParameter("say what to change, e.g. --cron 'every 5m'", param_hint="OPTIONS")
    fields = differences(row, changes)
    if not given and fields:
        print_differences(fields)
        sure(f"Change {label(row)}?", yes)
    _write(row, fields, url, as_json, told=not given)


def _write(row: ScheduleRow, fields: tuple[Difference, ...], url: str | None, as_json: bool, *, told: bool) -> None:
    async def go(store: Store) -> ScheduleRow:
        written = await write_changes(store, row, {each.field: each.after for each in fields})
        await store.hint("schedules")
        return written

    now = ask(url, go) if fields else row
    if as_json:
        echo_json({"schedule": label(row), "id": row.id, "version": now.version, "changed": fields})
    elif not fields:
        say(f"{label(row)}: nothing to change")
    else:
        say(f"changed {label(row)}")
        if not told:
            print_differences(fields)


async def _next_run_at(store: Store, row: ScheduleRow, text: str) -> Any:
    return None if text.lower() == "auto" else read_moment(text, row.timezone, await store.now())


def _parameters(row: ScheduleRow, whole: str | None, param: list[str], unset: list[str]) -> str:
    """As JSON; what is no JSON object is refused where it is written down."""
    if whole is not None:
        return whole
    current: dict[str, Any] = msgspec.json.decode(row.parameters)
    for key in unset:
        if key not in current:
            raise BadInput(f"{label(row)} has no parameter {key!r}; it has: {', '.join(current) or 'none'}")
        del current[key]
    for assignment in param:
        key, equals, value = assignment.partition("=")
        if not key or not equals:
            raise BadInput(f"--param {assignment!r} is not of the form KEY=VALUE")
        try:
            current[key] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            current[key] = value
    return msgspec.json.encode(current).decode()


def _in_editor(row: ScheduleRow) -> dict[str, Any]:
    """The fields that the user leaves behind. What cannot be read is shown again, with the reason."""
    text = f"# {label(row)}. Save and close; what is left out stays as it is.\n{schedule_toml(row)}"
    while True:
        text = _edited(text)
        try:
            return read_fields(tomllib.loads(text), lambda key: label(row))
        except (BadInput, tomllib.TOMLDecodeError) as error:
            sure(f"{error}\nEdit again?", False)


def _edited(text: str) -> str:
    """The text, after the user's editor had it."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory(prefix="rota-") as folder:
        file = Path(folder) / "schedule.toml"
        file.write_text(text, encoding="utf-8")
        try:
            subprocess.run([*shlex.split(editor), str(file)], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise BadInput(f"$EDITOR {editor!r} failed, nothing was changed: {error}") from None
        return file.read_text(encoding="utf-8")
