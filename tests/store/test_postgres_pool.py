"""The pool of rota's own connections: what is handed on, and what is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest
from asyncpg.transaction import Transaction

from rota.clock import steady
from rota.stores.postgres import connection as pg
from rota.stores.postgres import route, session
from rota.stores.postgres.pool import Pool
from rota.stores.postgres.route import Route
from tests.app.waiting import until
from tests.harness import Databases

PID = "select pg_backend_pid()"


@pytest.fixture
def url(databases: Databases, tmp_path: Path) -> str:
    return databases.new("postgres", tmp_path)


@asynccontextmanager
async def pooled(url: str, most: int = 2) -> AsyncIterator[Pool]:
    pool = pg.make_pool(url, "rota-pool-test", most)
    try:
        yield pool
    finally:
        await pool.close()


async def pid(pool: Pool) -> int:
    return int((await pool.fetch(PID))[0][0])


async def sessions(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        return int(
            await connection.fetchval(
                "select count(*) from pg_stat_activity "
                "where application_name = 'rota-pool-test' and datname = current_database()"
            )
        )
    finally:
        await connection.close()


async def test_a_connection_is_used_again(url: str) -> None:
    async with pooled(url) as pool:
        assert await pid(pool) == await pid(pool)


@pytest.mark.parametrize("way", [Route.DIRECT, Route.TRANSACTION])
async def test_what_was_committed_by_then_is_seen_whatever_the_database_has_by_default(url: str, way: Route) -> None:
    connection = await asyncpg.connect(url)
    database = await connection.fetchval("select current_database()")
    await connection.execute(f"alter database {database} set default_transaction_isolation = 'repeatable read'")
    await connection.close()
    pool = pg.make_pool(url, "rota-pool-test", 1, way)
    [isolation] = await pool.fetch("show transaction_isolation")
    assert isolation[0] == "read committed"
    async with pool.begin() as connection:
        assert await connection.fetchval("show transaction_isolation") == "read committed"
    await pool.close()


async def test_a_failed_statement_costs_no_connection_and_leaves_nothing_behind(url: str) -> None:
    async with pooled(url) as pool:
        before = await pid(pool)

        async def fail() -> None:
            async with pool.begin() as connection:
                await connection.execute("create table gone (n int)")
                await connection.execute("select 1 / 0")

        with pytest.raises(asyncpg.DivisionByZeroError):
            await fail()
        assert await pid(pool) == before
        assert (await pool.fetch("select to_regclass('gone')"))[0][0] is None


async def test_one_that_was_cut_off_in_the_middle_is_not_used_again(url: str) -> None:
    async with pooled(url, most=1) as pool:
        before = await pid(pool)
        busy = asyncio.create_task(pool.fetch("select pg_sleep(60)"))

        async def asleep() -> bool:
            connection = await asyncpg.connect(url)
            try:
                return bool(await connection.fetch("select from pg_stat_activity where wait_event = 'PgSleep'"))
            finally:
                await connection.close()

        await until(asleep)
        busy.cancel()
        with pytest.raises(asyncio.CancelledError):
            await busy
        assert await pid(pool) != before


async def test_one_that_the_server_ended_is_replaced(url: str) -> None:
    async with pooled(url, most=1) as pool:
        before = await pid(pool)
        connection = await asyncpg.connect(url)
        await connection.execute(f"select pg_terminate_backend({before})")
        await connection.close()

        async def noticed() -> bool:
            return next(iter(pool._idle)).is_closed()

        await until(noticed)
        assert await pid(pool) != before


async def test_no_more_connections_than_allowed(url: str) -> None:
    async with pooled(url, most=2) as pool:
        await asyncio.gather(*(pool.fetch("select pg_sleep(0.01)") for _ in range(20)))
        assert await sessions(url) == 2


async def test_one_that_was_at_hand_has_taken_its_place_too(url: str) -> None:
    async with pooled(url, most=1) as pool:
        before = await pid(pool)
        async with pool.use() as connection:  # which waited for nothing
            behind = asyncio.create_task(pid(pool))
            assert await connection.fetchval(PID) == before
            assert not behind.done()
        # Those who wait come before those who come.
        assert set(await asyncio.gather(behind, pid(pool))) == {before}
        assert await sessions(url) == 1


async def test_what_is_under_way_is_finished_before_the_pool_closes(url: str) -> None:
    async with pooled(url) as pool:
        task = asyncio.create_task(pool.fetch("select pg_sleep(0.3), 7"))
        while not pool._in_use:
            await asyncio.sleep(0)
    assert (await task)[0][1] == 7

    async def gone() -> bool:
        return await sessions(url) == 0

    await until(gone)


async def test_one_that_nobody_needed_for_a_minute_is_closed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pooled(url) as pool:
        before = await pid(pool)
        pool._tend()
        later = steady() + 61
        monkeypatch.setattr("rota.stores.postgres.pool.steady", lambda: later)
        assert await pid(pool) == before
        pool._tend()
        assert pool._idle, "it was just used"
        monkeypatch.setattr("rota.stores.postgres.pool.steady", lambda: later + 61)
        pool._tend()
        assert not pool._idle


async def test_one_on_which_nobody_answers_is_closed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pooled(url) as pool:
        async with pool.use():
            before = await pid(pool)
        asking = asyncio.create_task(pool.fetch("select pg_sleep(3600)"))
        while not pool._in_use:
            await asyncio.sleep(0)
        pool._tend()
        later = steady() + 31
        monkeypatch.setattr("rota.stores.postgres.pool.steady", lambda: later)
        pool._tend()
        with pytest.raises(asyncpg.ConnectionDoesNotExistError):
            await asking
        assert await pid(pool) != before, "nobody may be there any more on that one either"


async def test_every_connection_has_keepalives(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = list[object]()
    monkeypatch.setattr(session, "keep_alive", kept.append)
    async with pooled(url) as pool, pg.make_handlers_pool(url, "rota-pool-test", 1) as handlers:
        await pool.fetch("select 1")
        await handlers.fetchval("select 1")
        line = await pg.line(Route.DIRECT, url, "rota-pool-test", {}, 5.0)
        assert len(kept) == 3
        await line.connection.close()


async def test_a_transaction_that_is_cancelled_waits_for_nobody(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pooled(url) as pool:

        async def work() -> None:
            async with pool.begin() as connection:
                begun.set_result(connection)
                await asyncio.Event().wait()

        begun: asyncio.Future[pg.Connection] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(work())
        connection = await begun
        monkeypatch.delattr(Transaction, "rollback")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert connection.is_closed()


async def test_a_long_transaction_may_go_on_as_long_as_there_are_answers(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pooled(url) as pool, pool.begin() as connection:
        for n in range(1, 4):
            pool._tend()
            later = steady() + 31
            monkeypatch.setattr("rota.stores.postgres.pool.steady", lambda at=later: at)
            assert await connection.fetchval("select $1::integer", n) == n


async def test_a_pooler_that_does_not_answer_is_not_waited_for(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the connection, and has no server for it: what is set at first is not set."""
    monkeypatch.setattr(route, "lasting", lambda settings: "select pg_sleep(3600)")
    with pytest.raises(TimeoutError):
        await route.connect(route.Route.SESSION, url, "rota-pool-test", {}, timeout=1.0)
