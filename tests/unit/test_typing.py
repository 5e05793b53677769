"""A user's editor knows everything: what mypy and pyright, both strict, say of user code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeAlias, get_type_hints

import pytest
from mypy import api

from rota import Rota, Settings
from rota.options import EveryOptions, ScheduleChanges
from rota.schedule import _EDITABLE, declaration
from rota.settings import GivenSettings

GOOD = Path(__file__).with_name("user_code.py")

# A remark is `error: CODE OF MYPY, RULE OF PYRIGHT`, or the revealed type, of mypy and of pyright where they differ.
REMARKS = """
from dataclasses import dataclass
from rota import Context, Leadership, Rota, Singleton

app = Rota()

@dataclass
class Position:
    offset: int = 0

@app.job(retry=5)
async def resize(path: str, width: int = 800) -> int:
    return width

@app.job()
def shout(ctx: Context, text: str) -> str:
    return text.upper()

@app.cron("0 3 * * *", timezone="Europe/Paris")
async def close_books(ctx: Context) -> None: ...

@app.cron("0 4 * * *", name="too")
@app.job()
async def stacked(day: str) -> bool:
    return bool(day)

@app.singleton(state=Position)
async def importer(me: Singleton[Position]) -> None:
    reveal_type(me)                                              # Singleton[Position]
    reveal_type(me.state)                                        # Position
    reveal_type(me.leadership)                                   # Leadership
    me.state.offset = "x"                                        # error: assignment, reportAttributeAccessIssue
    me.state.other = 1                                           # error: attr-defined, reportAttributeAccessIssue
    async with me.update() as state:
        reveal_type(state)                                       # Position

@app.singleton(state=Position)                                   # error: arg-type, reportArgumentType
async def wrong_state(me: Singleton[int]) -> None: ...

@app.leader_only(role="x")                                       # error: type-var, reportArgumentType
def not_async(me: Leadership) -> None: ...

@app.job(retries=3)                                              # error: call-overload, reportCallIssue
async def wrong_option() -> None: ...

@app.cron("0 3 * * *", catch_up="never")                         # error: arg-type, reportArgumentType
async def wrong_value() -> None: ...

@app.cron("0 3 * * *", time_zone="UTC")                          # error: call-arg, reportCallIssue
async def wrong_name() -> None: ...

@app.every("1h", overlap="never")                                # error: arg-type, reportArgumentType
async def wrong_overlap() -> None: ...

@app.every("1h", catchup="all")                                  # error: call-arg, reportCallIssue
async def wrong_every() -> None: ...

@resize.on_failure                                               # error: arg-type, reportArgumentType
async def wrong_handler(run: int, message: str) -> None: ...

async def main(ctx: Context) -> None:
    reveal_type(resize)  # AsyncJob[[path: str, width: int =], int] | AsyncJob[(path: str, width: int = 800), int]
    reveal_type(shout)  # PlainJob[[text: str], str] | PlainJob[(text: str), str]
    reveal_type(close_books)  # AsyncJob[[], None] | AsyncJob[(), None]
    reveal_type(stacked)  # AsyncJob[[day: str], bool] | AsyncJob[(day: str), bool]
    reveal_type(await resize("a.png"))                           # int
    reveal_type(shout("a"))                                      # str
    reveal_type(await resize.enqueue("a.png", width=3))          # Run[int]
    reveal_type(await (await shout.enqueue("a")).result())       # str
    reveal_type(await resize.using(key="k").enqueue("a.png"))    # Run[int]
    reveal_type(await resize.enqueue_many([resize.call("a")]))   # list[Run[int]]
    async with app.client() as client:
        reveal_type(client)                                      # Rota
    reveal_type(resize.call("a"))                                # Call[int]
    reveal_type(app.run(1))                                      # Run[Any]
    reveal_type(ctx.tick.schedule_id)                            # int | None
    reveal_type(ctx.idempotency_key)                             # str
    reveal_type(ctx.run_id)                                      # int
    reveal_type(await app.schedules())                           # list[Schedule]
    reveal_type(await app.ids.many(3))                           # list[int]
    await resize.enqueue(3)                                      # error: arg-type, reportArgumentType
    await resize.enqueue("a.png", height=3)                      # error: call-arg, reportCallIssue
    await resize.enqueue()                                       # error: call-arg, reportCallIssue
    await shout.enqueue(1)                                       # error: arg-type, reportArgumentType
    await close_books.enqueue("x")                               # error: call-arg, reportCallIssue
    await stacked.enqueue(day=3)                                 # error: arg-type, reportArgumentType
    resize.call(3)                                               # error: arg-type, reportArgumentType
    await resize(3)                                              # error: arg-type, reportArgumentType
    shout("a", "b")                                              # error: call-arg, reportCallIssue
    await resize.using(key=3).enqueue("a.png")                   # error: arg-type, reportArgumentType
    await resize.using(keys="a").enqueue("a.png")                # error: call-arg, reportCallIssue
    await resize.using(key="k").enqueue(1)                       # error: arg-type, reportArgumentType
    resize.using(key="k").call(1)                                # error: arg-type, reportArgumentType
    await resize.enqueue_many([shout.call("a")])                 # error: list-item, reportArgumentType
    schedule = await app.schedule(resize, "@daily", parameters={"path": "a"}, overlap="queue")
    await app.schedule(resize, "@daily", paramters={})           # error: call-arg, reportCallIssue
    await app.schedule(resize, "@daily", catch_up="none")        # error: arg-type, reportArgumentType
    await schedule.update(priority="high")                       # error: arg-type, reportArgumentType
    await schedule.update(schedule="@daily")                     # error: call-arg, reportCallIssue
    Rota(bet=2)                                                  # error: call-arg, reportCallIssue
    Rota(beat="2")                                               # error: arg-type, reportArgumentType
    Rota(elector="etcd")                                         # error: arg-type, reportArgumentType
    app.lock("a", timeout="1")                                   # error: arg-type, reportArgumentType
    app.semaphore("a")                                           # error: call-arg, reportCallIssue

