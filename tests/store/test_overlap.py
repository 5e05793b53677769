"""Overlap: what becomes of a tick that comes while the last one is still running."""

from __future__ import annotations

import pytest

from tests.harness import execute
from tests.store.steps import admitted, claim_one, finish, fire, get, hour, opened, scheduled, story, tick

OVERLAPS = {
    "skip": [("running", None, 1), ("skipped", "overlap", 1), ("skipped", "overlap", 1)],
    "queue": [("running", None, 1), ("queued", None, 1), ("queued", None, 1)],
    "queue_one": [("running", None, 1), ("queued", None, 1), ("skipped", "overlap", 1)],
    "cancel": [("running", None, 1), ("queued", None, 1), ("skipped", "overlap", 1)],
}


@pytest.mark.parametrize("overlap", OVERLAPS)
async def test_a_tick_that_overlaps_follows_the_policy(url: str, overlap: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        await scheduled(store, overlap=overlap)
        await hour(url, 1)
        await fire(store)
        first = await claim_one(store, replica=4)
        for number in (2, 3):
            await hour(url, number)
            await fire(store)
        assert await story(store) == OVERLAPS[overlap]
        asked = await execute(url, "select run_id, replica_id from cancellations")
        assert asked == ([(first.id, 4)] if overlap == "cancel" else [])
        await finish(store, first, "cancelled" if overlap == "cancel" else "succeeded")
        following = await admitted(store)
        assert [each.due_at for each in following] == ([] if overlap == "skip" else [tick(2)])


async def test_a_retry_waits_for_a_slot_like_any_other(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        await scheduled(store, overlap="queue", catch_up="all")
        await hour(url, 2)
        await fire(store)
        [first] = await admitted(store)
        await finish(store, first, "queued", error="no")
        # Its place in the line is now behind the one that waited longer.
        [second] = await admitted(store)
        assert second.due_at == tick(2)
        assert (await get(store, first.id)).state == "queued"
        await finish(store, second)
        [again] = await admitted(store)
        assert (again.id, again.attempt, again.slot) == (first.id, 2, True)
