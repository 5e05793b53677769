"""Ticks that are waited for: made in their instant, and as they would be if nobody had been there ahead of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from rota.contract.places import Places
from rota.policy import Decider
from rota.store import Decision, DueSchedule, Fired, JobRow
from tests.harness import execute
from tests.store.steps import (
    HOURLY,
    JOB,
    admitted,
    count,
    enqueue,
    finish,
    fire,
    held,
    hour,
    ledger,
    new_token,
    only_schedule,
    opened,
    schedule,
    scheduled,
    set_clock,
    several,
    story,
    tick,
)

AHEAD = 30.0
"""Seconds of the cluster's clock, which is moved: so long before the tick its scheduler is there."""


class Moment:
    """Before the instant: the scheduler has looked and waits; it goes on when the test lets it."""

    def __init__(self) -> None:
        self._there, self._over = asyncio.Event(), asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        if seconds > 0:
            self._there.set()
            await self._over.wait()

    @asynccontextmanager
    async def before(self, url: str, number: int, **options: Any) -> AsyncIterator[Awaiting]:
        """Within the block somebody waits for the tick. It comes at the end, unless the block sets the clock."""
        await set_clock(url, tick(number) - timedelta(seconds=AHEAD))
        async with opened(url) as store:
            waiting = asyncio.create_task(fire(store, wait=AHEAD + 1, **options))
            await self._there.wait()
            awaiting = Awaiting(waiting)
            yield awaiting
            if awaiting.comes:
                await set_clock(url, tick(number))
            self._over.set()
            awaiting.fired = await waiting
            # As a scheduler does, which asks again.
            while (await store.agenda([JOB])).due and not awaiting.fired.contended:
                awaiting.fired = await fire(store, **options)


class Awaiting:
    def __init__(self, waiting: asyncio.Task[Fired]) -> None:
        self.waiting, self.comes, self.fired = waiting, True, Fired()


@pytest.fixture
def moment(monkeypatch: pytest.MonkeyPatch) -> Moment:
    moment = Moment()
    for kind in ("postgres", "sqlite"):
        monkeypatch.setattr(f"rota.stores.{kind}.ticks.asyncio", SimpleNamespace(sleep=moment.sleep))
    return moment


async def test_it_is_made_when_it_is_due_and_not_before(url: str, moment: Moment) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        made = await scheduled(store)
        async with moment.before(url, 1) as awaiting:
            assert await ledger(store) == []
        fired = awaiting.fired
        assert (fired.schedules, fired.runs, fired.ready, fired.skipped) == (1, 1, 1, 0)
        [row] = await ledger(store)
        assert (row.due_at, row.run_at, row.state) == (tick(1), tick(1), "queued")
        assert row.created_at >= tick(1)
        assert (row.created_at - tick(1)).total_seconds() >= fired.lateness >= 0
        assert (await schedule(store, made.id)).next_run_at == tick(2)


async def test_whoever_comes_too_soon_makes_nothing(url: str, moment: Moment) -> None:
    """By the clock of the store, which may go slower than ours."""
    async with opened(url) as store:
        await hour(url, 0)
        await scheduled(store)
        async with moment.before(url, 1) as awaiting:
            awaiting.comes = False
        assert awaiting.fired == Fired(lateness=awaiting.fired.lateness)
        assert await ledger(store) == []
        assert (await only_schedule(store)).next_run_at == tick(1)


async def test_whoever_comes_a_moment_too_soon_waits_at_the_store(url: str) -> None:
    """On SQLite it asks again, as it would after a longer one."""
    async with opened(url) as store:
        await hour(url, 0)
        await scheduled(store)
        while not await ledger(store):
            await set_clock(url, tick(1) - timedelta(seconds=0.1))
            await fire(store, wait=0.095)
        [row] = await ledger(store)
        assert row.created_at >= tick(1)


