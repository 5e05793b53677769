"""Locks in the store: who has them, who gets them next, and from whom they are taken."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import apsw
import asyncpg
import pytest

from rota.contract.locks import LockHolder, Taken
from rota.store import Lifeline, Store
from rota.stores.postgres import connection as pg
from rota.stores.sqlite.session import QUERIES
from tests.harness import execute
from tests.patience import PATIENCE
from tests.store.steps import JOB, count, eventually, hour, new_token, opened, several

LONG_AGO = "'2020-01-01 00:00:00.000000'"


@asynccontextmanager
async def joined(store: Store) -> AsyncIterator[Lifeline]:
    lifeline = await store.join("a", "host", 4711, [JOB])
    try:
        yield lifeline
    finally:
        await lifeline.close()


async def take(
    store: Store,
    name: str = "ledger",
    *,
    token: int | None = None,
    limit: int = 1,
    replica: int | None = None,
    seconds: float = 60.0,
    dead: Sequence[LockHolder] = (),
) -> Taken:
    return await store.take_lock(
        name,
        token or new_token(),
        "me",
        limit=limit,
        replica_id=replica,
        seconds=None if replica else seconds,
        dead=dead,
    )


async def dead_holder(store: Store, name: str = "ledger") -> LockHolder:
    """Its holder, once its session lock is seen to be free."""
    found: list[LockHolder] = []

    async def look() -> bool:
        found[:] = await store.list_locks(name)
        return not found[0].alive

    await eventually(look)
    return found[0]


async def test_one_has_it_and_the_others_see_who(url: str) -> None:
    async with opened(url) as store:
        token = new_token()
        assert (await take(store, token=token)).fence == 1
        refused = await take(store)
        assert refused.fence is None
        [holder] = refused.holders
        assert (holder.name, holder.token, holder.fence, holder.holder) == ("ledger", token, 1, "me")
        assert (holder.alive, holder.replica_id, holder.beat_at) == (True, None, None)
        assert holder.expires_at is not None
        assert holder.expires_at > holder.acquired_at


async def test_a_second_call_with_the_same_token_finds_what_the_first_did(url: str) -> None:
    async with opened(url) as store:
        token = new_token()
        assert [(await take(store, token=token)).fence for _ in range(3)] == [1, 1, 1]
        assert await count(url, "lock_holders") == 1


async def test_the_fence_grows_with_every_acquisition(url: str) -> None:
    async with opened(url) as store:
        for fence in (1, 2, 3):
            token = new_token()
            assert (await take(store, token=token)).fence == fence
            assert (await take(store)).fence is None
            assert await store.release_lock(token)
        assert (await take(store, "another")).fence == 1


async def test_a_lock_that_is_not_held_cannot_be_released(url: str) -> None:
    async with opened(url) as store:
        token = new_token()
        await take(store, token=token)
        assert await store.release_lock(token)
        assert not await store.release_lock(token)


async def test_a_semaphore_has_so_many_holders_and_no_more(url: str) -> None:
    async with opened(url) as store:
        tokens = [new_token() for _ in range(3)]
        assert [(await take(store, token=token, limit=3)).fence for token in tokens] == [1, 2, 3]
        refused = await take(store, limit=3)
        assert refused.fence is None
        assert {holder.token for holder in refused.holders} == set(tokens)
        await store.release_lock(tokens[1])
        assert (await take(store, limit=3)).fence == 4


@pytest.mark.parametrize("limit", [1, 3])
async def test_many_who_come_at_once_are_let_in_up_to_the_limit(url: str, limit: int) -> None:
    async with several(url, 4) as stores:
        for _ in range(10):
            tokens = [new_token() for _ in range(12)]
            tries = [take(stores[n % 4], token=token, limit=limit) for n, token in enumerate(tokens)]
            fences = [each.fence for each in await asyncio.gather(*tries) if each.fence is not None]
            # Whoever was outrun too often gives up for now; nobody gets in beyond the limit.
            assert 1 <= len(fences) <= limit
            assert len(set(fences)) == len(fences)
            assert await count(url, "lock_holders") == len(fences)
            await asyncio.gather(*(stores[0].release_lock(token) for token in tokens))


async def test_a_time_that_is_over_frees_it_and_a_renewal_comes_too_late(url: str) -> None:
    async with opened(url) as store:
        late, kept = new_token(), new_token()
        await take(store, token=late)
        await take(store, "other", token=kept)
        await execute(url, f"update lock_holders set expires_at = {LONG_AGO} where token = {late}")
        assert [(h.name, h.alive) for h in await store.list_locks()] == [("ledger", False), ("other", True)]
        assert await store.renew_locks([late, kept], 60) == {kept}
        assert (await take(store)).fence == 2
        assert not await store.release_lock(late)


async def test_a_renewal_moves_the_end(url: str) -> None:
    async with opened(url) as store:
        token = new_token()
        await take(store, token=token, seconds=1)
        [before] = await store.list_locks()
        assert await store.renew_locks([token], 100) == {token}
        [after] = await store.list_locks()
        assert before.expires_at is not None
        assert after.expires_at is not None
        assert (after.expires_at - before.expires_at).total_seconds() > 90
        assert await store.renew_locks([], 100) == set()


async def test_moving_the_clock_frees_nothing(url: str) -> None:
    async with opened(url) as store:
        token = new_token()
        await take(store, token=token)
        await hour(url, 5)
        assert (await take(store)).fence is None
        assert await store.renew_locks([token], 10) == {token}


async def test_a_replica_holds_as_long_as_it_lives(url: str) -> None:
    async with opened(url) as store, joined(store) as lifeline:
        token = new_token()
        await take(store, token=token, replica=lifeline.replica_id)
        refused = await take(store)
        [holder] = refused.holders
        assert (holder.alive, holder.replica_id, holder.expires_at) == (True, lifeline.replica_id, None)
        assert holder.beat_at is not None
        assert (await take(store, dead=refused.holders)).fence is None
        assert await store.locks_of(lifeline.replica_id) == {token}
        assert await store.locks_of(99) == set()
        # A replica's hold has no time of its own.
        assert await store.renew_locks([token], 10) == {token}
        assert (await store.list_locks())[0].expires_at is None


async def test_a_free_session_lock_counts_at_the_second_look_only(url: str) -> None:
    async with opened(url) as store, joined(store) as lifeline:
        await take(store, replica=lifeline.replica_id)
        await lifeline.close()
        dead = await dead_holder(store)
        assert (await take(store)).fence is None
        assert (await take(store, dead=[dead])).fence == 2


async def test_one_that_came_back_between_two_looks_keeps_it(url: str) -> None:
    async with opened(url) as store, opened(url) as own, joined(own) as lifeline:
        token = new_token()
        await take(store, token=token, replica=lifeline.replica_id)
        await lifeline.close()
        dead = await dead_holder(store)
        back = await own.join("a", "host", 4711, [JOB], resume=lifeline.replica_id)
        assert back.replica_id == lifeline.replica_id
        assert (await take(store, dead=[dead])).fence is None
        # Also if it is gone again by now: that is another absence.
        await back.close()
        again = await dead_holder(store)
        assert again.beat_at != dead.beat_at
        assert (await take(store, dead=[dead])).fence is None
        assert (await take(store, dead=[again])).fence == 2
        assert await store.locks_of(lifeline.replica_id) == set()


async def taken_over(store: Store) -> bool:
    """At the first try, but for a server that has just started: it excuses those who have not beaten since."""
    return (await take(store)).fence == 2


async def test_a_stale_beat_counts_at_once(url: str) -> None:
    async with opened(url) as store, joined(store) as lifeline:
        await take(store, replica=lifeline.replica_id)
        await execute(url, f"update replicas set beat_at = {LONG_AGO}")
        assert not (await store.list_locks())[0].alive
        await eventually(lambda: taken_over(store))


async def test_without_a_session_lock_only_the_beat_counts(url: str) -> None:
    async with opened(url) as store, joined(store) as lifeline:
        await take(store, replica=lifeline.replica_id)
        await execute(url, "update replicas set locked = false")
        await lifeline.close()
        await asyncio.sleep(0.05)
        [holder] = await store.list_locks()
        assert holder.alive
        assert (await take(store, dead=[holder])).fence is None
        await execute(url, f"update replicas set beat_at = {LONG_AGO}")
        await eventually(lambda: taken_over(store))


async def test_whoever_is_buried_or_leaves_holds_nothing(url: str) -> None:
    async with opened(url) as store, joined(store) as dead, joined(store) as leaver:
        await take(store, "a", replica=dead.replica_id)
        await take(store, "b", replica=leaver.replica_id)
        await store.leave(leaver.replica_id)
        await execute(url, f"update replicas set beat_at = {LONG_AGO} where id = {dead.replica_id}")
        await store.bury([dead.replica_id])
        assert await store.list_locks() == []
        # And takes nothing either.
        refused = await take(store, "a", replica=dead.replica_id)
        assert (refused.fence, refused.holders) == (None, ())
        assert await count(url, "lock_holders") == 0
        assert (await take(store, "a")).fence is not None


async def test_what_a_buried_replica_left_behind_is_in_nobodys_way(url: str) -> None:
    async with opened(url) as store:
        await execute(
            url, "insert into lock_holders (token, name, fence, holder, replica_id) values (1, 'ledger', 1, 'x', 77)"
        )
        assert not (await store.list_locks())[0].alive
        assert (await take(store)).fence is not None


async def test_one_name_is_not_a_pattern_for_another(url: str) -> None:
    names = ["a", "A", "a ", "%", "rota:key:1", "\u00e4", "a\u0308", "'; drop table locks; --", "x" * 500]
    async with opened(url) as store:
        for name in names:
            assert (await take(store, name)).fence == 1
        assert [holder.name for holder in await store.list_locks("A")] == ["A"]
        assert {holder.name for holder in await store.list_locks()} == set(names)


async def test_a_release_is_heard_by_the_others(url: str) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    async with opened(url) as store, opened(url) as other:
        token = new_token()
        await take(store, token=token)
        listening = asyncio.create_task(other.listen(heard.put_nowait))
        try:
            async with asyncio.timeout(PATIENCE):
                while await heard.get() != "locks":
                    pass
                await asyncio.sleep(0.1)
                while not heard.empty():
                    heard.get_nowait()
                await store.release_lock(token)
                await store.hint("locks")
                while await heard.get() != "locks":
                    pass
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)


# -- plans -----------------------------------------------------------------------------------------

BY_INDEX = ["take_lock.look", "take_lock.remove", "take_lock", "renew_locks", "locks_of", "release_lock"]


@pytest.mark.parametrize("name", BY_INDEX)
async def test_no_statement_reads_all_locks(url: str, name: str) -> None:
    """However many there are: their plans were made while there were none."""
    async with opened(url):
        plan = await (_sqlite_plan(url, name) if url.startswith("sqlite") else _postgres_plan(url, name))
    assert plan
    for step in plan:
        assert not re.search(r"Seq Scan|SCAN (h|r|locks|lock_holders|replicas)\b", step), plan
        if re.search(r"Index (Only )?Scan|Bitmap Heap", step):
            assert "Cond" in step, plan


async def _postgres_plan(url: str, name: str) -> list[str]:
    connection = await asyncpg.connect(url, server_settings=pg.POOLED)
    try:
        await connection.execute(f"prepare it as {pg.QUERIES[name]}")
        [number] = await connection.fetchrow(
            "select cardinality(parameter_types) from pg_prepared_statements where name = 'it'"
        )  # type: ignore[misc]
        rows = await connection.fetch(f"explain execute it ({', '.join(['null'] * number)})")
        # Each step with what belongs to it.
        return [part for part in "\n".join(row[0] for row in rows).split("->") if part.strip()]
    finally:
        await connection.close()


async def _sqlite_plan(url: str, name: str) -> list[str]:
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    try:
        explained = connection.execute(f"explain query plan {QUERIES[name]}", apsw._null_bindings)  # type: ignore[attr-defined]
        return ["a row is written", *(str(row[3]) for row in explained)]
    finally:
        connection.close()


async def test_holders_that_nobody_will_take_over_from_are_swept(url: str) -> None:
    async with opened(url) as store, joined(store) as lifeline:
        await take(store, "of a replica", replica=lifeline.replica_id)
        await take(store, "of a client")
        await take(store, "expired")
        await execute(url, f"update lock_holders set expires_at = {LONG_AGO} where name = 'expired'")
        await execute(url, "update lock_holders set replica_id = 4711 where name = 'of a replica'")
        assert await store.sweep_locks() == 2
        assert [holder.name for holder in await store.list_locks()] == ["of a client"]
        assert await store.sweep_locks() == 0
