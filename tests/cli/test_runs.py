"""`rota runs list|show|retry|cancel`, as a person or a script meets them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rota import Rota
from rota.cli.since import parse_since
from rota.cli.story import REASONS
from rota.errors import BadInput
from rota.store import Store
from tests.cli.calling import Said, called
from tests.docs.test_snippets import rows_of, under
from tests.harness import freeze_clock
from tests.patience import PATIENCE
from tests.store.steps import START, claim, claim_one, enqueue, finish, fire, opened, scheduled

NOON = START.replace(second=0)


def ids(said: Said) -> list[int]:
    assert said.code == 0, said.err
    return [row["id"] for row in json.loads(said.out)]


@asynccontextmanager
async def history(url: str) -> AsyncIterator[Store]:
    """1 made the books, with key and family; 2 failed; then an hourly schedule ran, and missed 11 ticks."""
    async with opened(url) as store:
        await freeze_clock(url, START)
        await enqueue(store, job_id="books", key="order-7", parameters='{"year":2031}', correlation_id="order-7")
        done = await claim_one(store, jobs=["books"])
        await store.report_progress([(done.id, done.token, '{"done":3,"total":10,"note":"march"}')])
        await freeze_clock(url, START + timedelta(seconds=42))
        await finish(store, done, result='{"pages":3}')
        await enqueue(store, job_id="mail", parent_id=1, correlation_id="order-7")
        failed = await claim_one(store, jobs=["mail"])
        await finish(store, failed, "failed", error='ValueError: no such address\n\n  File "mail.py", line 3')
        await scheduled(store)
        for hours in (1, 13):
            await freeze_clock(url, START + timedelta(hours=hours))
            await fire(store)
            await finish(store, await claim_one(store))
        yield store


async def test_runs_are_listed_newest_first_with_what_one_wants_to_know(url: str) -> None:
    async with history(url):
        said = await called("runs", "list", "--url", url)
        assert said.code == 0
        heading, *lines = said.lines
        assert heading.split() == ["id", "job", "schedule", "state", "due", "started", "took", "attempts", "replica"]
        rows = {line.split()[0]: line for line in lines}
        assert list(rows)[-2:] == ["2", "1"]
        assert rows["1"].split()[1:4] == ["books", "-", "succeeded"]
        assert "42s" in rows["1"]
        assert "replica 1 (gone)" in rows["1"]
        assert [line for line in lines if "skipped (catch_up, 11 ticks)" in line]
        assert all("2031-05-14 12:0" in rows[number] for number in "12")  # it is the next day by now


async def test_filters_narrow_the_list(url: str) -> None:
    async with history(url) as store:

        async def listed(*arguments: str) -> list[int]:
            return ids(await called("runs", "list", "--json", "--url", url, *arguments))

        every = await listed()
        assert every[-2:] == [2, 1]
        assert await listed("--job", "books") == [1]
        assert await listed("--state", "failed") == [2]
        assert await listed("--state", "failed", "--state", "skipped") == [every[1], 2]
        assert await listed("--key", "order-") == [1]
        assert await listed("--correlation", "order-7") == [2, 1]
        assert await listed("--schedule", "work") == every[:-2] == await listed("--schedule", "work/default")
        assert await listed("--since", "11h") == [number for number in every if number not in (1, 2)][:-1]
        assert await listed("--since", "2031-05-14T12:00:30") == every[:-1]
        assert await listed("--limit", "1") == every[:1]
        assert (await listed("--longest", "--limit", "1")) == [1]
        empty = await called("runs", "list", "--job", "nobody", "--url", url)
        assert (empty.code, empty.out) == (0, "no such run\n")
        await scheduled(store, name="second")
        # A job alone is its schedule `default`, as everywhere.
        assert await listed("--schedule", "work") == await listed("--schedule", "work/default")
        unknown = await called("runs", "list", "--schedule", "nope", "--url", url)
        assert (unknown.code, "there is no schedule 'nope'; there are: work/default" in unknown.err) == (1, True)
        misspelt = await called("runs", "list", "--schedule", "wrk", "--url", url)
        assert (misspelt.code, "there is no schedule 'wrk'; near it: work" in misspelt.err) == (1, True)
        by_id = await called("runs", "list", "--schedule", "1", "--json", "--url", url)
        assert ids(by_id) == ids(await called("runs", "list", "--schedule", "work", "--json", "--url", url))
        no_text = await called("runs", "list", "--job", "a\udcff", "--url", url)
        assert (no_text.code in (1, 2), "\\udcff" in no_text.err) == (True, True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90s", NOON - timedelta(seconds=90)),
        ("30m", NOON - timedelta(minutes=30)),
        ("1.5h", NOON - timedelta(minutes=90)),
        ("2d", NOON - timedelta(days=2)),
        ("1w", NOON - timedelta(weeks=1)),
        ("today", datetime(2031, 5, 14, tzinfo=UTC)),
        ("Yesterday", datetime(2031, 5, 13, tzinfo=UTC)),
        ("3:04", datetime(2031, 5, 14, 3, 4, tzinfo=UTC)),
        ("2031-01-02", datetime(2031, 1, 2, tzinfo=UTC)),
        ("2031-01-02T03:04", datetime(2031, 1, 2, 3, 4, tzinfo=UTC)),
        ("2031-01-02 03:04:05+02:00", datetime(2031, 1, 2, 1, 4, 5, tzinfo=UTC)),
    ],
)
def test_since_is_read_as_people_type_it(text: str, expected: datetime) -> None:
    assert parse_since(text, NOON) == expected


@pytest.mark.parametrize("text", ["", "soon", "5 parsecs", "2031-13-01", "99:99", "99999999999999d"])
def test_since_that_is_no_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(BadInput, match=r"is no time: say 30m, 1h"):
        parse_since(text, NOON)


async def test_a_run_is_shown_with_all_that_belongs_to_it(url: str) -> None:
    async with history(url):
        shown = await called("runs", "show", "1", "--url", url)
        assert shown.code == 0
        said = " ".join(shown.out.split())
        for text in (
            "2031-05-14 12:00:10 made 2031-05-14 12:00:10 started 2031-05-14 12:00:52 succeeded",
            "took 42s", 'parameters {"year": 2031}', "progress 3/10 march", 'result {"pages": 3}', "key order-7",
            "children 2 mail: failed", "correlation order-7",
        ):  # fmt: skip
            assert text in said
        failed = await called("runs", "show", "2", "--url", url)
        assert "1 books: succeeded" in failed.out
        assert 'ValueError: no such address\n\n  File "mail.py", line 3\n' in failed.out
        document = (await called("runs", "show", "1", "--json", "--url", url)).data
        assert (document["parameters"], document["result"]) == ({"year": 2031}, {"pages": 3})
        assert (document["children"], document["correlated"], document["took_seconds"]) == ([2], [2], 42.0)
        gone = await called("runs", "show", "99", "--url", url)
        assert (gone.code, gone.err) == (1, "rota: there is no run 99; it may have been pruned\n")


async def test_a_tick_that_did_not_run_says_why_in_words(url: str) -> None:
    async with history(url):
        [skipped] = ids(await called("runs", "list", "--state", "skipped", "--json", "--url", url))
        said = " ".join((await called("runs", "show", str(skipped), "--url", url)).out.split())
        assert f"why it did not run because {REASONS['catch_up']}; this row stands for 11 ticks" in said
        assert "2031-05-14 14:00:00 to 00:00:00" in said


def test_every_documented_reason_has_its_words() -> None:
    page = Path(__file__).parents[2] / "docs" / "schedules.md"
    assert [name.strip("`") for name in rows_of(under(page, "Why a tick did not run"))] == list(REASONS)


async def test_a_queued_run_says_what_it_waits_for(url: str) -> None:
    async with opened(url) as store:
        await enqueue(store, delay=3600.0)
        await enqueue(store)
        later, now = [" ".join((await called("runs", "show", n, "--url", url)).out.split()) for n in "12"]
        assert "why it waits for its time, in 1h" in later or "in 59m" in later
        assert "why it waits for a replica: none that lives knows job 'work'" in now
        lifeline = await store.join("web-1", "here", 1, ["work"])
        now = " ".join((await called("runs", "show", "2", "--url", url)).out.split())
        assert "or for a replica that has a hand free" in now
        await lifeline.close()


async def test_runs_are_retried_each_by_itself(url: str) -> None:
    async with history(url) as store:
        said = await called("runs", "retry", "1", "2", "99", "--url", url)
        assert said.code == 1
        assert said.out == "run 2 queued again\n"
        assert said.err.splitlines() == [
            "rota: run 1 is succeeded; only a failed, cancelled or skipped run can be retried",
            "rota: there is no run 99",
        ]
        [row] = await store.get_runs([2])
        assert (row.state, row.attempt, row.error) == ("queued", 0, None)
        again = await called("runs", "retry", "2", "--json", "--url", url)
        assert again.code == 1
        assert [(row["id"], row["done"]) for row in again.data] == [(2, False)]


async def test_many_are_retried_by_what_they_have_in_common_once_somebody_says_yes(url: str) -> None:
    async with opened(url) as store:
        for _ in range(3):
            await enqueue(store)
        for claimed in await claim(store, 3):
            await finish(store, claimed, "failed", error="no")
        asked = await called("runs", "retry", "--failed", "--job", "work", "--since", "1d", "--url", url)
        assert (asked.code, asked.out.strip()) == (1, "")
        assert "Retry 3 runs (1, 2, 3)?" in asked.err
        assert "Nobody can be asked here: give --yes" in asked.err
        assert {row.state for row in await store.get_runs([1, 2, 3])} == {"failed"}
        said = await called("runs", "retry", "--failed", "--job", "work", "--since", "1d", "--yes", "--url", url)
        assert (said.code, said.lines) == (0, [f"run {n} queued again" for n in (1, 2, 3)])
        none = await called("runs", "retry", "--failed", "--yes", "--url", url)
        assert (none.code, none.err) == (1, "rota: there is no such run to retry\n")


async def test_a_retried_run_runs(url: str) -> None:
    app, tries = Rota(url), []

    @app.job()
    async def flaky() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise RuntimeError("not yet")
        return "now"

    async with app:
        run = await flaky.enqueue()
        with pytest.raises(Exception, match="not yet"):
            await run.result(PATIENCE)
        assert (await called("runs", "retry", str(run.id), "--url", url)).code == 0
        assert await run.result(PATIENCE) == "now"


async def test_runs_are_cancelled_or_asked_to_stop(url: str) -> None:
    async with history(url) as store:
        await enqueue(store, job_id="slow")
        running = await claim_one(store, jobs=["slow"])
        queued = await enqueue(store, job_id="slow")
        said = await called("runs", "cancel", str(queued), str(running.id), "1", "--url", url)
        assert said.lines == [f"run {queued} cancelled", f"run {running.id} asked to stop"]
        assert (said.code, said.err) == (1, "rota: run 1 is succeeded already\n")
        more = [await enqueue(store, job_id="slow") for _ in range(2)]
        said = await called("runs", "cancel", "--job", "slow", "--state", "queued", "--yes", "--url", url)
        assert (said.code, said.lines) == (0, [f"run {number} cancelled" for number in more])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["retry"], "name the runs to retry, or choose them by options"),
        (["retry", "1", "--failed"], "name the runs to retry, or choose them by options"),
        (["retry", "--job", "x"], "say which of them: --failed"),
        (["cancel"], "name the runs to cancel, or choose them by options"),
        (["cancel", "--state", "failed"], "only what is queued or running can be cancelled"),
        (["list", "--state", "lost"], "'lost' is not one of 'queued', 'running'"),
        (["list", "--limit", "0"], "'--limit'"),
        (["list", "--limit", str(2**63)], "9223372036854775808 is too large"),
        (["show", str(2**63)], "9223372036854775808 is too large"),
        (["retry", "1", str(2**63)], "9223372036854775808 is too large"),
        (["follow", str(2**63)], "9223372036854775808 is too large"),
        (["show"], "Missing argument 'ID'"),
        (["show", "one"], "Invalid value for 'ID'"),
        (["follow", "1", "--job", "x"], "one run, or those that the options choose"),
        (["nonsense"], "No such command 'nonsense'"),
    ],
)
async def test_wrong_usage_gets_one_sentence_and_the_way_to_the_help(arguments: list[str], complaint: str) -> None:
    said = await called("runs", *arguments)
    assert said.code == 2
    assert said.out == ""
    assert said.err.startswith("rota: ")
    assert complaint in said.err
    assert said.err.rstrip().endswith("--help`")
    assert len(said.err.splitlines()) == 1
