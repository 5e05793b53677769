"""Ticks: every one leaves a row, none leaves two, whoever makes them and whenever."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from rota.errors import StaleWrite
from rota.store import Decision, DueSchedule, RunFilter, tick_key
from tests.patience import PATIENCE
from tests.store.steps import (
    JOB,
    START,
    claim,
    claim_one,
    count,
    decide,
    enqueue,
    finish,
    fire,
    get,
    held,
    hour,
    ledger,
    only_schedule,
    opened,
    scheduled,
    several,
    story,
    tick,
)

Row = tuple[str, str | None, int]
RUN: Row = ("queued", None, 1)


def skipped(reason: str, ticks: int = 1) -> Row:
    return ("skipped", reason, ticks)


MISSED_BY_POLICY: list[tuple[dict[str, Any], float, list[Row]]] = [
    ({"catch_up": "latest"}, 1, [RUN]),
    ({"catch_up": "latest"}, 4, [skipped("catch_up", 3), RUN]),
    ({"catch_up": "skip"}, 1, [RUN]),
    ({"catch_up": "skip"}, 4, [skipped("catch_up", 3), RUN]),
    ({"catch_up": "skip"}, 4.5, [skipped("catch_up", 3), skipped("catch_up")]),
    ({"catch_up": "all"}, 3, [RUN] * 3),
    ({"catch_up": "all", "catch_up_limit": 2}, 5, [skipped("catch_up", 3), RUN, RUN]),
    ({"skip_if_older_than_seconds": 3 * 3600}, 5, [skipped("stale", 2), skipped("catch_up", 2), RUN]),
    ({"skip_if_older_than_seconds": 60}, 2.5, [skipped("stale", 2)]),
    ({"catch_up": "all", "skip_if_older_than_seconds": 86400}, 30, [skipped("stale", 6)] + [RUN] * 24),
]


@pytest.mark.parametrize(("policy", "until", "rows"), MISSED_BY_POLICY)
async def test_missed_ticks_follow_the_policy(url: str, policy: dict[str, Any], until: float, rows: list[Row]) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        made = await scheduled(store, **policy)
        await hour(url, until)
        fired = await fire(store)
        assert await story(store, made.id) == rows
        assert (fired.runs, fired.skipped) == (rows.count(RUN), len(rows) - rows.count(RUN))


async def test_a_tick_carries_the_key_of_its_instant(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        await scheduled(store, timezone="Europe/Paris")
        await hour(url, 1)
        await fire(store)
        [row] = await ledger(store)
        key = f"schedule:{int(tick(1).timestamp()) * 1_000_000_000}"
        assert (row.idempotency_key, row.due_at, row.run_at) == (key, tick(1), tick(1))
        assert [found.id for found in await store.find_runs(RunFilter(key_prefix="schedule:"))] == [row.id]
        assert (await claim_one(store)).key == key


async def test_a_tick_that_was_set_between_two_seconds_is_the_same_by_every_way(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        made = await scheduled(store)
        odd = tick(1) + timedelta(microseconds=123457)
        await store.update_schedule(made.id, made.version, {"next_run_at": odd})
        await hour(url, 1.5)
        assert (await fire(store)).runs == 1
        [row] = await ledger(store, made.id)
        assert (row.due_at, row.idempotency_key) == (odd, tick_key(odd))
        again = await store.trigger(made.id, odd)
        assert (again.id, again.created) == (row.id, False)
        assert (await only_schedule(store)).next_run_at == tick(2)


async def test_the_next_time_is_stored_as_it_was_decided(url: str) -> None:
    """To the microsecond, although those of an expression are whole seconds, and each its own."""

    def oddly(now: datetime, due: Sequence[DueSchedule]) -> list[Decision]:
        return [
            msgspec.structs.replace(each, next_run_at=tick(2) + timedelta(microseconds=each.schedule.id))
            for each in decide(now, due)
        ]

    async with opened(url) as store:
        await hour(url, 0)
        made = [await scheduled(store, name=f"n{n}") for n in range(3)]
        await hour(url, 1)
        assert (await fire(store, deciding=oddly)).runs == 3
        found = {row.id: row.next_run_at for row in await store.list_schedules()}
        assert found == {each.id: tick(2) + timedelta(microseconds=each.id) for each in made}


async def test_a_tick_is_made_once_by_any_number_of_replicas(url: str) -> None:
    async with several(url, 4) as stores:
        await hour(url, 0)
        made = [await scheduled(stores[0], name=f"n{n}", catch_up="all") for n in range(12)]
        for until in (1, 3, 4):
            await hour(url, until)
            fired = await asyncio.gather(*(fire(store, limit=5) for store in stores for _ in range(3)))
            assert sum(each.schedules for each in fired) == len(made)
        for each in made:
            assert [row.due_at for row in await ledger(stores[0], each.id)] == [tick(n) for n in range(1, 5)]


async def test_a_tick_that_is_there_already_is_left_as_it_is(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        made = await scheduled(store)
        early = await store.trigger(made.id, tick(1))
        assert early.created
        assert (await store.trigger(made.id, tick(1))) == type(early)(id=early.id, created=False)
        await store.promote_due(100)
        await store.admit_waiting()
        run = await claim_one(store)
        await finish(store, run, result='"early"')
        await hour(url, 1)
        fired = await fire(store)
        assert (fired.schedules, fired.runs) == (1, 0)
        [row] = await ledger(store, made.id)
        assert (row.id, row.state, row.result) == (early.id, "succeeded", '"early"')
        assert await claim(store) == []
        assert await count(url, "scheduler_locks") == 0
        assert (await only_schedule(store)).next_run_at == tick(2)


async def test_a_trigger_after_the_tick_finds_its_run(url: str) -> None:
    async with several(url, 3) as stores:
        await hour(url, 0)
        made = await scheduled(stores[0])
        await hour(url, 1)
        await asyncio.gather(fire(stores[0]), *(store.trigger(made.id, tick(1)) for store in stores))
        [row] = await ledger(stores[0], made.id)
        again = await stores[1].trigger(made.id, tick(1))
        assert (again.id, again.created) == (row.id, False)


async def test_a_trigger_without_a_tick_is_a_run_more(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        made = await scheduled(store, parameters='{"x": 1}', priority=3, concurrency_limit=0)
        ids = [(await store.trigger(made.id, None)).id for _ in range(2)]
        assert await store.promote_due(100) == 2
        claimed = await claim(store)
        assert [(c.id, c.config_id, c.key) for c in claimed] == [(n, made.id, None) for n in ids]
        row = await get(store, ids[0])
        assert (row.priority, row.due_at) == (3, None)
        assert claimed[0].due_at == row.created_at


async def test_a_held_schedule_waits_while_the_others_go_on(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        first, second = [await scheduled(store, name=name) for name in ("first", "second")]
        await hour(url, 1)
        async with held(url, first.id):
            fired = await fire(store)
            assert (fired.contended, fired.schedules, fired.runs) == ((first.id,), 1, 1)
            assert await ledger(store, first.id) == []
            assert len(await ledger(store, second.id)) == 1
            assert (await store.agenda([JOB])).due
            await hour(url, 2)
            assert (await fire(store)).contended == (first.id,)
        assert (await fire(store)).contended == ()
        assert await story(store, first.id) == [("skipped", "catch_up", 1), ("queued", None, 1)]


async def test_holding_a_schedule_means_nothing_where_the_locks_are_off(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        made = await scheduled(store)
        await hour(url, 1)
        async with held(url, made.id):
            fired = await fire(store, advisory=False)
        assert (fired.contended, fired.runs) == ((), 1)


async def test_schedules_that_are_to_be_left_are_left(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        first, second = [await scheduled(store, name=name) for name in ("first", "second")]
        await hour(url, 1)
        await fire(store, leave=[first.id])
        assert (await ledger(store, first.id), len(await ledger(store, second.id))) == ([], 1)


async def test_the_best_priority_and_then_the_longest_overdue_goes_first(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        late = await scheduled(store, name="late", cron="30 * * * *")
        early = await scheduled(store, name="early", cron="15 * * * *")
        urgent = await scheduled(store, name="urgent", cron="45 * * * *", priority=1)
        await hour(url, 0.9)
        order = []
        for _ in range(3):
            assert (await fire(store, limit=1)).schedules == 1
            order += [row.config_id for row in await ledger(store) if row.config_id not in order]
        assert order == [urgent.id, early.id, late.id]
        assert (await fire(store, limit=1)).schedules == 0


async def test_a_decision_that_raises_leaves_nothing_behind(url: str) -> None:
    def broken(now: datetime, due: Sequence[DueSchedule]) -> list[Decision]:
        decide(now, due)
        raise ZeroDivisionError

    async with opened(url) as store:
        await hour(url, 0)
        made = await scheduled(store)
        await hour(url, 1)
        with pytest.raises(ZeroDivisionError):
            await fire(store, deciding=broken)
        assert await only_schedule(store) == made
        assert await ledger(store) == []
        assert (await fire(store)).runs == 1


async def test_a_decision_sees_the_stores_clock_and_the_due_schedules_only(url: str) -> None:
    seen: list[tuple[datetime, list[str]]] = []

    def watching(now: datetime, due: Sequence[DueSchedule]) -> list[Decision]:
        seen.append((now, [each.cron for each in due]))
        return decide(now, due)

    async with opened(url) as store:
        await hour(url, 0)
        for name, cron in (("soon", "30 * * * *"), ("later", "0 23 * * *"), ("off", "31 * * * *")):
            await scheduled(store, name=name, cron=cron, enabled=name != "off")
        await hour(url, 0.75)
        await fire(store, deciding=watching)
        [(now, crons)] = seen
        assert crons == ["30 * * * *"]
        assert abs((now - START - timedelta(minutes=45)).total_seconds()) < 60


async def test_lateness_is_measured_from_the_oldest_tick_made_ready(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        await scheduled(store)
        assert (await fire(store)).lateness == 0
        await hour(url, 1.5)
        assert 1810 <= (await fire(store)).lateness < 1900


async def test_the_agenda_tells_what_comes_next(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        nothing = await store.agenda([JOB])
        assert (nothing.due, nothing.next_in, nothing.waiting) == (False, None, False)
        await scheduled(store, job_id="other")
        assert (await store.agenda([JOB])).next_in is None
        await scheduled(store, overlap="queue")
        coming = await store.agenda([JOB])
        assert not coming.due
        assert coming.next_in is not None
        assert 3500 < coming.next_in <= 3590
        await enqueue(store, delay=600)
        sooner = (await store.agenda([JOB])).next_in
        assert sooner is not None
        assert 540 < sooner <= 600
        await hour(url, 1)
        both = await store.agenda([JOB])
        assert (both.due, both.delayed) == (True, True)
        await fire(store)
        await store.promote_due(10)
        neither = await store.agenda([JOB])
        assert (neither.due, neither.delayed) == (False, False)
        await hour(url, 2)
        await fire(store)
        assert (await store.agenda([JOB])).waiting


async def test_a_tick_made_by_hand_is_not_counted_again_when_its_stretch_is_missed(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        schedule = await scheduled(store, catch_up="latest")
        made = await store.trigger(schedule.id, tick(2))
        await hour(url, 5)
        await fire(store)
        rows = await store.find_runs(RunFilter(config_id=schedule.id))
        assert made.id in {row.id for row in rows}
        assert sum(1 if row.missed_count is None else row.missed_count for row in rows) == 5


async def test_ticks_decided_on_an_outdated_row_are_refused_as_a_whole(url: str) -> None:
    def outdated(now: datetime, due: Sequence[DueSchedule]) -> list[Decision]:
        before = [msgspec.structs.replace(schedule, version=schedule.version - 1) for schedule in due]
        return decide(now, before)

    async with opened(url) as store:
        await hour(url, 0)
        schedule = await scheduled(store)
        await hour(url, 1)
        with pytest.raises(StaleWrite):
            await fire(store, deciding=outdated)
        assert await only_schedule(store) == schedule
        assert await story(store) == []


async def test_who_is_there_ahead_of_the_time_keeps_nobody(url: str) -> None:
    """On Postgres its transaction has begun by then, and holds nothing yet."""
    async with several(url, 2) as [store, other]:
        await hour(url, 0)
        await scheduled(store, concurrency_limit=0)
        await hour(url, 1)
        ahead = asyncio.create_task(fire(store, wait=PATIENCE))
        begun = "pg_stat_activity where state = 'idle in transaction' and datname = current_database()"
        while url.startswith("postgres") and not await count(url, begun):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        assert await ledger(other) == []
        assert (await fire(other)).runs == 1
        ahead.cancel()
        await asyncio.gather(ahead, return_exceptions=True)
        await hour(url, 2)
        assert (await fire(store, wait=0.01)).runs == 1
        assert await story(store) == [RUN, RUN]
