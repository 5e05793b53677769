"""Statements that go past the front door of the driver: as they would through it."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from rota.stores.postgres import connection as pg
from rota.stores.postgres import session
from rota.stores.postgres.route import Route, connect
from rota.stores.postgres.session import Session
from tests.harness import KINDS, Databases


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


async def test_it_answers_with_rows(url: str) -> None:
    async with connected(url) as connection:
        await connection.execute("create table t (n integer, word text)")
        for n in range(3):
            assert await connection.say("insert into t values ($1, $2)", (n, None)) == []
        rows = await connection.say("update t set word = $1 where n > $2 returning n, word", ("é", 0))
        assert [tuple(row) for row in rows] == [(1, "é"), (2, "é")]
        assert await connection.say("delete from t where n > $1", (0,), status=True) == "DELETE 2"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "sqlite"])
async def test_no_question_about_types_is_asked(
    kind: str, databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def asked(*_: object) -> None:
        raise AssertionError("the server was asked what a type is")

    monkeypatch.setattr(asyncpg.Connection, "_introspect_types", asked)
    now = datetime(2026, 11, 16, 3, tzinfo=UTC)
    arrays = {
        "bool": [True, None],
        "int4": [1, 2],
        "int8": [2**40],
        "float8": [0.5],
        "timestamptz": [now],
        "text": ["é"],
    }
    async with connected(databases.new(kind, tmp_path)) as connection:
        for name, array in arrays.items():
            [(found,)] = await connection.say(f"select $1::{name}[]", (array,))
            assert found == array, name


async def test_its_errors_are_the_drivers_and_it_goes_on(url: str) -> None:
    async with connected(url) as connection:
        await connection.execute("create table t (n integer primary key)")
        await connection.say("insert into t values ($1)", (1,))
        with pytest.raises(asyncpg.UniqueViolationError):
            await connection.say("insert into t values ($1)", (1,))
        with pytest.raises(asyncpg.DataError):
            await connection.say("insert into t values ($1)", ("no number",))
        assert await connection.say("insert into t values ($1)", (2,)) == []


async def test_a_table_that_is_migrated_meanwhile_is_read_as_it_is_now(url: str) -> None:
    async with connected(url) as connection:
        await connection.execute("create table t as select 1 as n")
        for columns in ({"n": 1}, {"n": 1, "m": 2}):
            [row] = await connection.say("select * from t", ())
            assert dict(row.items()) == columns
            await connection.execute("alter table t add column if not exists m integer default 2")


async def test_a_type_that_is_migrated_meanwhile_is_read_anew(url: str) -> None:
    async with connected(url) as connection:
        await connection.execute(
            "create type pair as (a integer, b integer); create table t as select (1, 2)::pair as p"
        )
        [row] = await connection.say("select p from t", ())
        assert tuple(row["p"]) == (1, 2)
        await connection.execute("alter type pair add attribute c integer")
        with pytest.raises(asyncpg.OutdatedSchemaCacheError):
            await connection.say("select p from t", ())
        [row] = await connection.say("select p from t", ())
        assert tuple(row["p"]) == (1, 2, None)


async def test_one_that_is_cut_off_does_not_answer_the_next_one(url: str) -> None:
    async with connected(url) as connection:
        for seconds in (0.0, 30.0):  # the first one is prepared, too
            waiting = asyncio.create_task(connection.say("select pg_sleep($1)", (seconds,)))
            await asyncio.wait([waiting], timeout=None if seconds == 0 else 0.05)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        [row] = await connection.say("select $1::integer as n", (7,))
        assert row["n"] == 7


async def test_a_session_that_somebody_clears_goes_on(url: str) -> None:
    async with connected(url) as connection:
        for n in range(3):
            [row] = await connection.say("select $1::integer as n", (n,))
            assert row["n"] == n
            await asyncio.sleep(0)
            if session.KNOWN:  # the driver's own statements are forgotten with it
                await connection.execute("deallocate all")


async def test_one_that_nobody_has_any_more_is_gone(url: str) -> None:
    """It does not wait for the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        async with connected(url) as connection:
            await connection.say("select 1", ())
            seen = weakref.ref(connection)
            del connection
        await asyncio.sleep(0)
        assert seen() is None
    finally:
        gc.enable()


async def test_whoever_listens_to_the_driver_hears_it(url: str) -> None:
    async with connected(url) as connection:
        heard: list[Any] = []
        connection.add_query_logger(heard.append)
        await connection.say("select $1::integer", (7,))
        await asyncio.sleep(0)
        assert [query.query for query in heard] == ["select $1::integer"]
