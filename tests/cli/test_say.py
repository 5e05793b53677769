"""Names, errors and arguments are anybody's: whatever is in them, the terminal obeys none of it."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from rota.cli.say import on_one_line, plain
from tests.cli.calling import called
from tests.store.steps import claim_one, enqueue, finish, opened, scheduled

NASTY = "[/x]\x1b]0;mine\x07\x1b[2J\x9b31m\u202e"
STEERING = {"\x1b", "\x07", "\x9b", "\u202e", "\r"}


def test_control_characters_are_spelled_out() -> None:
    assert plain("a\x1b[31mb\x07\r\x9b\u202e\tc\r\nd\né") == "a\\x1b[31mb\\x07\\r\\x9b\\u202e\tc\nd\né"
    assert on_one_line("a\nb") == "a\\nb"


async def history(url: str) -> None:
    async with opened(url) as store:
        await scheduled(store, job_id=NASTY, cron="@daily", name="default")
        await enqueue(store, job_id=NASTY, parameters=json.dumps({"a": NASTY}, ensure_ascii=False), key=NASTY)
        claimed = await claim_one(store, jobs=[NASTY])
        note = json.dumps({"done": 1, "total": 2, "note": NASTY})
        await store.report_progress([(claimed.id, claimed.token, note)])
        await finish(store, claimed, "failed", error=f"{NASTY}\rover\n{NASTY}")


@pytest.mark.parametrize(
    "arguments",
    [
        ["runs", "list"],
        ["runs", "show", "1"],
        ["runs", "follow", "1"],
        ["runs", "list", "--schedule", "nothing"],
        ["schedules", "list"],
        ["schedules", "show", "1"],
        ["schedules", "show", NASTY[:5]],
        ["schedules", "pause", "1"],
        ["schedules", "trigger", "1"],
        ["schedules", "backfill", "1", "--from=-3d", "--yes"],
        ["schedules", "edit", "1", "--param", f"b={NASTY}"],
        ["schedules", "export"],
        ["locks", "who", NASTY],
        ["doctor"],
    ],
)
async def test_no_command_passes_them_on(url: str, arguments: list[str]) -> None:
    await history(url)
    said = await called(*arguments, url=url)
    assert not STEERING & set(said.out + said.err)
    assert said.out + said.err


@pytest.mark.parametrize(
    "arguments", [["runs", "list"], ["runs", "show", "1"], ["runs", "follow", "1"], ["schedules", "show", "1"]]
)
async def test_json_has_the_same_text_and_steers_nothing(url: str, arguments: list[str]) -> None:
    await history(url)
    said = await called(*arguments, "--json", url=url)
    assert not STEERING & set(said.out)
    found = said.data[0] if isinstance(said.data, list) else said.data
    assert found["job_id"] == NASTY


@pytest.mark.parametrize("arguments", [["runs", "follow", "1"], ["runs", "list"]])
def test_on_a_terminal_a_name_is_no_markup(url: str, tmp_path: Path, arguments: list[str]) -> None:
    asyncio.run(history(url))
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "rota", *arguments], stdin=theirs, stdout=theirs, stderr=theirs, cwd=tmp_path,
        env=os.environ | {"ROTA_URL": url, "COLUMNS": "200", "TERM": "xterm", "NO_COLOR": "1"},
    )  # fmt: skip
    os.close(theirs)
    said = b""
    try:
        while chunk := os.read(ours, 4096):
            said += chunk
    except OSError:  # the terminal is closed
        pass
    finally:
        os.close(ours)
    assert process.wait(60) in (0, 1)
    text = said.decode()
    assert "[/x]\\x1b]0;mine\\x07\\x1b[2J\\x9b31m\\u202e" in text
    assert "Traceback" not in text
    assert [mark for mark in ("\x07", "\x9b", "\u202e", "\x1b[2J", "\x1b]0") if mark in text] == []
