"""`rota schedules diff`, `apply`, `export`: the table and a file that says how it should be."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from rota.baseline import Entry, read_baseline, write_baseline
from rota.cli.look import AsJson, Url, Yes, ask, echo_json, sure
from rota.cli.say import say, say_document
from rota.cli.which import JobOf
from rota.errors import BadInput
from rota.moment import show_duration, show_moment
from rota.plan import Difference, Plan, carry_out, make_plan
from rota.store import Declaration, Store

DIFFERENT = 3

File = Annotated[str, typer.Argument(metavar="FILE", help="A file such as schedules.toml, or - for standard input.")]
Prune = Annotated[
    bool, typer.Option("--prune", help="Also remove schedules that are not in the file, unless code declares them.")
]


def diff(file: File, prune: Prune = False, url: Url = None, as_json: AsJson = False) -> None:
    """What `apply` would change: + new, ~ changed, - removed. Exits with 3 when there is anything.

    Example: rota schedules diff schedules.toml
    """
    plan = _plan(_read(file), prune, url)
    if as_json:
        echo_json(_document(plan))
    else:
        _print(plan)
    raise typer.Exit(0 if plan.empty else DIFFERENT)


def apply(file: File, prune: Prune = False, yes: Yes = False, url: Url = None, as_json: AsJson = False) -> None:
    """Make the table say what a file says: shows the difference, asks, and does all of it in one transaction.

    What the file does not say about a schedule is left as it is.

    Example: rota schedules apply schedules.toml --yes
    """
    entries = _read(file)
    plan = _plan(entries, prune, url)
    if as_json and not yes and not plan.empty:
        raise typer.BadParameter("--json asks nobody; give --yes too", param_hint="--json")
    if not as_json:
        _print(plan)
    if not plan.empty:
        sure(f"Make {_count(plan)}?", yes)

        async def go(store: Store) -> None:
            await store.revise_schedules(carry_out(plan, entries, prune=prune))
            await store.hint("schedules")

        ask(url, go)
    if as_json:
        echo_json(_document(plan))
    elif not plan.empty:
        say(f"applied {_count(plan)}")


def export(
    file: Annotated[str | None, typer.Argument(metavar="FILE", help="Where to; standard output if left out.")] = None,
    job: JobOf = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
    url: Url = None,
) -> None:
    """Write the schedules as a file that `diff` and `apply` read.

    Example: rota schedules export schedules.toml
    """
    rows = ask(url, lambda store: store.list_schedules(job))
    text = write_baseline(rows)
    if file is None or file == "-":
        say_document(text, nl=False)
        return
    save(Path(file), text, force=force)
    say(f"wrote {len(rows)} schedules to {file}")


def save(path: Path, text: str, *, force: bool) -> None:
    """A file of the user's is not written over unasked."""
    try:
        with path.open("w" if force else "x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        raise BadInput(f"{path} is there already; --force writes over it") from None
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}") from None


def read_file(file: str) -> str:
    """A file's text, or that of standard input."""
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{file} is not UTF-8 text: {error.reason} at byte {error.start}") from None


def _read(file: str) -> list[Entry]:
    return read_baseline(read_file(file), "standard input" if file == "-" else file)


def _plan(entries: list[Entry], prune: bool, url: str | None) -> Plan:
    return make_plan(entries, ask(url, lambda store: store.list_schedules()), prune=prune)


def _count(plan: Plan) -> str:
    parts = [(len(plan.add), "new"), (len(plan.change), "changed"), (len(plan.remove), "removed")]
    return ", ".join(f"{number} {word}" for number, word in parts if number)


def _print(plan: Plan) -> None:
    for new in plan.add:
        say(f"+ {new.job_id}/{new.name}", fg="green")
        for field, value in _said(new).items():
            say(f"    {field}: {words(field, value)}")
    for name, _, fields in plan.change:
        say(f"~ {name}", fg="yellow")
        print_differences(fields)
    for name, _ in plan.remove:
        say(f"- {name}", fg="red")
    if plan.empty:
        say("no difference")
    if plan.left:
        say(f"not in the file, but declared by code, so left alone: {', '.join(plan.left)}")


def print_differences(fields: tuple[Difference, ...]) -> None:
    for each in fields:
        before, after = words(each.field, each.before), words(each.field, each.after)
        say(f"    {each.field}: {before} -> {after}")


def words(field: str, value: Any) -> str:
    """A field's value as people write it."""
    if field == "skip_if_older_than_seconds":
        return show_duration(value)
    if field == "parameters" and isinstance(value, str):
        return msgspec.json.encode(msgspec.json.decode(value), order="sorted").decode()
    if isinstance(value, datetime):
        return show_moment(value, None)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "UTC" if field == "timezone" else "-"
    return str(value)


def _said(new: Declaration) -> dict[str, Any]:
    """What is not as it would be anyway."""
    plain = Declaration(job_id="", cron="")
    fields = msgspec.structs.asdict(new)
    return {k: v for k, v in fields.items() if k not in ("job_id", "name") and v != getattr(plain, k)}


def _document(plan: Plan) -> dict[str, Any]:
    return {
        "add": [msgspec.structs.asdict(new) | {"parameters": msgspec.json.decode(new.parameters)} for new in plan.add],
        "change": [{"schedule": name, "id": number, "fields": fields} for name, number, fields in plan.change],
        "remove": [{"schedule": name, "id": number} for name, number in plan.remove],
        "left": plan.left,
    }