def plain() -> None:
    with app as opened, app.client() as client:
        reveal_type(opened)                                      # Rota
        reveal_type(client)                                      # Rota
    reveal_type(app.client().open_until_exit())                  # Rota
    reveal_type(app.wait(resize.enqueue("a.png")))               # Run[int]
    reveal_type(app.wait(app.wait(shout.enqueue("a")).result(), timeout=3))  # str
    app.wait(resize)                                             # error: arg-type, reportArgumentType
"""

Said: TypeAlias = dict[int, str]


def mypy_says(file: Path) -> Said:
    output, errors, _ = api.run(
        [
            "--strict",
            "--no-error-summary",
            "--cache-dir",
            str(file.parent / "cache"),
            "--follow-imports=silent",
            str(file),
        ]
    )
    assert errors == ""
    said: Said = {}
    for line in output.splitlines():
        _, number, remark = line.split(":", 2)
        said[int(number)] = said.get(int(number), "") + re.sub(
            r"\b(?:rota\.\w+|builtins|user)\.(?=[A-Za-z])", "", remark
        )
    return said


def pyright_says(file: Path) -> Said:
    """From the wheel alone: it brings its own node, and asks nobody."""
    (file.parent / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict", "pythonVersion": "3.11"}')
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, str(file)],
        cwd=file.parent, env=os.environ | {"NO_PROXY": "*"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    said: Said = {}
    for remark in json.loads(done.stdout)["generalDiagnostics"]:
        number = remark["range"]["start"]["line"] + 1
        said[number] = said.get(number, "") + f"{remark['message']} [{remark.get('rule', '')}]"
    return said


CHECKERS = [pytest.param(mypy_says, 0, id="mypy"), pytest.param(pyright_says, 1, id="pyright")]
Checker: TypeAlias = Callable[[Path], Said]


@pytest.mark.parametrize(("says", "which"), CHECKERS)
def test_nothing_is_said_of_correct_user_code(says: Checker, which: int, tmp_path: Path) -> None:
    file = tmp_path / "user.py"
    file.write_text(GOOD.read_text())
    assert says(file) == {}


@pytest.mark.parametrize(("says", "which"), CHECKERS)
def test_every_remark_in_the_user_code_is_what_is_said_there(says: Checker, which: int, tmp_path: Path) -> None:
    file = tmp_path / "user.py"
    file.write_text(REMARKS)
    said = says(file)
    checked = 0
    for number, line in enumerate(REMARKS.splitlines(), 1):
        _, mark, remark = line.partition("  # ")
        if not mark:
            assert number not in said, said[number]
            continue
        kind, colon, codes = remark.strip().partition("error: ")
        if colon:
            assert f"[{codes.split(', ')[which]}]" in said.get(number, ""), (line, said.get(number))
        else:
            variants = kind.split(" | ") if "] | " in kind else [kind, kind]
            assert f'"{variants[which]}"' in said.get(number, ""), (line, said.get(number))
        checked += 1
    assert checked == 61


# -- options that are passed on are the ones that there are ------------------------------------------


def parameters(function: Callable[..., Any]) -> set[str]:
    return set(function.__kwdefaults__ or {})


def test_the_options_of_every_are_those_of_cron() -> None:
    assert set(get_type_hints(EveryOptions)) == parameters(Rota.cron)


def test_the_changes_of_a_schedule_are_its_fields() -> None:
    assert set(get_type_hints(ScheduleChanges)) == {*_EDITABLE, "skip_if_older_than", "next_run_at"}
    assert parameters(declaration) | {"cron", "job_id"} <= set(get_type_hints(ScheduleChanges))


def test_the_settings_of_an_app_are_those_of_the_class() -> None:
    assert {"url", *get_type_hints(GivenSettings)} == {field.name for field in fields(Settings)}
