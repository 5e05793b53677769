"""`rota schedules trigger` and `backfill`: runs made by hand."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta

import pytest

from rota import Rota
from rota.policy import Decider
from rota.store import Declaration, RunFilter, RunRow
from tests.cli.calling import Said, call
from tests.harness import move_clock

NOW = datetime(2031, 5, 14, 12, 0, 30, tzinfo=UTC)


def service(url: str) -> Rota:
    app = Rota(url)

    @app.every("1h", parameters={"n": 7})
    async def good(n: int = 0) -> int:
        return n

    @app.every("1h")
    async def bad() -> None:
        raise ValueError("no such luck")

    return app


@pytest.fixture
def desk(url: str) -> str:
    """An hourly schedule, and one of Paris; the clock stands at noon of a day to come."""

    async def fill() -> None:
        app = Rota(url)
        async with app.client():
            await app.store.put_schedule(Declaration(job_id="hourly", cron="0 * * * *"))
            await app.store.put_schedule(Declaration(job_id="paris", cron="0 3 * * *", timezone="Europe/Paris"))
        await move_clock(url, (NOW - datetime.now(UTC)).total_seconds())

    asyncio.run(fill())
    return url


def runs(url: str, job: str) -> list[RunRow]:
    async def look() -> list[RunRow]:
        app = Rota(url)
        async with app.client():
            return await app.store.find_runs(RunFilter(job_id=job, limit=100_000))

    return sorted(asyncio.run(look()), key=lambda run: run.id)


async def test_trigger_waits_for_the_end_and_exits_by_it(url: str) -> None:
    async with service(url):

        async def trigger(*arguments: str) -> Said:
            return await asyncio.to_thread(call, "schedules", "trigger", *arguments, "--timeout", "30", url=url)

        said = await trigger("good", "--wait")
        assert said.code == 0, said.err
        assert re.fullmatch(r"run \d+ of good/default\nrun \d+ succeeded after \d+s\n7\n", said.out)
        said = await trigger("bad", "--wait")
        assert (said.code, "failed after" in said.out, "no such luck" in said.err) == (1, True, True)
        document = (await trigger("good", "--wait", "--json")).data
        assert (document["created"], document["run"]["state"], document["run"]["result"]) == (True, "succeeded", 7)


def test_trigger_says_when_nobody_could_run_it(desk: str) -> None:
    said = call("schedules", "trigger", "hourly", url=desk)
    assert (said.code, "no running replica declares job 'hourly': it waits for one" in said.err) == (0, True)
    said = call("schedules", "trigger", "hourly", "--wait", "--timeout", "0.1", url=desk)
    assert (said.code, "has not finished within 0.1 s; it goes on" in said.err) == (1, True)


def test_the_run_of_a_tick_is_made_once(desk: str) -> None:
    first = call("schedules", "trigger", "paris", "--due-at", "2031-05-13T03:00", url=desk)
    again = call("schedules", "trigger", "paris", "--due-at", "2031-05-13T01:00Z", url=desk)
    assert re.match(r"run \d+ of the tick 2031-05-13 03:00 CEST of paris/default\n", first.out)
    assert "was there already" in again.out
    [run] = runs(desk, "paris")
    assert run.due_at == datetime(2031, 5, 13, 1, tzinfo=UTC)
    said = call("schedules", "trigger", "paris", "--due-at", "2031-05-13T04:00", url=desk)
    assert said.code == 1
    assert "does not tick at 2031-05-13 04:00 CEST; its ticks near it: 2031-05-13 03:00 CEST and" in said.err
    assert len(runs(desk, "paris")) == 1


def test_backfill_makes_what_the_ledger_does_not_have_and_nothing_twice(desk: str) -> None:
    call("schedules", "trigger", "hourly", "--due-at", "2031-05-14T03:00", url=desk)
    range_ = ("schedules", "backfill", "hourly", "--from", "2031-05-14T01:00", "--until", "2031-05-14T05:00")
    said = call(*range_, "--dry-run", url=desk)
    assert said.out.splitlines() == [
        "hourly/default from 2031-05-14 01:00 UTC to 2031-05-14 05:00 UTC: 5 ticks",
        "  1 have a run",
        "  0 were skipped",
        "  4 are not in the ledger",
    ]
    assert len(runs(desk, "hourly")) == 1
    said = call(*range_, url=desk)
    assert (said.code, "Make 4 runs? Nobody can be asked here: give --yes" in said.err) == (1, True)
    assert "made 4 runs of hourly/default" in call(*range_, "--yes", url=desk).out
    made = runs(desk, "hourly")
    assert sorted(run.due_at.hour for run in made if run.due_at) == [1, 2, 3, 4, 5]
    assert call(*range_, "--yes", url=desk).code == 0
    assert call(*range_, "--yes", "--json", url=desk).data["made"] == 0
    assert runs(desk, "hourly") == made


def test_backfill_makes_skipped_ticks_only_when_asked(desk: str) -> None:
    async def outage() -> None:
        """Five ticks are missed in one row, one by itself; the seventh is made."""
        app = Rota(desk)
        decide = Decider(late_after=60, check=lambda job, parameters: None)
        async with app.client():
            await app.store.fire_due(decide, jobs=["hourly"], limit=10, advisory=True, leave=[])
            for hours in (6, 8):
                await move_clock(desk, (NOW + timedelta(hours=hours) - datetime.now(UTC)).total_seconds())
                await app.store.fire_due(decide, jobs=["hourly"], limit=10, advisory=True, leave=[])

    asyncio.run(outage())
    range_ = ("schedules", "backfill", "hourly", "--from", "2031-05-14T13:00", "--yes")
    assert [(run.state, run.missed_count) for run in runs(desk, "hourly")] == [
        ("skipped", 5), ("queued", None), ("skipped", None), ("skipped", None),
    ]  # fmt: skip
    document = call(*range_, "--json", url=desk).data
    assert {key: document[key] for key in ("ticks", "known", "skipped", "absent", "made")} == {
        "ticks": 8, "known": 1, "skipped": 7, "absent": 0, "made": 0,
    }  # fmt: skip
    assert "7 were skipped; --skipped makes their runs too" in call(*range_, url=desk).out
    assert call(*range_, "--skipped", "--json", url=desk).data["made"] == 7
    found = runs(desk, "hourly")
    assert sum(run.missed_count or 0 for run in found) == 0
    ticks = [run.due_at for run in found if run.missed_count is None]
    assert sorted(tick.hour for tick in ticks if tick) == list(range(13, 21))
    assert {run.state for run in found if run.missed_count is None} == {"queued"}
    assert call(*range_, "--skipped", "--json", url=desk).data["made"] == 0


def test_a_time_without_an_offset_is_in_the_zone_of_the_schedule(desk: str) -> None:
    range_ = ("schedules", "backfill", "paris", "--from", "2031-05-13T03:00", "--until", "2031-05-13T03:00")
    document = call(*range_, "--dry-run", "--json", url=desk).data
    assert (document["ticks"], document["from"]) == (1, "2031-05-13T01:00:00Z")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--from", "2029-01-01"], "more than 10,000: narrow it, or allow them by --limit 20725"),
        (["--from", "-1d", "--until", "+1d"], "is to come: hourly/default makes those ticks itself"),
        (["--from", "-1d", "--until", "-2d"], "is after --until"),
    ],
)
def test_backfill_refuses_what_nobody_means(desk: str, options: list[str], complaint: str) -> None:
    said = call("schedules", "backfill", "hourly", *options, "--yes", url=desk)
    assert (said.code, complaint in said.err) == (1, True), said.err
    assert runs(desk, "hourly") == []


def test_a_large_backfill_is_made_in_several_transactions(desk: str) -> None:
    said = call("schedules", "backfill", "hourly", "--from", "-20d", "--yes", "--json", url=desk)
    assert (said.data["ticks"], said.data["made"]) == (480, 480)
    found = runs(desk, "hourly")
    assert len({run.due_at for run in found}) == 480
    assert found == sorted(found, key=lambda run: run.due_at or NOW)
