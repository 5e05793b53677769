"""Statements that go past the front door of the driver: as they would through it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from rota.stores.postgres import connection as pg
from rota.stores.postgres import session
from rota.stores.postgres.route import Route, connect
from rota.stores.postgres.session import Session
from tests.harness import Databases


@pytest.fixture(params=["short", "slow"])
def url(request: pytest.FixtureRequest, databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """As it is with this driver, and as it would be with one whose inside is another."""
    assert session.KNOWN, "the driver has changed inside: everything goes the slow way"
    monkeypatch.setattr(session, "KNOWN", request.param == "short")
    return databases.new("postgres", tmp_path)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Session]:
    connection = await connect(Route.DIRECT, url, "rota-test", pg.POOLED, timeout=5.0)
    try:
        yield connection
    finally:
        connection.terminate()


async def test_it_answers_with_rows_and_with_what_was_done(url: str) -> None:
    async with connected(url) as connection:
        await connection.execute("create table t (n integer, word text)")
        for n in range(3):
            assert await connection.say("insert into t values ($1, $2)", (n, None)) == ([], b"INSERT 0 1")
        rows, did = await connection.say("update t set word = $1 where n > $2 returning n", ("é", 0))
        assert ([row["n"] for row in rows], did) == ([1, 2], b"UPDATE 2")


async def test_its_errors_are_the_drivers_and_it_goes_on(url: str) -> None:
    async with connected(url) as connection:
        await connection.execute("create table t (n integer primary key)")
        await connection.say("insert into t values ($1)", (1,))
        with pytest.raises(asyncpg.UniqueViolationError):
            await connection.say("insert into t values ($1)", (1,))
        with pytest.raises(asyncpg.DataError):
            await connection.say("insert into t values ($1)", ("no number",))
        assert await connection.say("insert into t values ($1)", (2,)) == ([], b"INSERT 0 1")


async def test_a_table_that_is_migrated_meanwhile_is_read_as_it_is_now(url: str) -> None:
    async with connected(url) as connection:
        await connection.execute("create table t as select 1 as n")
        for columns in ({"n": 1}, {"n": 1, "m": 2}):
            [row], _ = await connection.say("select * from t", ())
            assert dict(row.items()) == columns
            await connection.execute("alter table t add column if not exists m integer default 2")


async def test_a_type_that_is_migrated_meanwhile_is_read_anew(url: str) -> None:
    async with connected(url) as connection:
        await connection.execute(
            "create type pair as (a integer, b integer); create table t as select (1, 2)::pair as p"
        )
        [row], _ = await connection.say("select p from t", ())
        assert tuple(row["p"]) == (1, 2)
        await connection.execute("alter type pair add attribute c integer")
        with pytest.raises(asyncpg.OutdatedSchemaCacheError):
            await connection.say("select p from t", ())
        [row], _ = await connection.say("select p from t", ())
        assert tuple(row["p"]) == (1, 2, None)


async def test_one_that_is_cut_off_does_not_answer_the_next_one(url: str) -> None:
    async with connected(url) as connection:
        waiting = asyncio.create_task(connection.say("select pg_sleep($1)", (30.0,)))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        [row], _ = await connection.say("select $1::integer as n", (7,))
        assert row["n"] == 7


async def test_whoever_listens_to_the_driver_hears_it(url: str) -> None:
    async with connected(url) as connection:
        heard: list[Any] = []
        connection.add_query_logger(heard.append)
        await connection.say("select $1::integer", (7,))
        await asyncio.sleep(0)
        assert [query.query for query in heard] == ["select $1::integer"]
