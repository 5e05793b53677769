"""Runs that were made together are claimed together; but never more than are wanted, and each once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from rota.store import Claim, Claimed, NewRun, Store
from tests.harness import Databases, execute, ready
from tests.patience import PATIENCE
from tests.store.steps import JOB, claim, enqueue, fire, get, hour, new_token, opened, scheduled, several


@pytest.fixture
def postgres(databases: Databases, tmp_path: Path) -> str:
    return databases.new("postgres", tmp_path)


def many(count: int) -> list[NewRun]:
    return [NewRun(job_id=JOB) for _ in range(count)]


async def take(store: Store, limit: int) -> Claimed:
    return await store.claim_runs(1, new_token(), [JOB], limit)


@pytest.mark.parametrize("limit", [1, 7, 20, 33, 1000])
async def test_as_many_as_are_wanted_are_taken_best_first(url: str, limit: int) -> None:
    """And whoever does so as long as there is said to be more has them all."""
    async with opened(url) as store:
        made = [each.id for each in await store.enqueue(many(150))]
        made += [await enqueue(store) for _ in range(3)]
        first = await enqueue(store, priority=0)
        taken: list[int] = []
        more = True
        while more:
            claimed = await take(store, limit)
            more, ids = claimed.more, [each.id for each in claimed.claims]
            assert len(ids) <= limit
            assert sorted([*taken, *ids, *await ready(url)]) == sorted([first, *made])
            taken += ids
        assert taken == [first, *made]


async def test_handfuls_before_single_ones_hide_none_of_them(url: str) -> None:
    async with opened(url) as store:
        await store.enqueue(many(40))
        assert len(await claim(store, 40)) == 40
        for _ in range(30):
            await enqueue(store)
        found: list[Claim] = []
        claimed = await take(store, 40)
        while claimed.claims:
            found += claimed.claims
            assert claimed.more or len(found) == 30
            claimed = await take(store, 40)
        assert len(found) == 30


async def test_nobody_rests_while_others_may_leave_something(url: str) -> None:
    """Each has room for three, and rests when it has them; or when it has not, and nobody else is at it."""
    async with several(url, 8) as stores:
        for _ in range(10):
            made = [each.id for each in await stores[0].enqueue(many(40))]
            made += [await enqueue(stores[0]) for _ in range(3)]

            async def bite(store: Store) -> list[int]:
                taken: list[int] = []
                at_it = True
                while at_it and len(taken) < 3:
                    claimed = await take(store, 3 - len(taken))
                    taken += [each.id for each in claimed.claims]
                    at_it = claimed.busy or claimed.more
                return taken

            async with asyncio.timeout(PATIENCE):
                bites = await asyncio.gather(*(bite(store) for store in stores))
            assert [len(taken) for taken in bites] == [3] * 8
            taken = [run_id for each in bites for run_id in each]
            rest = [each.id for each in await claim(stores[0])]
            assert sorted(taken + rest) == made
            assert await ready(url) == []


@pytest.mark.parametrize("count", [1, 20])
async def test_what_others_have_hold_of_may_be_had_in_a_moment(postgres: str, count: int) -> None:
    async with opened(postgres) as store:
        made = await store.enqueue(many(count))
        other: Any = await asyncpg.connect(postgres)
        try:
            async with other.transaction():
                await other.execute("select from rota.ready for update")
                held = await take(store, 20)
                assert (held.claims, held.more, held.busy) == ([], False, True)
        finally:
            await other.close()
        assert [each.id for each in await claim(store)] == [each.id for each in made]
        assert not (await take(store, 20)).busy


async def test_one_of_many_is_cancelled(url: str) -> None:
    async with opened(url) as store:
        made = [each.id for each in await store.enqueue(many(5))]
        for run_id in (made[0], made[3]):
            assert await store.cancel_run(run_id) == "cancelled"
        assert await ready(url) == [made[1], made[2], made[4]]
        assert [each.id for each in await claim(store, 2)] == [made[1], made[2]]
        assert await store.cancel_run(made[4]) == "cancelled"
        assert await execute(url, "select 1 from ready") == []


async def test_one_that_is_cancelled_while_others_have_hold_of_it_starts_once_and_in_its_time(postgres: str) -> None:
    """Its row is left to them; when it is wanted again, it is no longer in what they left of it."""
    async with opened(postgres) as store:
        await hour(postgres, 0)
        for number in range(4):
            await scheduled(store, name=str(number), concurrency_limit=1)
        await hour(postgres, 1)
        assert (await fire(store)).ready == 4
        ticks = await ready(postgres)
        for unwanted, left in ((ticks[3], 4), (ticks[1], 1)):
            other: Any = await asyncpg.connect(postgres)
            try:
                async with other.transaction():
                    await other.execute("select from rota.ready for update")
                    assert await store.cancel_run(unwanted) == "cancelled"
            finally:
                await other.close()
            assert unwanted in await ready(postgres)
            if left == 1:
                assert [each.id for each in await claim(store, 1)] == [ticks[0]]
                await store.cancel_run(ticks[2])
                assert await ready(postgres) == [unwanted]
            assert await store.retry_run(unwanted) == "queued"
            assert unwanted not in await ready(postgres)
            assert await execute(postgres, "select id from delayed") == [(unwanted,)]
            await execute(postgres, "delete from delayed")


async def test_those_before_the_front_are_looked_for_when_there_are_no_more_behind_it(postgres: str) -> None:
    async with opened(postgres) as store:
        made = [await enqueue(store) for _ in range(150)]
        other: Any = await asyncpg.connect(postgres)
        try:
            async with other.transaction():
                await other.execute("select from rota.ready where id = $1 for update", made[0])
                assert len((await take(store, 100)).claims) == 100
        finally:
            await other.close()
        claimed = await take(store, 100)
        assert (len(claimed.claims), claimed.more) in ((49, True), (50, False))
        if claimed.more:
            assert [each.id for each in await claim(store)] == made[:1]


async def test_more_jobs_than_are_merged_hide_none(postgres: str) -> None:
    async with opened(postgres) as store:
        jobs = [f"job-{n}" for n in range(20)]
        made = sorted([await enqueue(store, job_id=job) for job in jobs])
        found: list[int] = []
        more = True
        while more:
            claimed = await store.claim_runs(1, new_token(), jobs, 100)
            found += [each.id for each in claimed.claims]
            more = claimed.more
        assert sorted(found) == made


async def test_one_that_was_lost_comes_back_beside_those_it_was_made_with(url: str) -> None:
    async with opened(url) as store:
        made = [each.id for each in await store.enqueue(many(5))]
        line = await store.join("a", "host", 1, [JOB])
        await claim(store, 1, replica=line.replica_id)
        await execute(url, "update replicas set beat_at = '2020-01-01 00:00:00.000000'")
        assert (await store.bury([line.replica_id])).requeued == (made[0],)
        await line.close()
        assert await ready(url) == made
        assert [each.id for each in await claim(store)] == made
        assert (await get(store, made[0])).attempt == 2


async def test_ticks_of_one_instant_have_slots_or_none_as_their_schedules_say(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        for number in range(6):
            await scheduled(store, name=str(number), concurrency_limit=number % 2)
        await hour(url, 1)
        assert (await fire(store)).ready == 6
        found = await claim(store)
        slots = {each.config_id: each.slot for each in found}
        limits = {row.id: row.concurrency_limit > 0 for row in await store.list_schedules()}
        assert slots == limits
