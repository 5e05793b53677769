"""`rota schedules diff`, `apply` and `export`: the table and the file."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from rota import Rota
from rota.baseline import read_baseline
from rota.errors import StaleWrite
from rota.plan import carry_out, make_plan
from rota.store import Declaration, JobRow, ScheduleRow
from tests.cli.calling import call
from tests.harness import execute

FILE = """
[defaults]
timezone = "Europe/Paris"

[[schedule]]
job = "close_books"
cron = "0 4 * * *"
parameters = { region = "eu", days = [1, 2] }

[[schedule]]
job = "collect"
name = "us"
cron = "every 5m"
timezone = "UTC"
"""


@pytest.fixture
def desk(url: str) -> str:
    """One schedule that code declares, two that somebody typed."""

    async def fill() -> None:
        app = Rota(url)
        async with app.client():
            await app.store.declare([JobRow(job_id="nightly")], [Declaration(job_id="nightly", cron="@daily")])
            await app.store.put_schedule(Declaration(job_id="close_books", cron="0 3 * * *", priority=2))
            await app.store.put_schedule(Declaration(job_id="old", cron="@hourly"))

    asyncio.run(fill())
    return url


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "schedules.toml").write_text(FILE)
    return tmp_path / "schedules.toml"


def table(url: str) -> dict[str, ScheduleRow]:
    async def look() -> list[ScheduleRow]:
        app = Rota(url)
        async with app.client():
            return await app.store.list_schedules()

    return {f"{row.job_id}/{row.name}": row for row in asyncio.run(look())}


def test_diff_shows_what_is_new_changed_and_removed(desk: str, file: Path) -> None:
    before = table(desk)
    said = call("schedules", "diff", str(file), "--prune", url=desk)
    assert said.code == 3
    assert said.out.splitlines() == [
        "+ collect/us",
        "    cron: every 5m",
        "    timezone: UTC",
        "~ close_books/default",
        "    cron: 0 3 * * * -> 0 4 * * *",
        "    timezone: UTC -> Europe/Paris",
        '    parameters: {} -> {"days":[1,2],"region":"eu"}',
        "- old/default",
        "not in the file, but declared by code, so left alone: nightly/default",
    ]
    assert "old/default" not in call("schedules", "diff", str(file), url=desk).out
    document = call("schedules", "diff", str(file), "--prune", "--json", url=desk).data
    assert [each["job_id"] for each in document["add"]] == ["collect"]
    assert [each["schedule"] for each in document["change"]] == ["close_books/default"]
    assert [each["schedule"] for each in document["remove"]] == ["old/default"]
    assert document["left"] == ["nightly/default"]
    assert table(desk) == before


def test_apply_makes_the_difference_and_then_there_is_none(desk: str, file: Path) -> None:
    before = table(desk)
    refused = call("schedules", "apply", str(file), url=desk)
    assert (refused.code, "Make 1 new, 1 changed? Nobody can be asked here: give --yes" in refused.err) == (1, True)
    assert table(desk) == before
    said = call("schedules", "apply", str(file), "--yes", url=desk)
    assert (said.code, said.out.splitlines()[-1]) == (0, "applied 1 new, 1 changed")
    after = table(desk)
    books = after["close_books/default"]
    assert (books.cron, books.timezone, json.loads(books.parameters)) == (
        "0 4 * * *", "Europe/Paris", {"region": "eu", "days": [1, 2]},
    )  # fmt: skip
    assert books.priority == 2  # the file says nothing about it
    assert after["old/default"] == before["old/default"]
    for _ in range(2):
        again = call("schedules", "apply", str(file), url=desk)
        assert (again.code, again.out) == (0, "no difference\n")
    assert call("schedules", "diff", str(file), url=desk).code == 0
    assert table(desk) == after


def test_a_pause_survives_a_file_that_does_not_speak_of_it(desk: str, file: Path) -> None:
    call("schedules", "apply", str(file), "--yes", url=desk)
    call("schedules", "pause", "close_books", url=desk)
    assert call("schedules", "diff", str(file), url=desk).code == 0
    file.write_text(FILE.replace('timezone = "Europe/Paris"', 'timezone = "Europe/Paris"\nenabled = true'))
    assert "enabled: no -> yes" in call("schedules", "diff", str(file), url=desk).out


def test_prune_removes_what_is_not_in_the_file_but_never_what_code_declares(desk: str, file: Path) -> None:
    said = call("schedules", "apply", str(file), "--prune", "--yes", url=desk)
    assert (said.code, "applied 1 new, 1 changed, 1 removed" in said.out) == (0, True)
    assert sorted(table(desk)) == ["close_books/default", "collect/us", "nightly/default"]
    assert call("schedules", "diff", str(file), "--prune", url=desk).code == 0


def test_an_export_is_a_file_without_difference_and_makes_the_same_table_elsewhere(desk: str, tmp_path: Path) -> None:
    awkward = {"a b": None, 'quote"d': ["é\u007f\n", {"x": 1.5}], "flag": True}
    call("schedules", "edit", "old", "--parameters", json.dumps(awkward), "--skip-if-older-than", "1d12h", url=desk)
    call("schedules", "edit", "close_books", "--parameters", '{"a b": {"é": ["\\u007f", 1]}}', url=desk)
    call("schedules", "pause", "old", url=desk)
    out = tmp_path / "made.toml"
    assert call("schedules", "export", str(out), url=desk).out == f"wrote 3 schedules to {out}\n"
    said = call("schedules", "export", str(out), url=desk)
    assert (said.code, "is there already; --force writes over it" in said.err) == (1, True)
    assert call("schedules", "export", url=desk).out == out.read_text()
    assert call("schedules", "diff", str(out), "--prune", url=desk).out == "no difference\n"
    elsewhere = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    call("migrate", url=elsewhere)
    assert call("schedules", "apply", str(out), "--yes", url=elsewhere).code == 0
    assert call("schedules", "export", url=elsewhere).out == out.read_text()
    assert not table(elsewhere)["old/default"].enabled
    assert json.loads(table(elsewhere)["old/default"].parameters) == awkward


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[[schedule]]\njob = "a"\ncrom = "@daily"\n', ":3: unknown key 'crom'; did you mean 'cron'?"),
        ('[[schedule]]\njob = "a"\ncron = "@daily"\n\n[[schedule]]\njob = "b"\ncron = "0 25 * * *"\n',
         ":7: bad schedule expression '0 25 * * *' in field 'hour'"),
        ('[[schedule]]\njob = "a"\ncron = "@daily"\n[[schedule]]\ncron = "@daily"\njob = "a"\n',
         ":4: a/default is there twice; first at "),
        ('[defaults]\ntimezone = "Mars/Base"\n[[schedule]]\njob = "a"\n', ":2: unknown time zone 'Mars/Base'"),
        ('[defaults]\njob = "a"\n', ":2: 'job' belongs to each [[schedule]]"),
        ('[[schedule]]\ncron = "@daily"\n', ":1: this schedule says no job"),
        ('[[schedule]]\njob = "a"\npriority = "high"\n', ":3: priority must be a whole number, not 'high'"),
        ('[[schedule]]\njob = "a"\nenabled = 1\n', ":3: enabled must be true or false, not 1"),
        ('[[schedule]]\njob = "a"\nparameters = { day = 2027-01-01 }\ncron = "@daily"\n', None),
        ('[[schedule]]\njob = "a"\nparameters = "[1]"\n', ":3: parameters must be a JSON object"),
        ('[[schedule]]\njob = "a"\n[schedule.parameters]\nx = 1\n', ":1: a/default is not in the table yet"),
        ('[[schedule]]\njob = "a\\u0000"\n', ":2: job 'a\\x00', schedule 'default': a name must not be empty"),
        ('[[schedule]]\njob = "a"\nname = ""\n', ":3: schedule name '' of job 'job' must have 1 to 200 characters"),
        ('[[schedule]]\njob = "a"\nparameters = { x = inf }\n', ":3: parameters cannot hold inf"),
        ('[[schedule]]\njob = "a"\nparameters = { x = ["\\u0000"] }\n', ":3: parameters cannot hold the character NUL"),
        ('[[schedule]]\njob = "a"\nconcurrency_limit = 9999999999\n', ":3: concurrency_limit must be 0 (no limit) or"),
        ('[[schedules]]\njob = "a"\n', ": unknown key 'schedules'; a file has [defaults] and [[schedule]] only"),
        ('[schedule]\njob = "a"\n', ": schedules must be an array of tables"),
        ('[[schedule]\njob = "a"\n', ": not TOML: Expected "),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_with_its_place_before_anything_changes(
    tmp_path: Path, text: str, complaint: str | None
) -> None:
    url = f"sqlite:///{tmp_path / 'rota.db'}"
    call("migrate", url=url)
    file = tmp_path / "bad.toml"
    file.write_text(text)
    said = call("schedules", "apply", str(file), "--yes", url=url)
    if complaint is None:  # a date of TOML becomes a string of JSON
        assert (said.code, json.loads(table(url)["a/default"].parameters)) == (0, {"day": "2027-01-01"})
        return
    assert (said.code, f"{file}{complaint}" in said.err) == (1, True), said.err
    assert call("schedules", "diff", str(file), url=url).code == 1
    assert table(url) == {}


def test_a_file_that_is_not_there_or_comes_by_standard_input(desk: str, tmp_path: Path) -> None:
    said = call("schedules", "diff", str(tmp_path / "none.toml"), url=desk)
    assert (said.code, "none.toml cannot be read: No such file or directory" in said.err) == (1, True)
    said = call("schedules", "diff", "-", url=desk, stdin='[[schedule]]\njob = "a"\ncron = "x"\n')
    assert (said.code, "standard input:3: bad schedule expression 'x'" in said.err) == (1, True)
    assert call("schedules", "diff", "-", url=desk, stdin=FILE).code == 3


async def test_what_was_not_shown_is_not_done(desk: str) -> None:
    """Somebody edits, adds or removes a schedule between the look and the deed."""
    entries = read_baseline(FILE, "schedules.toml")
    app = Rota(desk)
    async with app.client():
        for meanwhile in (
            "update scheduler_configs set cron = '0 9 * * *' where job_id = 'close_books'",
            "insert into scheduler_configs (job_id, name, cron) values ('collect', 'us', 'every 1m')",
            "delete from scheduler_configs where job_id = 'old'",
        ):
            shown = make_plan(entries, await app.store.list_schedules(), prune=True)
            await execute(desk, meanwhile)
            before = await app.store.list_schedules()
            with pytest.raises(StaleWrite, match="since the difference was shown"):
                await app.store.revise_schedules(carry_out(shown, entries, prune=True))
            assert await app.store.list_schedules() == before
        # The scheduler's own writes are no reason to refuse.
        shown = make_plan(entries, await app.store.list_schedules(), prune=True)
        await execute(desk, "update scheduler_configs set next_run_at = '2030-01-01 00:00:00.0', version = version + 1")
        await app.store.revise_schedules(carry_out(shown, entries, prune=True))
        assert make_plan(entries, await app.store.list_schedules(), prune=True).empty
