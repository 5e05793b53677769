"""`rota schedules`: looking, pausing, editing."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
import typer

from rota import Rota
from rota.store import ScheduleRow
from tests.cli.calling import call
from tests.cli.terminal import on_a_terminal
from tests.harness import execute


def service(url: str) -> Rota:
    app = Rota(url)

    @app.cron("30 2 * * *", timezone="Europe/Paris")
    async def close_books(region: str = "eu") -> None: ...

    @app.every("1h", name="eu", parameters={"n": 1})
    @app.every("2h", name="us")
    @app.job(breaker=1)
    async def collect(n: int = 0) -> int:
        return n

    return app


@pytest.fixture
def shop(url: str) -> str:
    """A database in which the schedules of the service are declared; nobody runs them."""

    async def declare() -> None:
        app = service(url)
        async with app.client():
            await app.store.declare([job.row() for job in app.jobs.values()], list(app._schedules.values()))

    asyncio.run(declare())
    return url


def schedules(url: str) -> dict[str, ScheduleRow]:
    async def look() -> list[ScheduleRow]:
        app = Rota(url)
        async with app.client():
            return await app.store.list_schedules()

    return {f"{row.job_id}/{row.name}": row for row in asyncio.run(look())}


def sql(url: str, statement: str) -> None:
    asyncio.run(execute(url, statement))


# -- looking ---------------------------------------------------------------------------------------


def test_the_list_has_expression_zone_state_and_next_tick(shop: str) -> None:
    call("schedules", "pause", "collect/us", url=shop)
    sql(shop, "update scheduler_configs set invalid_reason = 'no such thing' where name = 'eu'")
    said = call("schedules", "list", url=shop)
    assert said.code == 0, said.err
    head, books, eu, us = said.out.splitlines()
    assert re.split(r"  +", head) == [
        "id", "schedule", "expression", "zone", "state", "next tick", "last run", "runs", "failures",
    ]  # fmt: skip
    assert re.search(
        r"close_books/default +30 2 \* \* \* +Europe/Paris +enabled +\d{4}-\d\d-\d\d 0[23]:\d0 CES?T", books
    )
    assert "invalid: no such thing" in eu
    assert re.search(r"collect/us +every 2h +UTC +paused +- ", us)


def make_run(url: str, schedule: str, number: int, state: str) -> None:
    """One that this schedule has made."""
    job, name = schedule.split("/")
    which = f"from scheduler_configs where job_id = '{job}' and name = '{name}'"
    sql(
        url,
        "insert into job_runs (id, job_id, config_id, idempotency_key, correlation_id, state, run_at) "
        f"select {1000 + number}, job_id, id, 'schedule:{number}', 'x', '{state}', '2020-01-01 00:00:00' {which}",
    )
    sql(url, f"update scheduler_configs set last_run_id = {1000 + number} where job_id = '{job}' and name = '{name}'")


def test_the_list_is_narrowed(shop: str) -> None:
    def names(*options: str) -> list[str]:
        return [row["schedule"] for row in call("schedules", "list", "--json", *options, url=shop).data]

    call("schedules", "pause", "collect/us", url=shop)
    sql(shop, "update scheduler_configs set invalid_reason = 'no' where name = 'eu'")
    assert names() == ["close_books/default", "collect/eu", "collect/us"]
    assert names("--job", "collect") == ["collect/eu", "collect/us"]
    assert names("--paused") == ["collect/us"]
    assert names("--failing") == ["collect/eu"]
    make_run(shop, "collect/us", 1, "failed")
    assert names("--failing") == ["collect/eu", "collect/us"]
    make_run(shop, "collect/us", 2, "running")
    assert names("--failing") == ["collect/eu", "collect/us"], "nobody knows yet whether it has been mended"
    make_run(shop, "collect/us", 3, "succeeded")
    make_run(shop, "collect/us", 4, "queued")
    assert names("--failing") == ["collect/eu"]
    assert "no schedule is like that" in call("schedules", "list", "--job", "nothing", url=shop).out


def test_show_tells_where_a_schedule_is_not_as_code_declares_it(shop: str) -> None:
    call("schedules", "edit", "collect/eu", "--cron", "every 5m", "--param", "n=7", url=shop)
    sql(
        shop, "update jobs set breaker = 'open', consecutive_failures = 4, breaker_changed_at = '2020-01-01 00:00:00.0'"
    )
    said = call("schedules", "show", "collect/eu", url=shop)
    assert said.code == 0, said.err
    assert "cron: every 1h in code, every 5m here" in said.out
    assert 'parameters: {"n":1} in code, {"n":7} here' in said.out
    assert "open: the next tick is a probe; 4 failures in a row" in said.out
    assert "as in code" in call("schedules", "show", "close_books", url=shop).out
    document = call("schedules", "show", "collect/eu", "--json", url=shop).data
    assert document["parameters"] == {"n": 7}
    assert len(document["upcoming"]) == 5
    assert [each["field"] for each in document["differs"]] == ["cron", "parameters"]
    assert document["breaker"]["breaker"] == "open"


def test_show_has_the_last_runs(shop: str) -> None:
    call("schedules", "trigger", "close_books", url=shop)
    call("schedules", "trigger", "close_books", "--due-at", "2026-05-01T02:30", url=shop)
    said = call("schedules", "show", "close_books", url=shop).out
    assert re.search(r"queued  tick 2026-05-01 02:30 CEST  \d+s ago", said)
    assert re.search(r"queued  by hand  \d+s ago", said)


def test_a_schedule_whose_expression_makes_no_sense_is_shown_all_the_same(shop: str) -> None:
    sql(shop, "update scheduler_configs set cron = 'bad', timezone = 'Mars/Base' where name = 'eu'")
    assert call("schedules", "show", "collect/eu", url=shop).code == 0
    assert call("schedules", "list", url=shop).code == 0
    said = call("schedules", "next", "collect/eu", url=shop)
    assert (said.code, "unknown time zone 'Mars/Base'" in said.err) == (1, True)


# -- names -----------------------------------------------------------------------------------------


def test_a_schedule_is_named_by_job_by_job_and_name_or_by_id(shop: str) -> None:
    books = schedules(shop)["close_books/default"]
    for name in ("close_books", "close_books/default", str(books.id)):
        assert call("schedules", "show", name, "--json", url=shop).data["id"] == books.id
    sql(shop, "update scheduler_configs set name = 'default' where name = 'us'")
    assert call("schedules", "show", "collect", "--json", url=shop).data["schedule"] == "collect/default"


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("collect", "'collect' may mean collect/eu (*), collect/us (*): write JOB/NAME or the id"),
        ("colect", "there is no schedule 'colect'; near it: collect"),
        ("eu", "there is no schedule 'eu'; near it: collect/eu"),
        ("xyz", "there is no schedule 'xyz'; there are: close_books/default (*), collect/eu (*), collect/us (*)"),
    ],
)
def test_a_name_that_does_not_fit_is_answered_with_those_that_do(shop: str, name: str, complaint: str) -> None:
    said = call("schedules", "show", name, url=shop)
    assert said.code == 1
    assert complaint in re.sub(r"\(\d+\)", "(*)", said.err)


def test_a_job_with_a_slash_in_its_name_is_not_mistaken_for_a_schedule(shop: str) -> None:
    sql(shop, "insert into scheduler_configs (job_id, name, cron) values ('collect/eu', 'default', 'every 1h')")
    said = call("schedules", "show", "collect/eu", url=shop)
    assert (said.code, "may mean collect/eu (" in said.err, "collect/eu/default (" in said.err) == (1, True, True)
    assert call("schedules", "show", "collect/eu/default", "--json", url=shop).data["job_id"] == "collect/eu"


def test_the_shell_completes_names_and_stays_silent_when_it_cannot(shop: str, tmp_path: Path) -> None:
    def completed(url: str) -> subprocess.CompletedProcess[str]:
        words = {"COMP_WORDS": "rota schedules show c", "COMP_CWORD": "3", "_ROTA_COMPLETE": "complete_bash"}
        return subprocess.run(
            [sys.executable, "-c", "import sys; sys.argv = ['rota']; from rota.cli import main; main()"],
            env=os.environ | words | {"ROTA_URL": url}, capture_output=True, text=True, check=False, cwd=tmp_path,
        )  # fmt: skip

    assert completed(shop).stdout.split() == ["close_books/default", "collect/eu", "collect/us"]
    nowhere = completed("sqlite:///nowhere.db")
    assert (nowhere.stdout.strip(), nowhere.stderr) == ("", "")
    assert not (tmp_path / "nowhere.db").exists()


# -- what comes next -------------------------------------------------------------------------------


def ticks(*arguments: str, url: str | None = None) -> list[list[str]]:
    said = call("schedules", "next", *arguments, url=url)
    assert said.code == 0, said.err
    return [re.split(r"  +", line) for line in said.out.splitlines()[1:]]


def test_next_needs_no_database_for_an_expression_and_remarks_on_the_clocks(tmp_path: Path) -> None:
    paris = ("--cron", "30 2 * * *", "--timezone", "Europe/Paris", "--count", "3")
    nowhere = "postgresql://nobody@127.0.0.1:1/nowhere"
    assert ticks(*paris, "--from", "2027-03-27", url=nowhere) == [
        ["2027-03-27 02:30 CET", "2027-03-27 01:30 UTC"],
        ["2027-03-28 03:00 CEST", "2027-03-28 01:00 UTC", "02:30 does not exist on 2027-03-28: runs at 03:00"],
        ["2027-03-29 02:30 CEST", "2027-03-29 00:30 UTC"],
    ]
    assert ticks(*paris, "--from", "2027-10-31", url=nowhere) == [
        ["2027-10-31 02:30 CEST", "2027-10-31 00:30 UTC",
         "clocks go back on 2027-10-31: 02:30 happens twice, runs the first time only"],
        ["2027-11-01 02:30 CET", "2027-11-01 01:30 UTC", "clocks have gone back since the tick before"],
        ["2027-11-02 02:30 CET", "2027-11-02 01:30 UTC"],
    ]  # fmt: skip


def test_next_ends_where_it_is_told(shop: str) -> None:
    assert ticks("collect/us", "--from", "2027-01-01", "--until", "2027-01-01T05:00", url=shop) == [
        ["2027-01-01 02:00 UTC"],
        ["2027-01-01 04:00 UTC"],
    ]
    said = call("schedules", "next", "collect/us", "--until", "-1h", url=shop)
    assert (said.code, said.out) == (0, "no tick until then\n")


def test_next_begins_with_the_tick_that_the_row_has(shop: str) -> None:
    call("schedules", "edit", "close_books", "--next-run-at", "2027-03-28T12:34", url=shop)
    assert ticks("close_books", "-n", "2", url=shop) == [
        ["2027-03-28 12:34 CEST", "2027-03-28 10:34 UTC", "set by hand"],
        ["2027-03-29 02:30 CEST", "2027-03-29 00:30 UTC"],
    ]
    call("schedules", "pause", "close_books", url=shop)
    assert (
        "none of these will run: close_books/default is paused"
        in call("schedules", "next", "close_books", url=shop).out
    )


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        ([], 2, "name a schedule, or give --cron"),
        (["--cron", "0 25 * * *"], 1, "bad schedule expression '0 25 * * *' in field 'hour'"),
        (["--cron", "@daily", "--timezone", "Mars/Base"], 1, "unknown time zone 'Mars/Base'"),
        (["--cron", "@daily", "--from", "noon"], 1, "'noon' is no time: write 2027-03-28"),
        (
            ["--cron", "@daily", "--timezone", "Europe/Paris", "--from", "2027-03-28T02:30"],
            1,
            "does not exist in Europe/Paris",
        ),
    ],
)
def test_what_cannot_be_previewed_gets_one_sentence(arguments: list[str], code: int, complaint: str) -> None:
    said = call("schedules", "next", *arguments)
    assert said.code == code
    assert complaint in " ".join(said.err.split())
    assert "Traceback" not in said.err


# -- pausing ---------------------------------------------------------------------------------------


def test_pause_and_resume_are_said_once_and_harmless_twice(shop: str) -> None:
    assert call("schedules", "pause", "close_books", "collect/eu", url=shop).out.splitlines() == [
        "paused close_books/default",
        "paused collect/eu",
    ]
    paused = schedules(shop)
    assert [name for name, row in paused.items() if not row.enabled] == ["close_books/default", "collect/eu"]
    said = call("schedules", "pause", "close_books", url=shop)
    assert (said.code, said.out) == (0, "close_books/default was paused already\n")
    assert schedules(shop) == paused
    assert call("schedules", "resume", "--job", "collect", url=shop).out.splitlines() == [
        "resumed collect/eu",
        "collect/us was enabled already",
    ]


def test_pausing_several_is_all_or_none(shop: str) -> None:
    before = schedules(shop)
    assert call("schedules", "pause", "close_books", "colect/eu", url=shop).code == 1
    assert call("schedules", "pause", "--job", "nothing", url=shop).code == 1
    assert call("schedules", "pause", url=shop).code == 2
    said = call("schedules", "pause", "--all", url=shop)
    assert (said.code, "give --yes" in said.err) == (1, True)
    assert schedules(shop) == before
    changed = call("schedules", "pause", "--all", "--yes", "--json", url=shop).data
    assert [(each["schedule"], each["changed"]) for each in changed] == [(name, True) for name in before]
    assert not any(row.enabled for row in schedules(shop).values())


# -- editing ---------------------------------------------------------------------------------------


def test_an_edit_says_what_it_changed(shop: str) -> None:
    said = call(
        "schedules", "edit", "collect/eu", "--cron", "every 5m", "--priority", "1", "--param", "n=20", "--param",
        "city=Rome", "--skip-if-older-than", "2d", "--overlap", "queue", "--disable", url=shop,
    )  # fmt: skip
    assert said.code == 0, said.err
    assert sorted(said.out.splitlines()) == [
        "    cron: every 1h -> every 5m",
        "    enabled: yes -> no",
        "    overlap: skip -> queue",
        '    parameters: {"n":1} -> {"city":"Rome","n":20}',
        "    priority: 5 -> 1",
        "    skip_if_older_than_seconds: 1d -> 2d",
        "changed collect/eu",
    ]
    row = schedules(shop)["collect/eu"]
    assert (row.cron, row.priority, row.enabled, row.overlap) == ("every 5m", 1, False, "queue")
    assert row.skip_if_older_than_seconds == 2 * 86400
    assert call("schedules", "edit", "collect/eu", "--priority", "1", url=shop).out == "collect/eu: nothing to change\n"
    call("schedules", "edit", "collect/eu", "--unset", "n", url=shop)
    assert schedules(shop)["collect/eu"].parameters.replace(" ", "") == '{"city":"Rome"}'
    call("schedules", "edit", "collect/eu", "--next-run-at", "2027-01-01T00:00+01:00", url=shop)
    assert schedules(shop)["collect/eu"].next_run_at == datetime(2026, 12, 31, 23, tzinfo=UTC)
    call("schedules", "edit", "collect/eu", "--next-run-at", "auto", url=shop)
    assert schedules(shop)["collect/eu"].next_run_at is None


@pytest.mark.parametrize(
    ("options", "code", "complaint"),
    [
        ([], 2, "say what to change"),
        (["--cron", "0 25 * * *"], 1, "in field 'hour': '25'"),
        (["--timezone", "Mars/Base"], 1, "unknown time zone"),
        (["--priority", "500"], 1, "priority must be from 0 (first) to 99, not 500"),
        (["--overlap", "maybe"], 1, "overlap 'maybe' is none of skip, queue, queue_one, cancel"),
        (["--parameters", "[1]"], 1, "parameters must be a JSON object"),
        (["--param", "n"], 1, "is not of the form KEY=VALUE"),
        (["--unset", "m"], 1, "collect/eu has no parameter 'm'; it has: n"),
        (["--skip-if-older-than", "soon"], 1, "'soon' is no duration"),
        (["--cron", "@daily", "--next-run-at", "now"], 2, "computes it anew"),
    ],
)
def test_a_bad_edit_changes_nothing(shop: str, options: list[str], code: int, complaint: str) -> None:
    before = schedules(shop)
    said = call("schedules", "edit", "collect/eu", *options, url=shop)
    assert (said.code, complaint in said.err) == (code, True), said.err
    assert schedules(shop) == before


def in_terminal(*arguments: str, editor: str, answer: str, folder: Path, url: str) -> tuple[int, str]:
    """With a terminal, and somebody who answers once asked."""
    (folder / "editor.py").write_text(editor)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "rota", *arguments], stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True,
        env=os.environ | {"ROTA_URL": url, "EDITOR": f"{sys.executable} {folder / 'editor.py'}", "NO_COLOR": "1",
                          "COLUMNS": "120", "TERM": "dumb"},
    )  # fmt: skip
    os.close(theirs)
    said, answered = "", False
    try:
        while True:
            try:
                chunk = os.read(ours, 4096)
            except OSError:  # the terminal is closed
                break
            if not chunk:
                break
            said += chunk.decode()
            if not answered and "[y/N]" in said:
                answered = True
                os.write(ours, f"{answer}\n".encode())
        return process.wait(60), said
    finally:
        os.close(ours)
        if process.poll() is None:
            process.kill()
            process.wait()


CHANGE = """
import sys
text = open(sys.argv[1]).read()
assert 'cron = "every 1h"' in text, text
open(sys.argv[1], "w").write(text.replace("every 1h", "every 3h"))
"""
MEANWHILE = """
import subprocess, sys
subprocess.run([sys.executable, "-m", "rota", "schedules", "edit", "collect/eu", "--priority", "9"], check=True)
"""


@pytest.mark.parametrize(("answer", "cron"), [("y", "every 3h"), ("n", "every 1h")])
def test_an_edit_without_options_is_made_in_the_editor(shop: str, tmp_path: Path, answer: str, cron: str) -> None:
    edit = ("schedules", "edit", "collect/eu")
    code, said = in_terminal(*edit, editor=CHANGE, answer=answer, folder=tmp_path, url=shop)
    assert (code, "cron: every 1h -> every 3h" in said) == (0 if answer == "y" else 1, True), said
    assert schedules(shop)["collect/eu"].cron == cron


def test_an_edit_does_not_write_over_that_of_somebody_else(shop: str, tmp_path: Path) -> None:
    edit = ("schedules", "edit", "collect/eu")
    code, said = in_terminal(*edit, editor=CHANGE + MEANWHILE, answer="y", folder=tmp_path, url=shop)
    assert (code, "somebody changed it since it was read" in said) == (1, True), said
    row = schedules(shop)["collect/eu"]
    assert (row.cron, row.priority) == ("every 1h", 9)


# -- help ------------------------------------------------------------------------------------------

COMMANDS = ("list", "show", "next", "pause", "resume", "trigger", "edit", "backfill", "diff", "apply", "export")


@pytest.mark.parametrize("command", [*(("schedules", name) for name in COMMANDS), ("import", "crontab")])
def test_help_has_an_example(command: tuple[str, str]) -> None:
    said = call(*command, "--help")
    assert said.code == 0
    assert f"rota {' '.join(command)}" in said.out.split("Example:")[1]


def test_ctrl_c_at_a_question_changes_nothing_and_is_130(shop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(question: str, yes: bool) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise typer.Abort from None  # as a prompt does

    monkeypatch.setattr("rota.cli.schedule_edit.sure", interrupted)
    said = call("schedules", "pause", "--all", url=shop)
    assert (said.code, said.err) == (130, "rota: nothing was changed\n")


def test_ctrl_c_at_a_question_changes_nothing(shop: str) -> None:
    before = schedules(shop)
    code, written = on_a_terminal("schedules", "pause", "--all", interrupt_at="[y/N]", ROTA_URL=shop)
    assert code == 130
    assert "Traceback" not in written
    assert schedules(shop) == before
