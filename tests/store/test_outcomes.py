"""Outcomes: recorded once, only by the holder, with everything that follows from them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from rota.errors import NotFound, WrongState
from rota.store import NewRun, Outcome, RunFilter
from tests.harness import execute
from tests.store.steps import (
    JOB,
    START,
    claim,
    claim_one,
    enqueue,
    finish,
    fire,
    get,
    hour,
    ledger,
    opened,
    outcome,
    running,
    scheduled,
    set_clock,
    tick,
)


async def test_an_outcome_is_recorded_with_its_result(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        held = await running(store)
        finished = await finish(store, held, result='{"rows":3}')
        assert (finished.accepted, finished.lost, finished.freed) == (frozenset({held.id}), (), False)
        row = await get(store, held.id)
        assert (row.state, row.result, row.error) == ("succeeded", '{"rows":3}', None)
        assert row.finished_at is not None
        assert abs((row.finished_at - START).total_seconds()) < 60


async def test_a_claim_that_is_used_up_is_forgotten(url: str) -> None:
    async with opened(url) as store:
        first, second = await running(store), await running(store)
        await store.finish_runs([outcome(first)], closed=[first.token])
        assert await execute(url, "select token from claims") == [(second.token,)]


async def test_a_failure_keeps_its_error(url: str) -> None:
    async with opened(url) as store:
        held = await running(store)
        await finish(store, held, "failed", error="ValueError: no")
        row = await get(store, held.id)
        assert (row.state, row.error) == ("failed", "ValueError: no")


async def test_whoever_has_not_the_token_cannot_finish_the_run(url: str) -> None:
    async with opened(url) as store:
        held = await running(store)
        other = await running(store)
        stranger = Outcome(id=held.id, token=held.token + 1_000_000, state="succeeded")
        finished = await store.finish_runs([stranger, outcome(other)], closed=[other.token])
        assert (finished.accepted, finished.lost) == (frozenset({other.id}), (held.id,))
        assert (await get(store, held.id)).state == "running"


async def test_finishing_twice_is_not_a_loss(url: str) -> None:
    async with opened(url) as store:
        for state in ("succeeded", "failed", "cancelled"):
            held = await running(store)
            await finish(store, held, state)
            again = await finish(store, held, state)
            assert again.lost == ()
        held = await running(store)
        await finish(store, held, "queued", delay=0)
        assert (await finish(store, held, "queued", delay=0)).lost == ()
        assert await store.promote_due(10) == 1
        assert (await claim_one(store)).id == held.id
        assert (await finish(store, held)).lost == (held.id,)


async def test_a_retry_waits_for_its_delay_and_is_one_attempt_further(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        held = await running(store)
        await finish(store, held, "queued", error="ValueError: no", delay=300)
        row = await get(store, held.id)
        assert (row.state, row.error, row.attempt, row.finished_at) == ("queued", "ValueError: no", 1, None)
        assert abs((row.run_at - START).total_seconds() - 300) < 60
        assert await store.promote_due(10) == 0
        assert await claim(store) == []
        await set_clock(url, START + timedelta(seconds=400))
        assert await store.promote_due(10) == 1
        again = await claim_one(store)
        assert (again.id, again.attempt) == (held.id, 2)
        assert (await finish(store, held)).lost == (held.id,)
        assert again.id in (await finish(store, again)).accepted


async def test_a_released_attempt_does_not_count(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        made = await scheduled(store)
        await hour(url, 1)
        await fire(store)
        held = await claim_one(store)
        await finish(store, held, "queued", released=True)
        assert (await get(store, held.id)).attempt == 0
        assert [row.run_count for row in await store.list_schedules()] == [1]
        await store.promote_due(10)
        await store.admit_waiting()
        again = await claim_one(store)
        assert (again.attempt, again.due_at, again.config_id) == (1, tick(1), made.id)
        assert [row.run_count for row in await store.list_schedules()] == [1], "it is the same run"


async def test_what_follows_is_made_with_the_outcome(url: str) -> None:
    async with opened(url) as store:
        held = await running(store)
        then = NewRun(job_id="alarm", parameters='{"x": 1}', correlation_id=held.correlation_id, parent_id=held.id)
        await finish(store, held, "failed", error="no", then=then)
        follow = await claim_one(store, jobs=["alarm"])
        row = await get(store, follow.id)
        assert (row.parent_id, row.correlation_id, row.parameters) == (held.id, held.correlation_id, '{"x": 1}')
        assert [r.id for r in await store.find_runs(RunFilter(correlation_id=held.correlation_id))] == [row.id, held.id]


async def test_nothing_follows_from_an_outcome_that_is_refused(url: str) -> None:
    async with opened(url) as store:
        held = await running(store)
        then = NewRun(job_id="alarm")
        await store.finish_runs([Outcome(id=held.id, token=held.token + 10**6, state="failed", then=then)], [])
        await finish(store, held, "failed", then=then)
        await finish(store, held, "failed", then=then)
        assert len(await claim(store, jobs=["alarm"])) == 1


async def test_a_queued_run_is_cancelled_at_once(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        ready, delayed = await enqueue(store), await enqueue(store, delay=60)
        assert [await store.cancel_run(run_id) for run_id in (ready, delayed)] == ["cancelled"] * 2
        assert await store.cancel_run(ready) == "cancelled"
        await hour(url, 1)
        await store.promote_due(10)
        assert await claim(store) == []
        assert (await get(store, ready)).finished_at is not None


async def test_a_cancelled_tick_gives_its_slot_back(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        made = await scheduled(store, overlap="queue")
        await hour(url, 1)
        await fire(store)
        await hour(url, 2)
        await fire(store)
        first, second = await ledger(store, made.id)
        await store.cancel_run(first.id)
        assert await store.admit_waiting() == 1
        assert [each.id for each in await claim(store)] == [second.id]


async def test_a_running_run_is_asked_to_stop(url: str) -> None:
    async with opened(url) as store, opened(url) as other:
        lifeline = await other.join("a", "host", 1, [JOB])
        run_id = await enqueue(store)
        held = await claim_one(store, replica=lifeline.replica_id)
        assert await store.cancel_run(run_id) == "running"
        assert await store.cancel_run(run_id) == "running"
        assert (await lifeline.beat(holding=True)).cancelled == (run_id,)
        await finish(store, held, "cancelled", error="cancelled on request")
        assert (await lifeline.beat(holding=True)).cancelled == ()
        assert await store.cancel_run(run_id) == "cancelled"
        await lifeline.close()


async def test_a_finished_run_stays_what_it_is(url: str) -> None:
    async with opened(url) as store:
        held = await running(store)
        await finish(store, held)
        assert await store.cancel_run(held.id) == "succeeded"
        with pytest.raises(NotFound, match="no run 999"):
            await store.cancel_run(999)


@pytest.mark.parametrize("state", ["failed", "cancelled"])
async def test_a_run_that_did_not_work_can_be_retried_under_its_key(url: str, state: str) -> None:
    async with opened(url) as store:
        held = await running(store, key="k")
        await finish(store, held, state, error="no")  # type: ignore[arg-type]
        assert await store.retry_run(held.id) == "queued"
        row = await get(store, held.id)
        assert (row.state, row.attempt, row.error, row.finished_at) == ("queued", 0, None, None)
        assert await store.promote_due(10) == 1
        again = await claim_one(store)
        assert (again.id, again.key, again.attempt) == (held.id, "k", 1)
        assert again.id in (await finish(store, again)).accepted


async def test_a_skipped_tick_can_be_run_after_all(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        await scheduled(store)
        await hour(url, 1)
        await fire(store)
        held = await claim_one(store)
        await hour(url, 2)
        await fire(store)
        _, skipped = await ledger(store)
        assert (skipped.state, skipped.reason) == ("skipped", "overlap")
        assert await store.retry_run(skipped.id) == "queued"
        await store.promote_due(10)
        assert await store.admit_waiting() == 0
        await finish(store, held)
        assert await store.admit_waiting() == 1
        assert (await claim_one(store)).due_at == tick(2)


async def test_what_cannot_be_retried_is_refused(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        queued = await enqueue(store)
        with pytest.raises(WrongState, match=f"run {queued} is queued"):
            await store.retry_run(queued)
        held = await claim_one(store)
        with pytest.raises(WrongState, match="is running"):
            await store.retry_run(queued)
        await finish(store, held)
        with pytest.raises(WrongState, match="is succeeded"):
            await store.retry_run(queued)
        with pytest.raises(NotFound, match="no run 999"):
            await store.retry_run(999)
        made = await scheduled(store)
        await hour(url, 5)
        await fire(store)
        with pytest.raises(WrongState, match="several missed ticks"):
            await store.retry_run((await ledger(store, made.id))[0].id)


async def test_a_run_that_should_stop_is_not_tried_again(url: str) -> None:
    async with opened(url) as store:
        await store.enqueue([NewRun(job_id=JOB)])
        [held] = await claim(store)
        assert await store.cancel_run(held.id) == "running"
        await finish(store, held, "queued", error="the attempt failed")
        [row] = await store.get_runs([held.id])
        assert (row.state, row.finished_at is None) == ("cancelled", False)
        assert await execute(url, "select 1 from cancellations union all select 1 from delayed") == []
