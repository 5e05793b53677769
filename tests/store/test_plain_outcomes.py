"""Successes that leave nothing but the fact take a shorter way; the rules are the same."""

from __future__ import annotations

from rota.store import Claim, JobRow, Outcome
from tests.harness import execute
from tests.store.steps import (
    JOB,
    claim,
    claim_one,
    count,
    enqueue,
    fire,
    get,
    hour,
    opened,
    running,
    scheduled,
)


def plain(claimed: Claim) -> Outcome:
    return Outcome(id=claimed.id, token=claimed.token, state="succeeded", plain=True, slot=claimed.slot)


async def test_plain_successes_of_several_claims_are_recorded_together(url: str) -> None:
    async with opened(url) as store:
        ids = [await enqueue(store) for _ in range(5)]
        held = [*await claim(store, 2), *await claim(store, 3)]
        finished = await store.finish_runs([plain(c) for c in held], closed=sorted({c.token for c in held}))
        assert (finished.accepted, finished.lost, finished.freed) == (frozenset(ids), (), False)
        rows = [await get(store, run_id) for run_id in ids]
        assert {(row.state, row.attempt, row.result, row.error) for row in rows} == {("succeeded", 1, None, None)}
        assert all(row.finished_at is not None for row in rows)
        assert await count(url, "claims") == 0


async def test_a_plain_success_of_a_run_that_another_replica_has_is_lost(url: str) -> None:
    async with opened(url) as store:
        stale = await running(store)
        assert (await store.leave(1)).requeued == (stale.id,)
        fresh = await claim_one(store, replica=2)
        finished = await store.finish_runs([plain(stale)], closed=[])
        assert (finished.accepted, finished.lost) == (frozenset(), (stale.id,))
        assert (await get(store, stale.id)).state == "running"
        assert (await store.finish_runs([plain(fresh)], closed=[])).accepted == {fresh.id}


async def test_of_two_claims_of_one_run_the_valid_one_is_recorded(url: str) -> None:
    async with opened(url) as store:
        stale = await running(store)
        await store.leave(1)
        fresh = await claim_one(store, replica=2)
        finished = await store.finish_runs([plain(stale), plain(fresh)], closed=[])
        assert finished.accepted == {fresh.id}
        assert (await get(store, fresh.id)).state == "succeeded"


async def test_a_plain_success_sent_again_is_neither_accepted_nor_lost(url: str) -> None:
    async with opened(url) as store:
        held = await running(store)
        assert (await store.finish_runs([plain(held), plain(held)], closed=[])).accepted == {held.id}
        again = await store.finish_runs([plain(held)], closed=[])
        assert (again.accepted, again.lost) == (frozenset(), ())


async def test_a_plain_success_and_other_outcomes_go_together(url: str) -> None:
    async with opened(url) as store:
        for _ in range(2):
            await enqueue(store, job_id=JOB)
        first, second = await claim(store, 2)
        failed = Outcome(id=second.id, token=second.token, state="failed", error="no")
        finished = await store.finish_runs([plain(first), failed], closed=[first.token])
        assert finished.accepted == {first.id, second.id}
        assert [(await get(store, c.id)).state for c in (first, second)] == ["succeeded", "failed"]


async def test_a_plain_success_frees_its_slot_only_if_it_is_accepted(url: str) -> None:
    async with opened(url) as store:
        await store.declare([JobRow(job_id=JOB, concurrency_limit=1)], [])
        for _ in range(2):
            await enqueue(store)
        await store.admit_waiting()
        stale = await claim_one(store)
        assert stale.slot
        await store.leave(1)
        fresh = await claim_one(store, replica=2)
        refused = await store.finish_runs([plain(stale)], closed=[])
        assert (refused.lost, refused.freed, await count(url, "scheduler_locks")) == ((stale.id,), False, 1)
        accepted = await store.finish_runs([plain(fresh)], closed=[])
        assert accepted.accepted == {fresh.id}
        assert (accepted.freed, await count(url, "scheduler_locks")) == (True, 0)


async def test_of_a_plain_success_that_comes_too_late_the_slot_stays_taken(url: str) -> None:
    """Beside one that frees its own, in one batch."""
    async with opened(url) as store:
        await hour(url, 0)
        for name in ("a", "b"):
            await scheduled(store, name=name)
        await hour(url, 1)
        await fire(store)
        stale, other = await claim(store)
        assert (stale.slot, other.slot) == (True, True)
        await execute(url, f"update job_runs set lock_token = {stale.token - 1} where id = {stale.id}")
        finished = await store.finish_runs([plain(stale), plain(other)], closed=[])
        assert (finished.accepted, finished.lost) == (frozenset([other.id]), (stale.id,))
        assert await count(url, f"scheduler_locks where run_id = {stale.id}") == 1
        assert await count(url, "scheduler_locks") == 1