async def test_all_of_an_instant_are_made_once_by_any_number(url: str) -> None:
    async with several(url, 4) as stores:
        await hour(url, 0)
        made = [await scheduled(stores[0], name=f"n{n}") for n in range(12)]
        await set_clock(url, tick(1) - timedelta(seconds=0.2))
        fired = await asyncio.gather(*(fire(store, wait=0.2) for store in stores))
        while (agenda := await stores[0].agenda([JOB])).due or (agenda.due_in or 0) < 1:
            fired.append(await fire(stores[0]))
        assert sum(each.schedules for each in fired) == sum(each.runs for each in fired) == len(made)
        assert [row.due_at for row in await ledger(stores[0])] == [tick(1)] * len(made)


async def test_it_starts_where_there_is_a_place(url: str, moment: Moment) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        rows = [await scheduled(store, name=f"n{n}", parameters='{"n": 1}') for n in range(3)]
        offered = Places(replica_id=7, token=new_token(), lanes=((frozenset([JOB]), 2),))
        async with moment.before(url, 1, start=lambda: offered) as awaiting:
            pass
        fired = awaiting.fired
        assert (fired.runs, fired.ready, len(fired.claims)) == (3, 1, 2)
        assert [claim.config_id for claim in fired.claims] == [rows[0].id, rows[1].id]
        assert tuple(await store.reclaim(7, offered.token)) == fired.claims
        assert sorted(row.state for row in await ledger(store)) == ["queued", "running", "running"]
        for claim in fired.claims:
            await finish(store, claim)
        assert await count(url, "scheduler_locks") == 1


async def test_what_is_ready_and_should_go_first_does(url: str, moment: Moment) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        await scheduled(store)
        await enqueue(store)
        offered = Places(replica_id=7, token=new_token(), lanes=((frozenset([JOB]), 2),))
        async with moment.before(url, 1, start=lambda: offered) as awaiting:
            pass
        assert (awaiting.fired.ready, awaiting.fired.claims) == (1, ())


# As an operator types it, which leaves the version as it was where it is about the time alone.
CHANGES = {
    "paused": "enabled = false",
    "postponed": "next_run_at = '2031-05-14 13:30:00.000000'",
    "another expression": "cron = '30 * * * *'",
    "invalid": "invalid_reason = 'no such job'",
}


