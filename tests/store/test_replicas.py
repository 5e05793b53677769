"""Replicas: who lives, who is given up, and that what the dead held is freed once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rota.contract.places import Places
from rota.errors import StoreUnavailable
from rota.store import HINTS, Hint, JobRow, Lifeline, NewRun, Pulse, Store
from tests.app.waiting import until
from tests.harness import execute
from tests.patience import PATIENCE
from tests.store.steps import (
    JOB,
    claim,
    claim_one,
    count,
    decide,
    enqueue,
    eventually,
    finish,
    fire,
    get,
    hour,
    ledger,
    new_token,
    opened,
    scheduled,
    several,
)

LONG_AGO = "update replicas set beat_at = '2020-01-01 00:00:00.000000'"


@asynccontextmanager
async def joined(url: str, name: str = "a", elector: str = "") -> AsyncIterator[tuple[Store, Lifeline]]:
    """A replica with a store of its own, as a process has it."""
    async with opened(url, elector=elector) as store:
        lifeline = await store.join(name, "host", 4711, [JOB])
        lifeline.judges_from = 0.0  # as if it had beaten on time for long enough
        try:
            yield store, lifeline
        finally:
            await lifeline.close()


async def is_alive(lifeline: Lifeline) -> bool:
    """One whose session was ended learns it by that."""
    try:
        return (await lifeline.beat(holding=False)).alive
    except StoreUnavailable:
        return False


async def sees_free(lifeline: Lifeline, other: int) -> None:
    async def look() -> bool:
        return other in (await lifeline.beat(holding=False)).suspects

    await eventually(look)


async def test_a_replica_joins_beats_and_leaves(url: str) -> None:
    async with opened(url) as store, joined(url) as (own, lifeline):
        [row] = await store.list_replicas()
        assert (row.id, row.name, row.host, row.pid, row.jobs) == (lifeline.replica_id, "a", "host", 4711, (JOB,))
        pulse = await lifeline.beat(holding=False)
        assert pulse.alive
        assert (pulse.cancelled, pulse.ready, pulse.due_in) == ((), False, None)

        async def later() -> bool:  # two beats may fall into one millisecond
            await lifeline.beat(holding=False)
            [after] = await store.list_replicas()
            return after.beat_at > row.beat_at

        await eventually(later)
        assert (await own.leave(lifeline.replica_id)).replicas == (lifeline.replica_id,)
        assert await store.list_replicas() == []
        assert not await is_alive(lifeline)


async def test_a_beat_tells_what_there_is_to_do(url: str) -> None:
    async with opened(url) as store, joined(url) as (_, lifeline):
        await hour(url, 0)
        await scheduled(store)
        due_in = (await lifeline.beat(holding=False)).due_in
        assert due_in is not None
        assert 3500 < due_in <= 3590
        await enqueue(store, delay=100)
        sooner = (await lifeline.beat(holding=False)).due_in
        assert sooner is not None
        assert 40 < sooner <= 100
        await enqueue(store)
        assert (await lifeline.beat(holding=False)).ready


async def test_incarnations_have_numbers_of_their_own(url: str) -> None:
    async with joined(url) as (_, first), joined(url) as (_, second):
        assert first.replica_id != second.replica_id


async def test_one_replica_is_the_caretaker_until_it_is_gone(url: str) -> None:
    async with joined(url, "a") as (_, first), joined(url, "b") as (_, second), joined(url, "c") as (_, third):
        for _ in range(2):
            pulses = [await each.beat(holding=False) for each in (first, second, third)]
            assert [pulse.caretaker for pulse in pulses] == [True, False, False]
        await first.close()

        async def taken_over() -> bool:
            return (await second.beat(holding=False)).caretaker

        await eventually(taken_over)
        assert not (await third.beat(holding=False)).caretaker


async def test_a_closed_lifeline_is_noticed_by_the_caretaker(url: str) -> None:
    async with joined(url, "a") as (_, caretaker), joined(url, "b") as (_, other), joined(url, "c") as (_, bystander):
        pulse = await caretaker.beat(holding=False)
        assert (pulse.caretaker, pulse.suspects, pulse.stale) == (True, (), ())
        await other.close()
        await sees_free(caretaker, other.replica_id)
        assert (await bystander.beat(holding=False)).suspects == ()


async def test_a_stale_beat_is_noticed_by_the_caretaker(url: str) -> None:
    async with joined(url, "a") as (_, caretaker), joined(url, "b") as (_, other):
        await caretaker.beat(holding=False)
        await execute(url, f"{LONG_AGO} where id = {other.replica_id}")

        async def noticed() -> Pulse | None:
            # A server that has just started excuses those who have not beaten since.
            pulse = await caretaker.beat(holding=False)
            return pulse if pulse.stale else None

        pulse = await until(noticed)
        assert (pulse.stale, pulse.suspects) == ((other.replica_id,), ())
        await other.beat(holding=False)
        assert (await caretaker.beat(holding=False)).stale == ()


async def test_moving_the_clock_kills_nobody(url: str) -> None:
    async with opened(url) as store, joined(url, "a") as (_, caretaker), joined(url, "b") as (_, other):
        await caretaker.beat(holding=False)
        await hour(url, 0)
        pulse = await caretaker.beat(holding=False)
        assert (pulse.stale, pulse.suspects) == ((), ())
        assert (await store.bury([other.replica_id])).replicas == ()


async def test_a_replica_that_lives_is_not_buried(url: str) -> None:
    async with opened(url) as store, joined(url) as (_, lifeline):
        await enqueue(store)
        held = await claim_one(store, replica=lifeline.replica_id)
        buried = await store.bury([lifeline.replica_id, 12345])
        assert (buried.replicas, buried.requeued, buried.cancelled) == ((), (), ())
        assert await is_alive(lifeline)
        assert held.id in (await finish(store, held)).accepted


async def test_the_runs_of_the_dead_are_freed_once(url: str) -> None:
    async with several(url, 4) as stores, joined(url) as (_, lifeline):
        store, dead = stores[0], lifeline.replica_id
        for _ in range(6):
            await enqueue(store)
        held = await claim(store, 2, replica=dead) + await claim(store, 2, replica=dead)
        await finish(store, held[0])
        await lifeline.close()
        await eventually_buried(stores, dead)
        rows = {row.id: row for row in await ledger(store)}
        lost = [each.id for each in held[1:]]
        assert [(rows[n].state, rows[n].losses, rows[n].attempt) for n in lost] == [("queued", 1, 1)] * 3
        assert rows[held[0].id].state == "succeeded"
        again = await claim(store)
        assert {each.id for each in again} == {row.id for row in rows.values()} - {held[0].id}
        assert {each.id: each.losses for each in again if each.losses} == dict.fromkeys(lost, 1)
        assert len(again) == 5


async def test_what_a_dead_replica_had_started_is_freed(url: str) -> None:
    async with several(url, 2) as stores, joined(url) as (_, lifeline):
        store = stores[0]
        await hour(url, 0)
        await scheduled(store)
        await hour(url, 1)
        places = Places(replica_id=lifeline.replica_id, token=new_token(), lanes=((frozenset([JOB]), 5),))
        fired = await store.fire_due(decide, jobs=[JOB], limit=10, advisory=True, leave=[], start=lambda: places)
        [begun] = fired.claims
        await lifeline.close()
        await eventually_buried(stores, lifeline.replica_id)
        again = await claim_one(store)
        assert (again.id, again.losses, again.attempt) == (begun.id, 1, 2)


async def eventually_buried(stores: list[Store], dead: int) -> None:
    """All bury it at once, again and again until its lock is seen free; one of them does it, once."""
    buried: list[int] = []
    requeued: list[int] = []

    async def gone() -> bool:
        for each in await asyncio.gather(*(store.bury([dead]) for store in stores)):
            buried.extend(each.replicas)
            requeued.extend(each.requeued)
        return bool(buried)

    await eventually(gone)
    assert buried == [dead]
    assert len(requeued) == len(set(requeued))


async def test_a_deposed_replica_cannot_finish_what_it_held(url: str) -> None:
    async with opened(url) as store, joined(url) as (_, lifeline):
        await enqueue(store)
        held = await claim_one(store, replica=lifeline.replica_id)
        await execute(url, LONG_AGO)
        assert (await store.bury([lifeline.replica_id])).requeued == (held.id,)
        assert not await is_alive(lifeline)
        # Whether somebody has it by now or not.
        refused = await finish(store, held)
        assert (refused.accepted, refused.lost) == (frozenset(), (held.id,))
        again = await claim_one(store)
        assert (await finish(store, held)).lost == (held.id,)
        assert again.id in (await finish(store, again)).accepted


async def test_runs_of_the_dead_that_were_to_stop_are_cancelled(url: str) -> None:
    async with opened(url) as store, joined(url) as (_, lifeline):
        wanted, unwanted = await enqueue(store), await enqueue(store)
        await claim(store, replica=lifeline.replica_id)
        await store.cancel_run(unwanted)
        await execute(url, LONG_AGO)
        buried = await store.bury([lifeline.replica_id])
        assert (buried.requeued, buried.cancelled) == ((wanted,), (unwanted,))
        row = await get(store, unwanted)
        assert (row.state, row.finished_at is not None) == ("cancelled", True)
        assert [each.id for each in await claim(store)] == [wanted]
        assert await count(url, "cancellations") == 0


async def test_the_runs_of_the_dead_keep_their_slots(url: str) -> None:
    async with opened(url) as store, joined(url) as (_, lifeline):
        await store.declare([JobRow(job_id="limited", concurrency_limit=1)], [])
        await hour(url, 0)
        await scheduled(store, overlap="queue", lock_timeout_seconds=60)
        await enqueue(store, job_id="limited")
        await enqueue(store, job_id="limited")
        await hour(url, 1)
        await fire(store)
        assert await store.admit_waiting() == 1
        held = await claim(store, replica=lifeline.replica_id, jobs=[JOB, "limited"])
        assert [each.slot for each in held] == [True, True]
        await execute(url, LONG_AGO)
        await store.bury([lifeline.replica_id])
        assert await store.admit_waiting() == 0
        await hour(url, 2)
        again = await claim(store, jobs=[JOB, "limited"])
        assert {(each.id, each.slot) for each in again} == {(each.id, True) for each in held}
        for each in again:
            await finish(store, each)
        assert await store.admit_waiting() == 1


async def test_a_replica_that_leaves_gives_back_what_it_holds_without_a_loss(url: str) -> None:
    async with opened(url) as store, joined(url) as (own, lifeline):
        run_id = await enqueue(store)
        held = await claim_one(store, replica=lifeline.replica_id)
        assert (await own.leave(lifeline.replica_id)).requeued == (run_id,)
        assert (await finish(store, held)).lost == (run_id,)
        again = await claim_one(store)
        assert (again.id, again.losses) == (run_id, 0)
        assert await count(url, "replicas") == 0


async def test_a_claim_of_nobody_is_swept(url: str) -> None:
    async with several(url, 3) as stores:
        run_id = await enqueue(stores[0])
        await claim_one(stores[0], replica=99)
        swept = await asyncio.gather(*(store.bury([]) for store in stores))
        assert [run for each in swept for run in each.requeued] == [run_id]
        assert (await claim_one(stores[0])).losses == 1


async def test_a_lost_connection_does_not_cost_the_incarnation(url: str) -> None:
    async with opened(url) as store, joined(url) as (own, lifeline):
        await enqueue(store)
        held = await claim_one(store, replica=lifeline.replica_id)
        resumed = await own.join("a", "host", 4711, [JOB], resume=lifeline.replica_id)
        assert resumed.replica_id == lifeline.replica_id
        assert (await resumed.beat(holding=True)).alive
        assert (await store.bury([lifeline.replica_id])).replicas == ()
        assert held.id in (await finish(store, held)).accepted
        assert len(await store.list_replicas()) == 1
        await resumed.close()


async def test_a_buried_incarnation_is_not_resumed(url: str) -> None:
    async with opened(url) as store, joined(url) as (_, lifeline):
        await execute(url, LONG_AGO)
        await store.bury([lifeline.replica_id])
        async with opened(url) as own:
            anew = await own.join("a", "host", 4711, [JOB], resume=lifeline.replica_id)
            assert anew.replica_id != lifeline.replica_id
            assert (await anew.beat(holding=False)).alive
            assert [row.id for row in await store.list_replicas()] == [anew.replica_id]
            await anew.close()


@asynccontextmanager
async def hearing(store: Store) -> AsyncIterator[asyncio.Queue[Hint]]:
    """What is heard from now on."""
    heard: asyncio.Queue[Hint] = asyncio.Queue()
    listening = asyncio.create_task(store.listen(heard.put_nowait))
    try:
        async with asyncio.timeout(PATIENCE):
            # Whatever happened before the listener could hear: it is told to look once.
            assert {await heard.get() for _ in HINTS} == set(HINTS)
            yield heard
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


async def test_a_hint_is_heard_by_the_others(url: str) -> None:
    async with opened(url) as store, opened(url) as other, hearing(other) as heard:
        await enqueue(store)
        await store.hint("ready")
        while await heard.get() != "ready":
            pass


async def test_a_run_that_is_told_of_as_it_is_made_can_be_claimed_by_whoever_hears(url: str) -> None:
    async with opened(url) as store, opened(url) as other, hearing(other) as heard:
        made = await store.enqueue_one(NewRun(job_id=JOB), tell=True)
        if not made.told:
            await store.hint("ready")
        while await heard.get() != "ready":
            pass
        assert [claim.id for claim in (await other.claim_runs(1, 1, [JOB], 5)).claims] == [made.id]


async def test_whoever_was_cut_off_itself_calls_nobody_dead(url: str) -> None:
    async with joined(url, "a") as (_, caretaker), joined(url, "b") as (_, other):
        await caretaker.beat(holding=False)
        await other.close()
        caretaker._beaten_at -= 60
        pulse = await caretaker.beat(holding=False)
        assert (pulse.caretaker, pulse.stale, pulse.suspects) == (True, (), ())
        await caretaker.beat(holding=False)
        caretaker.judges_from = 0.0

        async def noticed() -> bool:
            return (await caretaker.beat(holding=False)).suspects == (other.replica_id,)

        await until(noticed)


async def test_one_that_has_just_come_waits_before_it_judges(url: str) -> None:
    async with opened(url) as store, joined(url, "b") as (_, other):
        await other.close()
        newcomer = await store.join("a", "host", 1, [JOB])
        try:
            assert (await newcomer.beat(holding=False)).suspects == ()
        finally:
            await newcomer.close()
