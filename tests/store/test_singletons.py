"""Singletons in the store: state and life, and that only the present term may write them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rota.contract.roles import Fence
from rota.contract.singletons import SingletonRow, role_of
from rota.errors import LeadershipLost, NotFound
from rota.store import Store
from tests.harness import move_clock
from tests.store.steps import opened

NAME = "importer"
ROLE = role_of(NAME)


@asynccontextmanager
async def led(url: str) -> AsyncIterator[tuple[Store, Fence, int]]:
    """A store, and a replica that leads the singleton's role."""
    async with opened(url) as store:
        lifeline = await store.join("a", "host", 4711, [])
        try:
            await store.stand(lifeline.replica_id, [ROLE])
            fence = await store.win_role(ROLE, lifeline.replica_id, seen=0, nonce=11, elector="test")
            assert fence is not None
            yield store, fence, lifeline.replica_id
        finally:
            await lifeline.close()


async def begin(store: Store, fence: Fence, ttl: float | None = None, expect: float | None = None) -> SingletonRow:
    return await store.begin_singleton(NAME, fence, ttl=ttl, heartbeat=30, expect_every=expect)


async def the_row(store: Store) -> SingletonRow:
    [row] = await store.list_singletons(NAME)
    return row


async def test_state_is_there_for_the_next_body(url: str) -> None:
    async with led(url) as (store, fence, replica_id):
        assert (await begin(store, fence)).state is None
        await store.save_state(NAME, fence, '{"offset": 5}')
        later = await store.win_role(ROLE, replica_id, seen=fence.term, nonce=12, elector="test")
        assert later is not None
        assert (await begin(store, later)).state == '{"offset": 5}'


async def test_every_write_of_a_term_that_is_over_is_refused(url: str) -> None:
    async with led(url) as (store, old, replica_id):
        await begin(store, old)
        await store.save_state(NAME, old, '{"offset": 5}')
        new = await store.win_role(ROLE, replica_id, seen=old.term, nonce=12, elector="test")
        assert new is not None
        for stale in (old, Fence(role=ROLE, term=new.term, nonce=old.nonce), Fence(role=ROLE, term=9, nonce=new.nonce)):
            for write in (
                begin(store, stale),
                store.save_state(NAME, stale, '{"offset": 6}'),
                store.keep_aside(NAME, stale, "why"),
                store.beat_singleton(NAME, stale),
                store.note_execution(NAME, stale),
            ):
                with pytest.raises(LeadershipLost, match=f"term {stale.term} of 'singleton:importer' is over"):
                    await write
        row = await the_row(store)
        assert (row.state, row.run_count, await store.lost_states(NAME)) == ('{"offset": 5}', 0, [])


async def test_executions_are_counted_with_the_last_error(url: str) -> None:
    async with led(url) as (store, fence, _):
        await begin(store, fence)
        await store.note_execution(NAME, fence)
        await store.note_execution(NAME, fence, "ValueError: no")
        row = await the_row(store)
        assert (row.run_count, row.failure_count, row.last_error) == (2, 1, "ValueError: no")
        assert row.executed_at is not None
        await store.note_execution(NAME, fence)
        assert (await the_row(store)).last_error is None


async def test_it_is_unhealthy_without_a_beat_for_twice_the_heartbeat(url: str) -> None:
    async with led(url) as (store, fence, _):
        await begin(store, fence)
        await move_clock(url, 55)
        assert (await the_row(store)).healthy
        await move_clock(url, 65)
        assert not (await the_row(store)).healthy
        await store.beat_singleton(NAME, fence)
        assert (await the_row(store)).healthy


async def test_it_is_unhealthy_when_nothing_was_executed_and_a_new_body_gets_no_grace(url: str) -> None:
    async with led(url) as (store, fence, replica_id):
        await begin(store, fence, expect=60)
        await move_clock(url, 125)
        later = await store.win_role(ROLE, replica_id, seen=fence.term, nonce=12, elector="test")
        assert later is not None
        assert not (await begin(store, later, expect=60)).healthy
        await store.note_execution(NAME, later)
        assert (await the_row(store)).healthy


async def test_one_that_nobody_runs_is_not_healthy(url: str) -> None:
    async with led(url) as (store, fence, _):
        await begin(store, fence)
        assert (await the_row(store)).healthy
        await store.release_role(fence)
        assert not (await the_row(store)).healthy


async def test_state_expires_that_long_after_it_was_last_stored(url: str) -> None:
    async with led(url) as (store, fence, replica_id):
        await begin(store, fence, ttl=3600)
        await store.save_state(NAME, fence, "1")
        await move_clock(url, 50 * 60)
        await store.save_state(NAME, fence, "2")
        await move_clock(url, 100 * 60)
        assert (await store.expire_states(), (await the_row(store)).state) == ([], "2")
        await move_clock(url, 120 * 60)
        later = await store.win_role(ROLE, replica_id, seen=fence.term, nonce=12, elector="test")
        assert later is not None
        assert (await begin(store, later, ttl=3600)).state is None


async def test_expired_state_is_cleaned_up_where_nobody_runs_it(url: str) -> None:
    async with led(url) as (store, fence, _):
        await begin(store, fence, ttl=60)
        await store.save_state(NAME, fence, "1")
        await store.release_role(fence)
        await move_clock(url, 120)
        assert await store.expire_states() == [NAME]
        assert (await the_row(store)).state is None


async def test_state_that_cannot_be_read_is_kept_aside(url: str) -> None:
    async with led(url) as (store, fence, _):
        await begin(store, fence)
        await store.save_state(NAME, fence, '{"offset": "far"}')
        await store.keep_aside(NAME, fence, "offset: not a number")
        [kept] = await store.lost_states(NAME)
        assert (kept.state, kept.reason) == ('{"offset": "far"}', "offset: not a number")


async def test_a_reset_is_final_for_the_body_that_runs(url: str) -> None:
    async with led(url) as (store, fence, _):
        await begin(store, fence)
        await store.save_state(NAME, fence, '{"offset": 5}')
        assert await store.reset_singleton(NAME) is True
        with pytest.raises(LeadershipLost):
            await store.save_state(NAME, fence, '{"offset": 6}')
        assert (await the_row(store)).state is None
        assert [kept.state for kept in await store.lost_states(NAME)] == ['{"offset": 5}']
        assert await store.reset_singleton(NAME) is False
        with pytest.raises(NotFound, match="'nobody'"):
            await store.reset_singleton("nobody")
