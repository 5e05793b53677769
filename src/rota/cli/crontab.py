"""`rota import crontab`: from cron's own file to a module of jobs."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from rota.cli.look import AsJson, echo_json, show
from rota.cli.plan import read_file, save
from rota.cli.say import say
from rota.cli.service_file import service_file
from rota.crontab import Crontab, Job, machine_timezone, read_crontab
from rota.errors import BadInput
from rota.moment import show_moment
from rota.timetable import timetable

NOT_ALL = 3
_DIFFERENCES = (
    "rota differs from cron: a tick that comes while the last one still runs is skipped (overlap), "
    "the newest tick missed in a downtime runs afterwards (catch_up), "
    "and an exit code other than 0 makes a failed run."
)

app = typer.Typer(help="Move in from another scheduler.", no_args_is_help=True)


@app.callback()
def _imports() -> None: ...


@app.command()
def crontab(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A crontab, or - for standard input.")],
    output: Annotated[str | None, typer.Option("--output", "-o", help="Write the jobs to this module.")] = None,
    system: Annotated[
        bool | None,
        typer.Option("--system/--user", help="Lines have a user field, as in /etc/crontab and /etc/cron.d, or not."),
    ] = None,
    timezone: Annotated[
        str | None, typer.Option(help="The zone where the file sets no CRON_TZ or TZ; this machine's if left out.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """What rota makes of a crontab: a schedule for every line, when it ticks next, and what is to be known.

    Shows only, unless --output names a module to write, with a job for every line; it is yours to edit. Exits with 3
    when a line cannot be taken over, such as @reboot.

    Example: crontab -l | rota import crontab - --output service.py && rota run service:app
    """
    if output is not None and not (output.endswith(".py") and Path(output).stem.isidentifier()):
        raise BadInput(f"--output {output!r} is no module that Python can import: name it like service.py")
    zone = timezone or machine_timezone()
    is_system = file.startswith(("/etc/crontab", "/etc/cron.d/")) if system is None else system
    read = read_crontab(read_file(file), system=is_system, timezone=zone or "UTC")
    notes = [*read.remarks]
    if zone is None:
        notes.insert(0, "this machine's zone is not known, so UTC is taken; --timezone says which")
    if output is not None:
        save(Path(output), service_file(read, notes), force=force)
    if as_json:
        echo_json([_document(job) for job in read.jobs])
    else:
        _print(read, notes, output)
    raise typer.Exit(NOT_ALL if any(job.problem for job in read.jobs) else 0)


def _print(read: Crontab, notes: list[str], output: str | None) -> None:
    show([_row(job) for job in read.jobs], as_json=False, nothing="there is no job in this crontab")
    if not read.jobs:
        return
    for note in [*notes, _DIFFERENCES]:
        say(note)
    left = [job for job in read.jobs if job.problem]
    if left:
        say(f"{len(left)} of {len(read.jobs)} lines cannot be taken over")
    if output is not None:
        say(f"wrote {len(read.jobs) - len(left)} jobs to {output}: rota run {Path(output).stem}:app")


def _row(job: Job) -> dict[str, Any]:
    return {
        "line": job.line,
        "job": None if job.problem else job.name,
        "expression": job.expression,
        "zone": job.timezone,
        "next tick": None if job.problem else show_moment(_next(job), job.timezone),
        "command": job.command,
        "remarks": f"NOT TAKEN OVER: {job.problem}" if job.problem else "; ".join(job.remarks),
    }


def _next(job: Job) -> datetime:
    return timetable(job.expression, job.timezone).next(datetime.now(UTC))


def _document(job: Job) -> dict[str, Any]:
    return {
        "line": job.line,
        "job": None if job.problem else job.name,
        "cron": job.expression,
        "timezone": job.timezone,
        "next": None if job.problem else _next(job),
        "user": job.user,
        "command": job.command,
        "stdin": job.stdin,
        "shell": job.shell,
        "environment": dict(job.environment),
        "problem": job.problem,
        "remarks": job.remarks,
    }
