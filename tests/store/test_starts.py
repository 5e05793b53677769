"""Ticks that start in the transaction that makes them: as if they had been claimed, in one step less."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from rota.contract.places import Places
from rota.errors import RotaError
from rota.store import Claim, Fired, JobRow, Store
from tests.harness import execute
from tests.store.steps import (
    JOB,
    START,
    claim,
    claim_one,
    decide,
    enqueue,
    eventually,
    finish,
    get,
    hour,
    new_token,
    opened,
    schedule,
    scheduled,
    tick,
)

OTHER = "other"


def places(room: int, *, replica: int = 7, token: int | None = None, jobs: Sequence[str] = (JOB,)) -> Places:
    return Places(replica_id=replica, token=token or new_token(), lanes=((frozenset(jobs), room),))


async def start(store: Store, offered: Places | None, jobs: Sequence[str] = (JOB, OTHER)) -> Fired:
    return await store.fire_due(decide, jobs=jobs, limit=1000, advisory=True, leave=[], start=lambda: offered)


async def test_a_tick_that_has_a_place_is_running_when_it_is_made(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        made = await scheduled(store, parameters='{"n": 1}', priority=3)
        await hour(url, 1)
        offered = places(5)
        fired = await start(store, offered)
        assert (fired.runs, fired.ready, fired.skipped, len(fired.claims)) == (1, 0, 0, 1)
        [begun] = fired.claims
        row = await get(store, begun.id)
        assert (row.state, row.replica_id, row.attempt, row.due_at) == ("running", 7, 1, tick(1))
        assert row.started_at is not None
        assert abs((row.started_at - START - timedelta(hours=1)).total_seconds()) < 60
        assert (begun.token, begun.job_id, begun.config_id, begun.key) == (
            offered.token,
            JOB,
            made.id,
            row.idempotency_key,
        )
        assert (begun.due_at, begun.attempt, begun.losses, begun.slot) == (tick(1), 1, 0, True)
        assert await claim(store) == []
        assert (await schedule(store, made.id)).next_run_at == tick(2)


async def test_what_started_so_is_what_a_claim_would_have_returned(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        await scheduled(store, parameters='{"text": "\\u00fc \\" x", "n": [1, 2.50]}', priority=2)
        await hour(url, 1)
        offered = places(5)
        fired = await start(store, offered)
        # Asked for again it is read from the database, as every other claim is.
        assert tuple(await store.reclaim(7, offered.token)) == fired.claims
        await finish(store, fired.claims[0])
        await hour(url, 2)
        await start(store, None)
        ready = await claim_one(store)
        changed = {"id", "token", "key", "due", "rank", "correlation_id"}
        same = [name for name in Claim.__struct_fields__ if name not in changed]
        assert [getattr(ready, name) for name in same] == [getattr(fired.claims[0], name) for name in same]


async def test_its_slot_is_held_and_freed_like_any_other(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        await scheduled(store)
        await hour(url, 1)
        [first] = (await start(store, places(5))).claims
        [(holder, expires)] = await execute(url, "select replica_id, expires_at from scheduler_locks")
        assert holder == 7
        assert "9999" not in str(expires), "it expires"
        assert "infinity" not in str(expires)
        await hour(url, 2)
        fired = await start(store, places(5))
        assert (fired.runs, fired.skipped, fired.claims) == (0, 1, ())
        await finish(store, first)
        await hour(url, 3)
        assert len((await start(store, places(5))).claims) == 1


async def test_as_many_start_as_there_are_places_the_best_first(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        rows = [await scheduled(store, name=f"s{n}", priority=9 - n) for n in range(5)]
        await hour(url, 1)
        fired = await start(store, places(2))
        assert (fired.runs, fired.ready) == (5, 3)
        assert [each.config_id for each in fired.claims] == [rows[4].id, rows[3].id]
        assert [each.config_id for each in await claim(store)] == [rows[2].id, rows[1].id, rows[0].id]


async def test_each_lane_has_places_of_its_own(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        for job in (JOB, OTHER, "third"):
            for n in range(3):
                await scheduled(store, job_id=job, name=f"s{n}")
        await hour(url, 1)
        offered = Places(replica_id=7, token=new_token(), lanes=((frozenset([JOB]), 1), (frozenset([OTHER]), 2)))
        fired = await start(store, offered, [JOB, OTHER, "third"])
        assert sorted(each.job_id for each in fired.claims) == sorted([JOB, OTHER, OTHER])
        assert fired.ready == 6


async def test_nothing_overtakes_what_is_ready_and_should_go_first(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        for job in (JOB, OTHER):
            await scheduled(store, job_id=job)
        waits = await enqueue(store)  # since an hour
        await hour(url, 1)
        offered = Places(replica_id=7, token=new_token(), lanes=((frozenset([JOB]), 5), (frozenset([OTHER]), 5)))
        fired = await start(store, offered)
        assert [each.job_id for each in fired.claims] == [OTHER]
        assert (await claim(store, 2))[0].id == waits


async def test_one_that_is_ready_and_may_wait_is_overtaken(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        await scheduled(store, priority=1)
        await hour(url, 1)
        await enqueue(store, priority=9)
        assert len((await start(store, places(5))).claims) == 1


async def test_runs_of_a_limited_job_wait_for_their_slot(url: str) -> None:
    async with opened(url) as store:
        await store.declare([JobRow(job_id=JOB, concurrency_limit=1)], [])
        await hour(url, 0)
        await scheduled(store, name="a")
        await scheduled(store, name="b")
        await hour(url, 1)
        fired = await start(store, places(5))
        assert (fired.runs, fired.ready, fired.claims) == (2, 0, ())


async def test_a_tick_that_was_made_by_hand_is_not_started_again(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        made = await scheduled(store)
        await store.trigger(made.id, tick(1))
        await hour(url, 1)
        fired = await start(store, places(5))
        assert (fired.schedules, fired.runs, fired.claims) == (1, 0, ())


async def test_what_was_started_for_one_that_is_gone_comes_back(url: str) -> None:
    """Its scheduler was frozen with the worker's places at hand, and buried before it made the tick."""
    async with opened(url) as store:
        await hour(url, 0)
        await scheduled(store)
        await hour(url, 1)
        gone = await store.join("gone", "host", 1, [JOB])
        await gone.close()
        await eventually(lambda: _is_buried(store, gone.replica_id))
        [begun] = (await start(store, places(5, replica=gone.replica_id))).claims
        assert (await get(store, begun.id)).state == "running"
        assert (await store.bury([])).requeued == (begun.id,)
        row = await get(store, begun.id)
        assert (row.state, row.losses) == ("queued", 1)
        assert [again.id for again in await claim(store)] == [begun.id]


