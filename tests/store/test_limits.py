"""Limits: never more at once than allowed, by schedule, by job, or by both; and no slot is lost for good."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta

from rota.store import Claim, JobRow, NewRun, Store
from tests.harness import execute
from tests.patience import PATIENCE
from tests.store.steps import (
    JOB,
    admitted,
    claim,
    claim_one,
    count,
    enqueue,
    finish,
    fire,
    held,
    hour,
    ledger,
    opened,
    scheduled,
    set_clock,
    several,
    story,
    tick,
)

RUNNING = "job_runs where state = 'running'"


async def work_off(url: str, stores: list[Store], total: int, limit: int) -> int:
    """All replicas claim and finish as they please until all is done; the most that ran at once."""
    done, most = 0, 0

    async def replica(number: int, store: Store) -> None:
        nonlocal done
        chance, mine = random.Random(number), list[Claim]()
        while done < total:
            await store.admit_waiting()
            mine += await claim(store, chance.randint(1, 3), replica=number)
            chance.shuffle(mine)
            for _ in range(chance.randint(0, len(mine))):
                ended = mine.pop()
                again = chance.random() < 0.2
                await finish(store, ended, "queued" if again else "succeeded")
                done += not again
            await store.promote_due(100)

    async def watch() -> None:
        nonlocal most
        while done < total:
            locks = await count(url, "scheduler_locks")
            most = max(most, locks, await count(url, RUNNING))
            assert most <= limit

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        group.create_task(watch())
        for number, store in enumerate(stores):
            group.create_task(replica(number, store))
    return most


async def test_five_replicas_never_exceed_the_limit_of_a_schedule(url: str) -> None:
    async with several(url, 5) as stores:
        await hour(url, 0)
        await scheduled(stores[0], concurrency_limit=3, catch_up="all", overlap="queue")
        await hour(url, 20)
        await asyncio.gather(*(fire(store) for store in stores))
        assert await work_off(url, stores, total=20, limit=3) == 3
        assert await story(stores[0]) == [("succeeded", None, 1)] * 20
        assert await count(url, "scheduler_locks") == 0


async def test_five_replicas_never_exceed_the_limit_of_a_job(url: str) -> None:
    async with several(url, 5) as stores:
        await stores[0].declare([JobRow(job_id=JOB, concurrency_limit=3)], [])
        await stores[0].enqueue([NewRun(job_id=JOB) for _ in range(20)])
        assert await work_off(url, stores, total=20, limit=3) == 3
        assert await count(url, "scheduler_locks") == 0


async def test_both_limits_hold_together(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        await store.declare([JobRow(job_id=JOB, concurrency_limit=3)], [])
        for name in ("one", "two"):
            await scheduled(store, name=name, concurrency_limit=2, catch_up="all", overlap="queue")
        await hour(url, 3)
        assert (await fire(store)).ready == 0
        started = await admitted(store)
        by_schedule = [len([c for c in started if c.config_id == row.id]) for row in await store.list_schedules()]
        assert sorted(by_schedule) == [1, 2]
        await enqueue(store)
        assert await admitted(store) == []
        for _ in range(4):
            await finish(store, started.pop())
            [following] = await admitted(store)
            started.insert(0, following)


async def test_a_run_whose_schedule_is_full_does_not_hold_up_the_rest_of_its_job(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        await store.declare([JobRow(job_id=JOB, concurrency_limit=2)], [])
        await scheduled(store, catch_up="all")
        await hour(url, 3)
        await fire(store)
        [first] = await admitted(store)
        other = await enqueue(store)
        assert first.due_at == tick(1)
        assert [each.id for each in await admitted(store)] == [other]


async def test_zero_is_no_limit(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        await scheduled(store, concurrency_limit=0, catch_up="all")
        await hour(url, 9)
        assert (await fire(store)).ready == 9
        assert [each.slot for each in await claim(store)] == [False] * 9
        assert await count(url, "scheduler_locks") == 0


async def test_a_limit_changed_by_an_operator_holds_at_once(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        await scheduled(store, concurrency_limit=1, catch_up="all")
        await hour(url, 9)
        await fire(store)
        [first] = await admitted(store)
        await execute(url, "update scheduler_configs set concurrency_limit = 3")
        started = await admitted(store)
        assert len(started) == 2
        await execute(url, "update scheduler_configs set concurrency_limit = 1")
        for ended in (first, *started):
            assert await admitted(store) == []
            await finish(store, ended)
        assert len(await admitted(store)) == 1
        await execute(url, "update scheduler_configs set concurrency_limit = 0")
        assert len(await admitted(store)) == 5


async def test_a_finished_run_says_when_somebody_waits_for_its_slot(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        await scheduled(store, catch_up="all")
        await hour(url, 2)
        await fire(store)
        for freed in (True, False):
            [started] = await admitted(store)
            assert started.slot
            assert (await finish(store, started)).freed is freed


async def test_waiting_runs_start_by_rank(url: str) -> None:
    async with opened(url) as store:
        await store.declare([JobRow(job_id=JOB, concurrency_limit=1)], [])
        order = [await enqueue(store, priority=priority) for priority in (5, 9, 1)]
        started = []
        for _ in order:
            [each] = await admitted(store)
            started.append(each.id)
            await finish(store, each)
        assert started == [order[2], order[0], order[1]]


async def test_a_slot_that_is_not_renewed_expires_and_its_run_is_taken_back_once(url: str) -> None:
    async with several(url, 3) as stores:
        store = stores[0]
        await hour(url, 0)
        await scheduled(store, lock_timeout_seconds=120, overlap="queue")
        await hour(url, 1)
        await fire(store)
        lost = await claim_one(store)
        await set_clock(url, tick(1) + timedelta(seconds=100))
        await execute(
            url,
            "insert into replicas (id, name, host, pid, jobs, session, beat_at) "
            "values (1, 'a', 'h', 1, '[]', 's', '2020-01-01 00:00:00.000000')",
        )
        assert (await store.bury([])).requeued == ()
        await set_clock(url, tick(1) + timedelta(seconds=200))
        buried = await asyncio.gather(*(each.bury([]) for each in stores for _ in range(2)))
        assert [run for each in buried for run in each.requeued] == [lost.id]
        assert (await finish(store, lost)).lost == (lost.id,)
        again = await claim_one(store)
        assert (again.id, again.losses, again.attempt, again.slot) == (lost.id, 1, 2, True)
        assert again.id in (await finish(store, again)).accepted
        assert await count(url, "scheduler_locks") == 0


async def test_a_beat_renews_the_slots_of_its_replica(url: str) -> None:
    async with opened(url) as store, opened(url) as other:
        await hour(url, 0)
        await scheduled(store, lock_timeout_seconds=300)
        await hour(url, 1)
        await fire(store)
        lifeline = await other.join("a", "host", 1, [JOB])
        mine = await claim_one(store, replica=lifeline.replica_id)
        for seconds in (200, 400, 600):
            await set_clock(url, tick(1) + timedelta(seconds=seconds))
            await lifeline.beat(holding=True)
        assert (await store.bury([])).requeued == ()
        await set_clock(url, tick(1) + timedelta(seconds=950))
        assert (await store.bury([])).requeued == (), "a clock that leaps takes nothing from one that beats"
        await execute(url, "update replicas set beat_at = '2020-01-01 00:00:00.000000'")
        assert (await store.bury([])).requeued == (mine.id,)
        await lifeline.close()


async def test_a_slot_of_a_run_that_nobody_started_does_not_expire(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        await scheduled(store, lock_timeout_seconds=10, cron="0 13 * * *")
        await hour(url, 1)
        await fire(store)
        await hour(url, 12)
        await store.bury([])
        assert await count(url, "scheduler_locks") == 1
        assert (await claim_one(store)).slot


async def test_a_typed_lock_counts_until_it_expires(url: str) -> None:
    async with opened(url) as store:
        made = await scheduled(store)
        await execute(url, f"insert into scheduler_locks (config_id) values ({made.id})")
        await store.trigger(made.id, None)
        assert await admitted(store) == []
        await set_clock(url, await store.now() + timedelta(seconds=301))
        assert len(await admitted(store)) == 1
        await store.bury([])
        assert await count(url, "scheduler_locks where run_id is null") == 0


async def test_limits_hold_for_a_held_schedule_too(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        made = await scheduled(store, overlap="queue")
        for number in (1, 2):
            await hour(url, number)
            await fire(store)
        async with held(url, made.id):
            [first] = await admitted(store)
            assert await admitted(store) == []
            await finish(store, first)
            assert [each.due_at for each in await admitted(store)] == [tick(2)]
        assert len(await ledger(store)) == 2
