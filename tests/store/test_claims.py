"""What a claim does to a run: the same whether it takes the only one there is, or several at once."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from rota.store import Claim, NewRun
from tests.harness import execute, ready
from tests.patience import PATIENCE
from tests.store.steps import (
    JOB,
    claim,
    count,
    enqueue,
    finish,
    fire,
    get,
    hour,
    new_token,
    opened,
    running,
    scheduled,
    several,
    tick,
)

pytestmark = pytest.mark.parametrize("number", [1, 3])


def everything(claims: list[Claim]) -> list[int]:
    return sorted(each.id for each in claims)


async def test_it_is_written_down_who_has_it_since_when_and_by_which_token(url: str, number: int) -> None:
    async with opened(url) as store:
        await hour(url, 1)
        made = [await enqueue(store, parameters=f'{{"n":{n}}}', correlation_id=f"c{n}") for n in range(number)]
        token = new_token()
        claims = await claim(store, replica=7, token=token)
        assert [each.id for each in claims] == made
        assert [(each.parameters, each.correlation_id) for each in claims] == [
            (f'{{"n":{n}}}', f"c{n}") for n in range(number)
        ]
        for each in claims:
            row = await get(store, each.id)
            assert (row.state, row.attempt, row.replica_id, each.attempt) == ("running", 1, 7, 1)
            assert row.started_at is not None
            assert abs((row.started_at - tick(1)).total_seconds()) < 60, "by the database's clock"
        assert await execute(url, "select distinct lock_token from job_runs") == [(token,)]
        assert everything(await store.reclaim(7, token)) == made
        assert await ready(url) == []


async def test_what_the_attempt_before_left_is_gone(url: str, number: int) -> None:
    async with opened(url) as store:
        before = [await running(store) for _ in range(number)]
        for each in before:
            await finish(store, each, "queued", error="later")
        await store.promote_due(100)
        again = await claim(store)
        assert everything(again) == [each.id for each in before]
        assert {each.attempt for each in again} == {2}
        assert [(await get(store, each.id)).error for each in again] == [None] * number
        assert (await finish(store, before[0])).accepted == frozenset(), "of the token before"
        for each in again:
            assert (await finish(store, each)).accepted == {each.id}


async def test_a_run_that_is_no_longer_queued_does_not_start(url: str, number: int) -> None:
    async with opened(url) as store:
        made = [await enqueue(store) for _ in range(number)]
        await execute(url, f"update job_runs set state = 'cancelled' where id = {made[0]}")
        assert everything(await claim(store)) == made[1:]
        assert (await get(store, made[0])).state == "cancelled"
        assert await ready(url) == []
        assert (await store.claim_runs(1, new_token(), [JOB], 10)).more is False


async def test_a_slot_is_held_by_who_starts_the_run_from_then_on(url: str, number: int) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        for n in range(number):
            await scheduled(store, name=str(n), concurrency_limit=1, lock_timeout_seconds=600)
        await hour(url, 1)
        await fire(store)
        assert await count(url, "scheduler_locks where replica_id is not null") == 0
        await hour(url, 2)
        claims = await claim(store, replica=7)
        assert [each.slot for each in claims] == [True] * number
        assert await count(url, "scheduler_locks where replica_id = 7") == number
        first, last = (f"'{tick(2) + timedelta(minutes=after):%Y-%m-%d %H:%M:%S}+00'" for after in (9, 12))
        assert await count(url, f"scheduler_locks where expires_at between {first} and {last}") == number


async def test_many_that_want_it_at_once_have_it_once(url: str, number: int) -> None:
    async with several(url, 5) as stores:
        await stores[0].enqueue([NewRun(job_id="a")])
        await claim(stores[0], jobs=["a", "b"])
        for _ in range(20):
            made = [made.id for n in range(number) for made in await stores[0].enqueue([NewRun(job_id="ab"[n % 2])])]
            got: list[int] = []
            async with asyncio.timeout(PATIENCE):
                while len(got) < number:
                    found = await asyncio.gather(*(claim(store, jobs=["a", "b"]) for store in stores))
                    got += [each.id for claims in found for each in claims]
            assert sorted(got) == made
