"""The breaker: shared by the cluster, opened by failures in a row, closed by one probe."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Literal

from rota.store import JobRow, Store
from tests.harness import execute
from tests.store.steps import (
    JOB,
    claim,
    claim_one,
    enqueue,
    finish,
    fire,
    hour,
    opened,
    scheduled,
    set_clock,
    several,
    story,
    tick,
)

PAUSE = 3600.0


async def breaker(url: str) -> str:
    [(state,)] = await execute(url, f"select breaker from jobs where job_id = '{JOB}'")
    return str(state)


async def attempt(store: Store, end: Literal["succeeded", "failed", "queued"], **more: bool) -> None:
    await enqueue(store)
    error = None if end == "succeeded" else "RuntimeError: no"
    await finish(store, await claim_one(store), end, error=error, delay=1e6 if end == "queued" else 0.0, **more)


async def guarded(store: Store, failures: int = 2) -> None:
    await store.declare([JobRow(job_id=JOB, breaker_failures=failures, breaker_pause=PAUSE)], [])


async def opened_breaker(url: str, store: Store) -> None:
    """It opens at ten seconds past noon."""
    await hour(url, 0)
    await guarded(store)
    await attempt(store, "failed")
    await attempt(store, "failed")
    assert await breaker(url) == "open"


async def test_failures_in_a_row_open_it(url: str) -> None:
    async with opened(url) as store, opened(url) as other:
        await guarded(store, 3)
        await attempt(store, "failed")
        await attempt(other, "failed")
        await attempt(store, "succeeded")
        await attempt(store, "failed")
        await attempt(other, "queued")
        assert await breaker(url) == "closed"
        await attempt(store, "failed")
        assert await breaker(url) == "open"


async def test_failures_of_one_batch_count_each(url: str) -> None:
    async with opened(url) as store:
        await guarded(store, 3)
        for _ in range(3):
            await enqueue(store)
        held = await claim(store)
        await asyncio.gather(*(finish(store, each, "failed", error="no") for each in held))
        assert await breaker(url) == "open"


async def test_what_was_released_or_cancelled_does_not_count(url: str) -> None:
    async with opened(url) as store:
        await guarded(store, 1)
        await attempt(store, "queued", released=True)
        await enqueue(store)
        await finish(store, await claim_one(store), "cancelled", error="cancelled on request")
        assert await breaker(url) == "closed"


async def test_a_job_without_a_breaker_never_opens_one(url: str) -> None:
    async with opened(url) as store:
        await store.declare([JobRow(job_id=JOB)], [])
        for _ in range(5):
            await attempt(store, "failed")
        assert await breaker(url) == "closed"


async def test_ticks_are_skipped_while_it_is_open(url: str) -> None:
    async with opened(url) as store:
        await opened_breaker(url, store)
        made = await scheduled(store, cron="*/10 * * * *")
        for minutes in (10, 20):
            await set_clock(url, tick(0) + timedelta(minutes=minutes, seconds=5))
            await fire(store)
        assert await story(store, made.id) == [("skipped", "circuit_open", 1)] * 2


async def test_after_the_pause_one_probe_goes_through(url: str) -> None:
    async with opened(url) as store:
        await opened_breaker(url, store)
        made = [await scheduled(store, name=name) for name in ("one", "two")]
        await set_clock(url, tick(1) + timedelta(seconds=30))
        await fire(store)
        stories = [await story(store, each.id) for each in made]
        assert sorted(stories) == [[("queued", None, 1)], [("skipped", "circuit_open", 1)]]
        assert await breaker(url) == "half_open"


async def test_one_probe_goes_through_whoever_makes_it(url: str) -> None:
    async with several(url, 4) as stores:
        await opened_breaker(url, stores[0])
        for number in range(4):
            await scheduled(stores[0], name=f"n{number}", catch_up="all")
        await set_clock(url, tick(1) + timedelta(seconds=30))
        fired = await asyncio.gather(*(fire(store, limit=1) for store in stores))
        while (more := await fire(stores[0])).schedules:
            fired.append(more)
        assert (sum(each.runs for each in fired), sum(each.skipped for each in fired)) == (1, 3)


async def test_a_probe_that_succeeds_closes_it(url: str) -> None:
    async with opened(url) as store:
        await opened_breaker(url, store)
        made = await scheduled(store)
        await set_clock(url, tick(1) + timedelta(seconds=30))
        await fire(store)
        await finish(store, await claim_one(store))
        assert await breaker(url) == "closed"
        await hour(url, 2)
        await fire(store)
        assert await story(store, made.id) == [("succeeded", None, 1), ("queued", None, 1)]


async def test_a_probe_that_fails_opens_it_for_another_pause(url: str) -> None:
    async with opened(url) as store:
        await opened_breaker(url, store)
        made = await scheduled(store, cron="*/20 * * * *")
        await set_clock(url, tick(1) + timedelta(seconds=30))
        await fire(store)
        await finish(store, await claim_one(store), "failed", error="no")
        assert await breaker(url) == "open"
        await set_clock(url, tick(1) + timedelta(minutes=45))
        await fire(store)
        await set_clock(url, tick(2) + timedelta(minutes=5))
        await fire(store)
        assert await story(store, made.id) == [
            ("skipped", "catch_up", 2),
            ("failed", None, 1),
            ("skipped", "catch_up", 1),
            ("skipped", "circuit_open", 1),
            ("queued", None, 1),
        ]


async def test_a_probe_that_never_ends_is_followed_by_another(url: str) -> None:
    async with opened(url) as store:
        await opened_breaker(url, store)
        made = await scheduled(store, concurrency_limit=0, cron="*/30 * * * *", catch_up="all")
        await hour(url, 1.01)
        await fire(store)
        assert await breaker(url) == "half_open"
        await hour(url, 1.5)
        await fire(store)
        await hour(url, 2.02)
        await fire(store)
        assert [row[:2] for row in await story(store, made.id)] == [
            ("queued", None),
            ("skipped", "circuit_open"),
            ("skipped", "circuit_open"),
            ("queued", None),
        ]


async def test_a_success_by_hand_closes_it(url: str) -> None:
    async with opened(url) as store:
        await opened_breaker(url, store)
        await attempt(store, "succeeded")
        assert await breaker(url) == "closed"
