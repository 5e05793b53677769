"""How a schedule is doing: what it made, what became of the newest, what went wrong."""

from __future__ import annotations

import pytest

from rota.store import Store
from tests.harness import execute
from tests.store.steps import (
    admitted,
    claim_one,
    count,
    finish,
    fire,
    hour,
    ledger,
    only_schedule,
    opened,
    schedule,
    scheduled,
    story,
    tick,
)


async def doing(store: Store) -> tuple[int, str | None]:
    row = await only_schedule(store)
    return row.run_count, row.last_state


async def test_the_metadata_of_a_schedule_follows_its_runs(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        made = await scheduled(store)
        assert (await doing(store), (await only_schedule(store)).last_run_at) == ((0, None), None)
        for number, end in ((1, "succeeded"), (2, "failed")):
            await hour(url, number)
            await fire(store)
            assert await doing(store) == (number, "queued")
            held = await claim_one(store)
            assert await doing(store) == (number, "running")
            await finish(store, held, "failed" if end == "failed" else "succeeded", error="no" if number == 2 else None)
        row = await schedule(store, made.id)
        assert (row.run_count, row.failure_count) == (2, 1)
        assert (row.last_state, row.last_error) == ("failed", "no")
        assert row.last_run_at is not None
        assert abs((row.last_run_at - tick(2)).total_seconds()) < 60


async def test_the_last_error_stays_when_later_runs_succeed(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        await scheduled(store)
        for number, error in ((1, "first"), (2, "second"), (3, None)):
            await hour(url, number)
            await fire(store)
            await finish(store, await claim_one(store), "failed" if error else "succeeded", error=error)
        row = await only_schedule(store)
        assert (row.run_count, row.failure_count, row.last_error, row.last_state) == (3, 2, "second", "succeeded")


async def test_an_attempt_that_is_tried_again_leaves_its_error_and_is_no_failure_yet(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        await scheduled(store)
        await hour(url, 1)
        await fire(store)
        await finish(store, await claim_one(store), "queued", error="later")
        row = await only_schedule(store)
        assert (row.run_count, row.failure_count, row.last_error, row.last_state) == (1, 0, "later", "queued")


async def test_a_tick_that_does_not_run_is_not_counted(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        await scheduled(store)
        await hour(url, 1)
        await fire(store)
        await claim_one(store)
        await hour(url, 2)
        assert (await fire(store)).skipped == 1
        assert await doing(store) == (1, "running")


async def test_all_ticks_that_are_caught_up_with_count_and_the_newest_is_the_last(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        await scheduled(store, catch_up="all", concurrency_limit=2)
        await hour(url, 4)
        assert (await fire(store)).runs == 4
        assert await doing(store) == (4, "queued")
        for held in [await claim_one(store), await claim_one(store)]:
            await finish(store, held)
        assert await doing(store) == (4, "queued")
        older, newest = await admitted(store)
        await finish(store, newest)
        assert await doing(store) == (4, "succeeded")
        await finish(store, older, "failed", error="no")
        assert await doing(store) == (4, "succeeded")


async def test_runs_that_are_made_by_hand_count(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        made = await scheduled(store)
        await store.trigger(made.id, None)
        assert await doing(store) == (1, "queued")
        ticks = [tick(-3), tick(-2)]
        assert [run.created for run in await store.trigger_ticks(made.id, ticks)] == [True, True]
        assert [run.created for run in await store.trigger_ticks(made.id, ticks)] == [False, False]
        assert await doing(store) == (3, "queued")


async def test_a_tick_that_was_made_by_hand_before_its_time_counts_once(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        made = await scheduled(store)
        early = await store.trigger(made.id, tick(1))
        await store.promote_due(10)
        [held] = await admitted(store)
        await finish(store, held)
        await hour(url, 1)
        fired = await fire(store)
        assert (early.id, fired.schedules, fired.runs) == (held.id, 1, 0)
        assert await doing(store) == (1, "succeeded")


@pytest.mark.parametrize("ends", [("failed", "succeeded"), ("failed", "failed")])
async def test_a_run_that_is_retried_by_hand_counts_once(url: str, ends: tuple[str, str]) -> None:
    """And as a failure only if it failed in the end."""
    async with opened(url) as store:
        await hour(url, 0)
        await scheduled(store)
        await hour(url, 1)
        await fire(store)
        held = await claim_one(store)
        await finish(store, held, "failed", error="no")
        await store.retry_run(held.id)
        assert (await only_schedule(store)).failure_count == 0
        await store.promote_due(10)
        [again] = await admitted(store)
        if ends[1] == "failed":
            await finish(store, again, "failed", error="no")
        else:
            await finish(store, again)
        row = await only_schedule(store)
        assert (row.run_count, row.failure_count, row.last_state) == (1, ends[1] == "failed", ends[1])


async def test_a_skipped_tick_that_is_run_after_all_counts_and_is_the_last(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        made = await scheduled(store)
        await hour(url, 1)
        await fire(store)
        first = await claim_one(store)
        await hour(url, 2)
        await fire(store)
        await finish(store, first)
        _, skipped = await ledger(store, made.id)
        assert (skipped.state, await doing(store)) == ("skipped", (1, "succeeded"))
        await store.retry_run(skipped.id)
        assert await doing(store) == (2, "queued")
        await store.promote_due(10)
        [held] = await admitted(store)
        await finish(store, held, "failed", error="no")
        row = await only_schedule(store)
        assert (held.id, row.run_count, row.failure_count, row.last_state) == (skipped.id, 2, 1, "failed")
        await store.retry_run(skipped.id)
        assert await doing(store) == (2, "queued"), "it is no new one"


async def test_the_last_run_of_a_schedule_is_never_pruned(url: str) -> None:
    """Also where ticks that did not run came after it."""
    async with opened(url) as store:
        await hour(url, 0)
        made = await scheduled(store)
        for number in (1, 2):
            await hour(url, number)
            await fire(store)
            await finish(store, await claim_one(store))
        await execute(url, f"update scheduler_configs set catch_up = 'skip' where id = {made.id}")
        await hour(url, 100.5)
        await fire(store)
        states = [state for state, *_ in await story(store)]
        assert states == ["succeeded", "succeeded", *["skipped"] * (len(states) - 2)]
        await hour(url, 200.5)
        await fire(store)
        before = await only_schedule(store)
        assert await store.prune(1, 100) > 0
        after = await only_schedule(store)
        assert (after.run_count, after.last_state, after.last_run_at) == (2, "succeeded", before.last_run_at)
        assert after.last_run_at is not None


@pytest.mark.parametrize("failed", [True, False])
async def test_nothing_is_left_of_a_deleted_schedule(url: str, failed: bool) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        made = await scheduled(store)
        await hour(url, 1)
        await fire(store)
        await finish(store, await claim_one(store), "failed" if failed else "succeeded", error="no" if failed else None)
        assert await count(url, "schedule_failures") == failed
        await store.delete_schedule(made.id)
        assert (await count(url, "schedule_failures"), await count(url, "schedule_stats")) == (0, 0)
