"""Replicas without a session lock: the beat alone tells who lives, beside others or among themselves."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from rota.store import Lifeline, Store
from tests.app.waiting import until
from tests.harness import execute
from tests.store.steps import JOB, claim_one, enqueue, finish, opened
from tests.store.test_replicas import LONG_AGO, is_alive, joined

MIXED = pytest.mark.parametrize("electors", [("", "lease"), ("lease", "")], ids=["a lock first", "a lease first"])


async def caretakers(*lifelines: Lifeline) -> list[int]:
    """Who is it, once everybody has beaten twice?"""
    for each in lifelines:
        await each.beat(holding=False)
    return [each.replica_id for each in lifelines if (await each.beat(holding=False)).caretaker]


async def silent(url: str, lifeline: Lifeline) -> None:
    await execute(url, f"{LONG_AGO} where id = {lifeline.replica_id}")


async def given_up(caretaker: Lifeline, *others: Lifeline) -> None:
    """All of these are noticed, by their silence or their free lock."""

    async def noticed() -> bool:
        pulse = await caretaker.beat(holding=False)
        return {*pulse.stale, *pulse.suspects} >= {each.replica_id for each in others}

    await until(noticed)


async def test_its_row_says_that_there_is_no_lock(url: str) -> None:
    async with joined(url, "a", "lease") as (_, lease), joined(url, "b") as (_, other):
        rows = await execute(url, "select id, locked from replicas order by id")
        assert [(n, bool(locked)) for n, locked in rows] == [(lease.replica_id, False), (other.replica_id, True)]
        if not url.startswith("sqlite"):
            held = await execute(url, "select objid from pg_locks where locktype = 'advisory' and granted")
            assert (lease.replica_id,) not in held


async def test_it_is_not_dead_as_long_as_it_beats(url: str) -> None:
    async with opened(url) as store, joined(url, "a", "lease") as (_, first), joined(url, "b", "lease") as (_, second):
        await enqueue(store)
        held = await claim_one(store, replica=second.replica_id)
        assert await caretakers(first, second) == [first.replica_id]
        pulse = await first.beat(holding=False)
        assert (pulse.suspects, pulse.stale) == ((), ())
        assert (await store.bury([first.replica_id, second.replica_id])).replicas == ()
        assert await is_alive(second)
        assert held.id in (await finish(store, held)).accepted


async def test_a_closed_connection_is_no_death_but_silence_is(url: str) -> None:
    async with opened(url) as store, joined(url, "a", "lease") as (_, first), joined(url, "b", "lease") as (_, second):
        await enqueue(store)
        held = await claim_one(store, replica=second.replica_id)
        await caretakers(first, second)
        await second.close()
        await asyncio.sleep(0.1)
        pulse = await first.beat(holding=False)
        assert (pulse.suspects, pulse.stale) == ((), ())
        await silent(url, second)
        await given_up(first, second)
        buried = await store.bury([second.replica_id])
        assert (buried.replicas, buried.requeued) == ((second.replica_id,), (held.id,))
        assert (await finish(store, held)).lost == (held.id,)


async def test_the_next_one_takes_care_when_the_caretaker_is_silent(url: str) -> None:
    async with joined(url, "a", "lease") as (_, first), joined(url, "b", "lease") as (store, second):
        async with joined(url, "c", "lease") as (_, third):
            assert await caretakers(first, second, third) == [first.replica_id]
            await silent(url, first)
            assert await caretakers(second, third) == [second.replica_id]
            await given_up(second, first)
            assert (await store.bury([first.replica_id])).replicas == (first.replica_id,)
            assert not await is_alive(first)


async def test_a_lost_connection_does_not_cost_the_incarnation(url: str) -> None:
    async with joined(url, "a", "lease") as (own, lifeline):
        await lifeline.close()
        resumed = await own.join("a", "host", 4711, [JOB], resume=lifeline.replica_id)
        assert resumed.replica_id == lifeline.replica_id
        assert await is_alive(resumed)
        await own.leave(resumed.replica_id)
        await resumed.close()
        anew = await own.join("a", "host", 4711, [JOB], resume=lifeline.replica_id)
        assert anew.replica_id != lifeline.replica_id
        await anew.close()


@MIXED
async def test_a_mixed_cluster_has_one_caretaker(url: str, electors: tuple[str, str]) -> None:
    async with AsyncExitStack() as stack:
        every = [
            (await stack.enter_async_context(joined(url, elector or "own", elector)))[1] for elector in electors * 2
        ]
        [chosen] = await caretakers(*every)
        assert await caretakers(*every) == [chosen]


@MIXED
async def test_the_dead_of_either_kind_are_buried(url: str, electors: tuple[str, str]) -> None:
    async with AsyncExitStack() as stack:
        pairs: list[tuple[Store, Lifeline]] = [
            await stack.enter_async_context(joined(url, elector or "own", elector)) for elector in electors * 2
        ]
        every = [lifeline for _, lifeline in pairs]
        await caretakers(*every)
        # The first of each kind dies, the caretaker among them.
        dead, living = every[:2], every[2:]
        for each in dead:
            await each.close()
            await silent(url, each)
        [chosen] = [each for each in living if each.replica_id in await until(lambda: caretakers(*living))]
        await given_up(chosen, *dead)
        buried = await pairs[2][0].bury([each.replica_id for each in every])
        assert set(buried.replicas) == {each.replica_id for each in dead}
        for each in living:
            assert await is_alive(each)
