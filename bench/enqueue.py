"""Enqueue: one by one, in bulk with keys, from many connections at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import apsw

from bench.machine import Bench, Stopwatch, client, middle, percentile, raw_connection
from rota.job import Call
from rota.stores.sqlite.connection import PATIENCE, connect, database_path

INSERT = "insert into raw_runs (job, args) values ('noop', '{\"n\": 1}')"
UNNEST = "insert into raw_runs (job, args) select 'noop', a::json from unnest($1::text[]) a"
RAW_SQLITE = """
create table if not exists raw_runs (
    id integer primary key, job text not null, args text not null, state text not null default 'queued',
    started_at text, finished_at text
);
create index if not exists raw_queued on raw_runs (id) where state = 'queued'
"""
SIZE = 1000
ROUNDS = 30
CLIENTS = 20
ROUNDS_AT_ONCE = 9


async def measure(bench: Bench) -> None:
    for store in ("postgres", "sqlite"):
        await _one_by_one(bench, store)
        await _bulk(bench, store)
    await _at_once(bench)


def raw_sqlite(bench: Bench) -> apsw.Connection:
    """A file of its own, opened as rota opens its own: the same write-ahead log, the same durability."""
    connection = connect(database_path(bench.database("sqlite")), PATIENCE)
    connection.execute(RAW_SQLITE)
    return connection


async def _in_turn(rounds: int, count: int, *sides: Callable[[int], Awaitable[None]]) -> list[list[float]]:
    """The rates of each side, which does so many in each round. By turns, since a disk is not as fast in one second as
    in the next."""
    rates: list[list[float]] = [[] for _ in sides]
    for number in range(rounds):
        for side, mine in zip(sides, rates, strict=True):
            with Stopwatch() as watch:
                await side(number)
            mine.append(count / watch.seconds)
    return rates


async def _one_by_one(bench: Bench, store: str) -> None:
    # In turns that are long enough: behind the other side everything is cold, and whoever does more has more of that.
    # In many: on which core the kernel puts the server's session, beside the client's or not, is a tenth of it all.
    each, rounds, url = bench.many(500, 10), bench.many(60, 3), bench.database(store)
    async with client(url) as app, _raw(bench, store, url) as raw:
        job = app.jobs["noop"]

        async def ours(number: int) -> None:
            for n in range(each):
                await job.enqueue(n)

        async def theirs(number: int) -> None:
            for _ in range(each):
                await raw.one()

        await ours(0)
        await theirs(0)
        rate, bare = middle(*await _in_turn(rounds, each, ours, theirs))
    bench.add("enqueue one by one", rate, "/s", store=store, raw=bare)


async def _bulk(bench: Bench, store: str) -> None:
    each, url = bench.many(4, 1), bench.database(store)
    async with client(url) as app, _raw(bench, store, url) as raw:
        job = app.jobs["noop"]

        def calls(keyed: bool, number: int) -> list[list[Call[None]]]:
            return [
                [job.using(key=f"{number}-{b}-{n}" if keyed else None).call(n) for n in range(SIZE)]
                for b in range(each)
            ]

        async def enqueue(batches: list[list[Call[None]]]) -> None:
            for batch in batches:
                await job.enqueue_many(batch)

        async def theirs(number: int) -> None:
            for _ in range(each):
                await raw.many()

        plain, keyed = ([calls(keys, number) for number in range(ROUNDS)] for keys in (False, True))
        await enqueue(calls(False, ROUNDS))
        await theirs(0)
        *ways, bares = await _in_turn(
            ROUNDS, each * SIZE, lambda n: enqueue(plain[n]), lambda n: enqueue(keyed[n]), theirs
        )
    for rates, what in zip(ways, ("", ", with keys"), strict=True):
        rate, bare = middle(rates, bares)
        bench.add(f"enqueue_many, {SIZE} at a time{what}", rate, "/s", store=store, raw=bare)


class _RawPostgres:
    def __init__(self, connection: Any) -> None:
        self._connection, self._arguments = connection, ['{"n": 1}'] * SIZE

    async def one(self) -> None:
        await self._connection.execute(INSERT)

    async def many(self) -> None:
        await self._connection.execute(UNNEST, self._arguments)


class _RawSQLite:
    def __init__(self, connection: apsw.Connection) -> None:
        self._connection, self._arguments = connection, [('{"n": 1}',)] * SIZE

    async def one(self) -> None:
        self._connection.execute(INSERT)

    async def many(self) -> None:
        with self._connection:
            self._connection.executemany("insert into raw_runs (job, args) values ('noop', ?)", self._arguments)


@asynccontextmanager
async def _raw(bench: Bench, store: str, url: str) -> AsyncIterator[_RawPostgres | _RawSQLite]:
    if store == "sqlite":
        yield _RawSQLite(raw_sqlite(bench))
        return
    async with raw_connection(url) as connection:
        yield _RawPostgres(connection)


async def _at_once(bench: Bench) -> None:
    """Twenty clients at once: hints must not make their commits wait for one another.

    Twenty clients in one process cost that process much besides, so it is done without hints too: the difference is
    what the hints cost.
    """
    count, what = bench.many(200, 10), f"enqueue from {CLIENTS} connections at once"
    hints, none, raw = list[float](), list[float](), list[float]()
    for _ in range(ROUNDS_AT_ONCE):
        hints.append(CLIENTS * count / await _clients(bench, count, hints=True))
        none.append(CLIENTS * count / await _clients(bench, count, hints=False))
        raw.append(CLIENTS * count / await _inserts(bench, count))
    bare, (with_hints, without) = percentile(raw, 0.5), middle(hints, none)
    bench.add(what, with_hints, "/s", raw=bare)
    bench.add(f"{what}, without hints", without, "/s", raw=bare)


async def _inserts(bench: Bench, count: int) -> float:
    url = bench.database("postgres")
    async with AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(raw_connection(url)) for _ in range(CLIENTS)]

        async def insert(connection: Any, times: int) -> None:
            for _ in range(times):
                await connection.execute(INSERT)

        return await _together(insert, connections, count)


async def _clients(bench: Bench, count: int, hints: bool) -> float:
    url = bench.database("postgres")
    async with AsyncExitStack() as stack:
        jobs = [(await stack.enter_async_context(client(url, hints=hints))).jobs["noop"] for _ in range(CLIENTS)]

        async def enqueue(job: Any, times: int) -> None:
            for n in range(times):
                await job.enqueue(n)

        return await _together(enqueue, jobs, count)


async def _together(work: Callable[[Any, int], Awaitable[None]], sides: Sequence[Any], count: int) -> float:
    """Seconds that all of them took, connected and prepared."""
    await asyncio.gather(*(work(side, 20) for side in sides))
    with Stopwatch() as watch:
        await asyncio.gather(*(work(side, count) for side in sides))
    return watch.seconds