@pytest.mark.parametrize("change", CHANGES)
async def test_what_is_changed_in_the_last_moment_is_not_made(url: str, moment: Moment, change: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        await scheduled(store)
        async with moment.before(url, 1) as awaiting:
            await execute(url, f"update scheduler_configs set {CHANGES[change]}")
        assert awaiting.fired.runs == 0
        assert await ledger(store) == []


async def test_parameters_that_are_changed_in_the_last_moment_are_used(url: str, moment: Moment) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        await scheduled(store)
        async with moment.before(url, 1) as awaiting:
            await execute(url, """update scheduler_configs set parameters = '{"n": 2}'""")
        assert awaiting.fired.runs == 1
        [row] = await ledger(store)
        assert row.parameters.replace(" ", "") == '{"n":2}'


async def test_a_slot_that_is_given_away_in_the_last_moment_is_not_given_twice(url: str, moment: Moment) -> None:
    """A run that somebody started by hand gets the only one after the scheduler has looked."""
    async with opened(url) as store:
        await hour(url, 0)
        made = await scheduled(store)
        async with moment.before(url, 1):
            await store.trigger(made.id, None)
            [by_hand] = await admitted(store)
            assert by_hand.slot
        assert sorted(await story(store, made.id)) == [("running", None, 1), ("skipped", "overlap", 1)]


async def test_whoever_waits_for_a_slot_is_not_overtaken(url: str, moment: Moment) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        made = await scheduled(store, overlap="queue")
        async with moment.before(url, 1):
            await store.trigger(made.id, None)
            assert await store.promote_due(100) == 1
        by_hand = await admitted(store)
        assert [claim.key for claim in by_hand] == [None]
        assert (await store.agenda([JOB])).waiting


@pytest.mark.parametrize("limits", [{"concurrency_limit": 1}, {"breaker_failures": 1}])
async def test_what_stands_in_its_way_in_the_last_moment_is_seen(
    url: str, moment: Moment, limits: dict[str, int]
) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        made = await scheduled(store)
        async with moment.before(url, 1) as awaiting:
            await store.declare([JobRow(job_id=JOB, **limits)], [])
            if "breaker_failures" in limits:
                long_ago = "'2031-05-14 12:00:00.000000'"
                await execute(
                    url, f"update jobs set breaker = 'open', breaker_changed_at = {long_ago}, breaker_pause = 1e6"
                )
        assert awaiting.fired.ready == 0
        place = ("queued", None, 1) if "concurrency_limit" in limits else ("skipped", "circuit_open", 1)
        assert await story(store, made.id) == [place]


async def test_a_tick_that_is_made_by_hand_in_the_last_moment_is_left_as_it_is(url: str, moment: Moment) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        made = await scheduled(store, concurrency_limit=0)
        async with moment.before(url, 1) as awaiting:
            early = await store.trigger(made.id, tick(1))
        assert awaiting.fired.runs == 0
        assert [row.id for row in await ledger(store)] == [early.id]
        assert (await only_schedule(store)).next_run_at == tick(2)


async def test_one_that_an_operator_holds_waits_and_the_others_do_not(url: str, moment: Moment) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        mine, other = [await scheduled(store, name=name) for name in ("held", "free")]
        async with held(url, mine.id):
            async with moment.before(url, 1) as awaiting:
                pass
            assert [row.config_id for row in await ledger(store)] == [other.id]
            assert awaiting.fired.contended == (mine.id,)
        assert (await fire(store)).runs == 1


async def test_holding_it_means_nothing_where_the_locks_are_off(url: str, moment: Moment) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        made = await scheduled(store)
        async with held(url, made.id), moment.before(url, 1, advisory=False) as awaiting:
            pass
        assert awaiting.fired.runs == 1


async def test_whoever_was_frozen_after_it_had_decided_decides_again(url: str, moment: Moment) -> None:
    """More ticks are due by then, and what was decided for the first one is no longer right."""
    async with opened(url) as store:
        await hour(url, 0)
        made = await scheduled(store, catch_up="skip")
        async with moment.before(url, 1) as awaiting:
            awaiting.comes = False
            await hour(url, 4.5)
        assert await story(store, made.id) == [("skipped", "catch_up", 3), ("skipped", "catch_up", 1)]


async def test_a_decision_that_would_not_last_is_made_when_the_tick_is_due(url: str, moment: Moment) -> None:
    """Where a tenth of a second is late already, it can be seen only then whether it is."""
    hasty, decided = Decider(late_after=0.1, check=lambda job, parameters: None), list[datetime]()

    def deciding(now: datetime, due: Sequence[DueSchedule]) -> list[Decision]:
        decided.append(now)
        return hasty(now, due)

    async with opened(url) as store:
        await hour(url, 0)
        made = await scheduled(store, catch_up="skip")
        async with moment.before(url, 1, deciding=deciding):
            pass
        [row] = await ledger(store, made.id)
        late = (decided[-1] - tick(1)).total_seconds()
        assert late >= 0, "decided ahead"  # in the same millisecond, on a fast machine
        assert row.state == ("queued" if late < 0.1 else "skipped")


async def test_no_more_are_made_in_one_transaction_than_it_is_told(url: str, moment: Moment) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        for n in range(5):
            await scheduled(store, name=f"n{n}")
        async with moment.before(url, 1, limit=2) as awaiting:
            pass
        assert awaiting.fired.schedules == 1, "the last of three"
        assert await story(store) == [("queued", None, 1)] * 5


async def test_one_of_which_more_is_to_be_said_keeps_no_other_waiting(url: str, moment: Moment) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        busy, free = [await scheduled(store, name=name) for name in ("busy", "free")]
        await store.trigger(busy.id, None)
        [by_hand] = await admitted(store)
        async with moment.before(url, 1):
            pass
        assert await story(store, busy.id) == [("running", None, 1), ("skipped", "overlap", 1)]
        assert await story(store, free.id) == [("queued", None, 1)]
        await finish(store, by_hand)


async def test_many_of_one_instant_are_all_made(url: str, moment: Moment) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        names = ", ".join(f"('{JOB}', 'n{n}', '{HOURLY}')" for n in range(250))
        await execute(url, f"insert into scheduler_configs (job_id, name, cron) values {names}")
        await fire(store)
        async with moment.before(url, 1):
            pass
        assert await story(store) == [("queued", None, 1)] * 250
