"""Roles on Postgres while somebody else is in the middle of something: who waits for whom, and who is let live."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from rota.contract.singletons import role_of
from rota.errors import StoreUnavailable
from rota.settings import Settings
from rota.store import Lifeline, Store
from rota.stores import open_store
from rota.stores.postgres import connection as pg
from rota.stores.postgres.store import PostgresStore
from tests.app.waiting import until
from tests.harness import Databases, execute
from tests.store.leading import dies, seat, silent, standing, win, won
from tests.store.steps import opened

ASKED_FOR_THE_LOCK = """
select 1 from pg_stat_activity
where datname = current_database() and application_name like 'rota-%' and query like '%pg_try_advisory_lock($1, $2)%'
"""


@pytest.fixture
def url(databases: Databases, tmp_path: Path) -> str:
    return databases.new("postgres", tmp_path)


@asynccontextmanager
async def somebody(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def waits_for_a_lock(url: str) -> None:
    waits = "select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    await until(lambda: execute(url, waits))


async def test_one_that_is_being_buried_wins_nothing(url: str) -> None:
    async with standing(url) as (store, [first, _]), somebody(url) as caretaker:
        async with caretaker.transaction():
            await caretaker.execute("delete from rota.replicas where id = $1", first.replica_id)
            winning = asyncio.create_task(win(store, first))
            await waits_for_a_lock(url)
        assert await winning is None
        assert (await seat(store)).term == 0


@asynccontextmanager
async def falls_silent(url: str, **settings: str) -> AsyncIterator[Any]:
    """A transaction of somebody who is never heard of again."""
    connection = await asyncpg.connect(url, server_settings=settings)
    await connection.execute("begin")
    try:
        yield connection
    finally:
        connection.terminate()


async def halfway(connection: Any) -> None:
    """Where the server does not take a session for idle: its driver has prepared a statement, and has not run it."""
    await connection.prepare("select 'halfway'")


@asynccontextmanager
async def dead_in_a_write(url: str) -> AsyncIterator[tuple[Store, Lifeline, Lifeline]]:
    """A leader that died halfway through a statement of a fenced transaction, and one that would lead."""
    async with standing(url) as (store, [first, second]), falls_silent(url) as body:
        fence = await won(store, first)
        await store.check_fence(fence, body)
        await halfway(body)
        await dies(store, first)
        yield store, first, second


async def test_a_fenced_write_that_is_silent_halfway_through_a_statement_does_not_keep_the_role(url: str) -> None:
    async with dead_in_a_write(url) as (store, _, second):
        assert (await won(store, second, seen=1, nonce=8)).term == 2


async def test_one_that_copies_something_under_its_term_is_not_silent(url: str) -> None:
    copied = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield b"1\n"
        await copied.wait()
        yield b"2\n"

    async with standing(url) as (store, [first, second]), somebody(url) as body:
        await body.execute("create table numbers (n integer)")
        fence = await won(store, first)
        async with body.transaction():
            await store.check_fence(fence, body)
            copying = asyncio.create_task(body.copy_to_table("numbers", source=slowly()))
            winning = asyncio.create_task(win(store, second, seen=1, nonce=8))
            quiet = "select 1 from pg_stat_activity where query ilike 'copy%' and state_change < now() - interval '4 s'"
            await until(lambda: execute(url, quiet))
            copied.set()
            await copying
        assert await winning is None
        assert await body.fetchval("select count(*) from numbers") == 2


async def test_nor_does_it_keep_its_replica_from_being_buried(url: str) -> None:
    async with dead_in_a_write(url) as (store, first, _):
        assert (await store.bury([first.replica_id])).replicas == (first.replica_id,)
        assert (await seat(store)).replica_id is None


async def test_nobody_loses_a_role_because_the_silent_could_not_be_ended(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a help: without the right to it, one waits for what would have been waited for anyway."""
    real, asked = PostgresStore.fetch, asyncio.Event()

    async def fetch(self: PostgresStore, name: str, *arguments: Any, **more: Any) -> Any:
        if name == "win_role.end_silent":
            asked.set()
            raise StoreUnavailable("permission denied to terminate process")
        return await real(self, name, *arguments, **more)

    monkeypatch.setattr(PostgresStore, "fetch", fetch)
    async with standing(url) as (store, [first, second]), somebody(url) as body:
        fence = await won(store, first)
        async with body.transaction():
            await store.check_fence(fence, body)
            await dies(store, first)
            winning = asyncio.create_task(won(store, second, seen=1, nonce=8))
            await asked.wait()
        assert (await winning).term == 2