async def _is_buried(store: Store, replica_id: int) -> bool:
    return replica_id in (await store.bury([replica_id])).replicas


async def test_without_a_place_nothing_is_claimed(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        await scheduled(store)
        await hour(url, 1)
        assert (await start(store, places(5, jobs=["third"]))).claims == ()
        assert await execute(url, "select count(*) from claims") == [(0,)]
        assert len(await claim(store)) == 1


async def test_a_token_that_was_asked_for_in_vain_starts_nothing_any_more(url: str) -> None:
    """The reply was lost, and the server may still be at it: whoever comes first has the token."""
    async with opened(url) as store:
        await hour(url, 0)
        made = await scheduled(store)
        await hour(url, 1)
        offered = places(5)
        assert await store.reclaim(7, offered.token) == []
        with pytest.raises(Exception, match=r"(?i)unique"):
            await start(store, offered)
        assert (await schedule(store, made.id)).next_run_at == tick(1)
        assert await execute(url, "select count(*) from job_runs") == [(0,)]
        assert len((await start(store, places(5))).claims) == 1


async def test_nor_does_a_claim_under_it_take_anything(url: str) -> None:
    async with opened(url) as store:
        run_id, token = await enqueue(store), new_token()
        assert await store.reclaim(1, token) == []
        with pytest.raises(RotaError):
            await claim(store, token=token)
        assert [each.id for each in await claim(store)] == [run_id]


async def test_a_claim_is_asked_for_again_by_its_token(url: str) -> None:
    async with opened(url) as store:
        for _ in range(3):
            await enqueue(store)
        token = new_token()
        first = await claim(store, 2, token=token)
        assert await store.reclaim(1, token) == first
        await finish(store, first[0])
        assert await store.reclaim(1, token) == first[1:]
