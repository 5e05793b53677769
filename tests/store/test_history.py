"""History: runs are found, watched, and forgotten in time."""

from __future__ import annotations

from datetime import timedelta

import pytest

from rota.errors import BadInput
from rota.store import NewRun, RunFilter, Store
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

DAY = 24


async def found(store: Store, which: RunFilter) -> list[int]:
    return [row.id for row in await store.find_runs(which)]


async def test_runs_are_found_by_any_of_their_marks(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        made = await scheduled(store)
        await hour(url, 1)
        await fire(store)
        ticked = await claim_one(store)
        await finish(store, ticked, "failed")
        await hour(url, 2)
        other = await enqueue(store, job_id="other", key="a_b%c:1", correlation_id="trace")
        child = await enqueue(store, key="axb%c:2", correlation_id="trace", parent_id=other)
        everything = [child, other, ticked.id]
        assert sorted(await found(store, RunFilter())) == sorted(everything)
        assert set(await found(store, RunFilter(job_id=JOB))) == {child, ticked.id}
        assert await found(store, RunFilter(config_id=made.id)) == [ticked.id]
        assert await found(store, RunFilter(states=("failed", "cancelled"))) == [ticked.id]
        assert await found(store, RunFilter(states=())) == []
        assert await found(store, RunFilter(correlation_id="trace")) == [child, other]
        assert await found(store, RunFilter(correlation_id="trace", job_id="other")) == [other]
        assert await found(store, RunFilter(key_prefix="a_b%c")) == [other]
        assert await found(store, RunFilter(key_prefix="schedule:")) == [ticked.id]
        assert await found(store, RunFilter(since=START + timedelta(hours=1.5))) == [child, other]


async def test_the_newest_runs_come_first(url: str) -> None:
    async with opened(url) as store:
        made = [each.id for each in await store.enqueue([NewRun(job_id=JOB) for _ in range(7)])]
        assert await found(store, RunFilter(limit=3)) == made[:3:-1]


async def test_progress_shows_while_the_run_is_running(url: str) -> None:
    async with opened(url) as store:
        held = await running(store)
        await store.report_progress([(held.id, held.token, '{"done":1}')])
        assert (await get(store, held.id)).progress == '{"done":1}'
        await store.report_progress([(held.id, held.token + 10**6, '{"done":99}'), (999, 1, "{}")])
        assert (await get(store, held.id)).progress == '{"done":1}'
        await finish(store, held, "queued")
        await store.report_progress([(held.id, held.token, '{"done":2}')])
        assert (await get(store, held.id)).progress == '{"done":1}'
        await store.promote_due(10)
        await claim_one(store)
        assert (await get(store, held.id)).progress is None


async def test_progress_that_is_not_json_is_bad_input(url: str) -> None:
    async with opened(url) as store:
        held = await running(store)
        with pytest.raises(BadInput):
            await store.report_progress([(held.id, held.token, "half way")])


async def test_what_is_stored_comes_back_as_it_was(url: str) -> None:
    text = '{"text":"naïve 🎉 \\"quoted\\" %s $1 ?","n":12345678901234567890.5}'
    async with opened(url) as store:
        held = await running(store, parameters=text, key="ключ/%_?", correlation_id="'; drop table job_runs; --")
        assert (held.parameters, held.key, held.correlation_id) == (text, "ключ/%_?", "'; drop table job_runs; --")
        await finish(store, held, result=text, error=None)
        assert (await get(store, held.id)).result == text
        assert await found(store, RunFilter(key_prefix="ключ/%")) == [held.id]


async def test_old_finished_runs_are_pruned_in_batches(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        waiting = await enqueue(store, delay=40 * DAY * 3600)
        for _ in range(5):
            await enqueue(store)
        *ended, still = await claim(store)
        await store.finish_runs([outcome(each) for each in ended], closed=[])
        await hour(url, 9 * DAY)
        recent = await running(store)
        await finish(store, recent)
        assert await store.prune(10, 100) == 0
        await hour(url, 11 * DAY)
        assert await store.prune(10, 3) == 3
        assert await store.prune(10, 3) == 1
        assert await store.prune(10, 3) == 0
        assert {row.id for row in await ledger(store)} == {waiting, still.id, recent.id}


async def test_unfinished_runs_do_not_keep_the_others_from_being_pruned(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        kept = [await enqueue(store, delay=40 * DAY * 3600) for _ in range(3)]
        await finish(store, await running(store))
        await hour(url, 2 * DAY)
        assert await store.prune(1, 2) == 1
        assert {row.id for row in await ledger(store)} == set(kept)


async def test_the_newest_tick_of_a_schedule_is_never_pruned(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        made = await scheduled(store)
        for number in (1, 2, 3):
            await hour(url, number)
            await fire(store)
            await finish(store, await claim_one(store))
        await store.update_schedule(made.id, (await store.list_schedules())[0].version, {"enabled": False})
        await hour(url, 9 * DAY)
        assert await store.prune(1, 100) == 2
        assert await store.prune(1, 100) == 0
        assert [row.due_at for row in await ledger(store)] == [tick(3)]
        assert not (await store.trigger(made.id, tick(3))).created


async def test_a_pruned_key_may_be_used_again(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        held = await running(store, key="k")
        await finish(store, held)
        await set_clock(url, START + timedelta(days=3))
        assert await store.prune(2, 10) == 1
        [again] = await store.enqueue([NewRun(job_id=JOB, key="k")])
        assert again.created
        assert again.id != held.id