async def test_sessions_that_the_dead_has_again_end_before_its_runs_are_touched(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It woke up after its sessions were ended, and froze before its row was gone."""
    alive = "select '' as session where ($1::integer, $2::integer[], $3::float8) is null"
    monkeypatch.setitem(pg.QUERIES, "bury.dead", alive)
    async with standing(url) as (store, [_, frozen]):
        [(tag,)] = await execute(url, f"select session from replicas where id = {frozen.replica_id}")
        async with falls_silent(url, application_name=str(tag)) as handler:
            await silent(url, frozen, 60)
            assert (await store.bury([frozen.replica_id])).replicas == (frozen.replica_id,)
            there = f"select 1 from pg_stat_activity where pid = {handler.get_server_pid()}"
            await until(lambda: execute(url, f"select 1 where not exists ({there})"))


async def test_one_that_freezes_while_it_buries_is_buried_with_whom_it_buried(url: str) -> None:
    async with standing(url, 3) as (store, [_, frozen, dead]):
        [(tag,)] = await execute(url, f"select session from replicas where id = {frozen.replica_id}")
        async with falls_silent(url, application_name=str(tag)) as burying:
            await burying.execute("delete from rota.replicas where id = $1", dead.replica_id)
            await halfway(burying)
            await dead.close()
            await silent(url, frozen, 60)
            both = (frozen.replica_id, dead.replica_id)
            buried = await store.bury(both)
            assert buried.replicas == tuple(sorted(both))


async def test_a_reset_waits_behind_a_fenced_write_and_not_across_it(url: str) -> None:
    async with opened(url) as store, somebody(url) as body:
        line = await store.join("a", "host", 1, [])
        try:
            await store.stand(line.replica_id, [role_of("importer")])
            fence = await store.win_role(role_of("importer"), line.replica_id, seen=0, nonce=7, elector="test")
            assert fence is not None
            await store.begin_singleton("importer", fence, ttl=None, heartbeat=30, expect_every=None)
            async with body.transaction():
                # Less than the server takes to notice a deadlock and to end one of them.
                await body.execute("set local lock_timeout = '200ms'")
                await store.check_fence(fence, body)
                resetting = asyncio.create_task(store.reset_singleton("importer"))
                await waits_for_a_lock(url)
                # The row that the write is about is not the reset's already.
                await body.execute("update rota.singletons set beat_at = now() where name = 'importer'")
            assert await resetting is False
        finally:
            await line.close()


async def test_one_that_resumes_ends_its_own_old_session(url: str) -> None:
    async with opened(url) as store:
        # The server has not noticed that the old connection is gone.
        old = await store.join("a", "host", 1, [])
        try:
            resumed = await store.join("a", "host", 1, [], resume=old.replica_id)
            assert resumed.replica_id == old.replica_id
            await resumed.close()
        finally:
            await old.close()


async def test_one_that_resumes_waits_for_those_that_look_at_its_lock(url: str) -> None:
    async with opened(url) as store, somebody(url) as caretaker:
        old = await store.join("a", "host", 1, [])
        await old.close()
        key = (pg.REPLICAS, old.replica_id)
        await caretaker.execute("select pg_advisory_lock_shared($1, $2)", *key)
        resuming = asyncio.create_task(store.join("a", "host", 1, [], resume=old.replica_id))
        await until(lambda: execute(url, ASKED_FOR_THE_LOCK))
        await caretaker.execute("select pg_advisory_unlock_shared($1, $2)", *key)
        resumed = await resuming
        assert resumed.replica_id == old.replica_id
        await resumed.close()


async def test_the_server_does_not_give_up_a_session_before_its_replica_does(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, str] = {}
    real = pg.line

    async def noting(route: Any, address: str, tag: str, settings: dict[str, str], **more: Any) -> Any:
        asked.update(settings)
        return await real(route, address, tag, settings, **more)

    monkeypatch.setattr(pg, "line", noting)
    store = open_store(Settings(url=url, beat=2, lease=6, dead_after=10))
    await store.open()
    try:
        await store.migrate()
        await (await store.join("a", "host", 1, [])).close()
    finally:
        await store.close()
    lease = 6.0
    probes = int(asked["tcp_keepalives_idle"]) + int(asked["tcp_keepalives_interval"]) * int(
        asked["tcp_keepalives_count"]
    )
    assert asked["idle_session_timeout"] == "10000ms"
    assert int(asked["tcp_user_timeout"]) / 1000 > lease
    assert probes > lease
