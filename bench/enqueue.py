"""Enqueue: one by one, in bulk with keys, from many connections at once."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import apsw

from bench.machine import Bench, Stopwatch, client, raw_connection
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
CLIENTS = 20


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


async def _one_by_one(bench: Bench, store: str) -> None:
    count, url = bench.many(3000, 300), bench.database(store)
    if store == "postgres":
        async with raw_connection(url) as connection:
            with Stopwatch() as raw:
                for _ in range(count):
                    await connection.execute(INSERT)
    else:
        sqlite = raw_sqlite(bench)
        with Stopwatch() as raw:
            for _ in range(count):
                sqlite.execute(INSERT)
    async with client(url) as app:
        job = app.jobs["noop"]
        await job.enqueue(0)
        with Stopwatch() as watch:
            for n in range(count):
                await job.enqueue(n)
    bench.add("enqueue one by one", count / watch.seconds, "/s", store=store, raw=count / raw.seconds)


async def _bulk(bench: Bench, store: str) -> None:
    batches, url, arguments = bench.many(100, 10), bench.database(store), ['{"n": 1}'] * SIZE
    if store == "postgres":
        async with raw_connection(url) as connection:
            with Stopwatch() as raw:
                for _ in range(batches):
                    await connection.execute(UNNEST, arguments)
    else:
        sqlite = raw_sqlite(bench)
        with Stopwatch() as raw:
            for _ in range(batches):
                with sqlite:
                    sqlite.executemany(
                        "insert into raw_runs (job, args) values ('noop', ?)", [(text,) for text in arguments]
                    )
    for keyed in (False, True):
        async with client(url) as app:
            job = app.jobs["noop"]
            ready = [
                [job.using(key=f"{b}-{n}" if keyed else None).call(n) for n in range(SIZE)] for b in range(batches)
            ]
            with Stopwatch() as watch:
                for calls in ready:
                    await job.enqueue_many(calls)
        what = f"enqueue_many, {SIZE} at a time" + (", with keys" if keyed else "")
        bench.add(what, batches * SIZE / watch.seconds, "/s", store=store, raw=batches * SIZE / raw.seconds)


async def _at_once(bench: Bench) -> None:
    """Twenty clients at once: hints must not make their commits wait for one another.

    Twenty clients in one process cost that process much besides, so it is done without hints too: the difference is
    what the hints cost.
    """
    count, url = bench.many(500, 50), bench.database("postgres")
    async with AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(raw_connection(url)) for _ in range(CLIENTS)]

        async def insert(connection: Any) -> None:
            for _ in range(count):
                await connection.execute(INSERT)

        with Stopwatch() as raw:
            await asyncio.gather(*(insert(connection) for connection in connections))
    total, what = CLIENTS * count, f"enqueue from {CLIENTS} connections at once"
    for hints in (True, False):
        seconds = await _clients(bench, count, hints)
        bench.add(what + ("" if hints else ", without hints"), total / seconds, "/s", raw=total / raw.seconds)


async def _clients(bench: Bench, count: int, hints: bool) -> float:
    url = bench.database("postgres")
    async with AsyncExitStack() as stack:
        jobs = [(await stack.enter_async_context(client(url, hints=hints))).jobs["noop"] for _ in range(CLIENTS)]

        async def enqueue(job: Any, times: int) -> None:
            for n in range(times):
                await job.enqueue(n)

        await asyncio.gather(*(enqueue(job, 1) for job in jobs))  # connected, prepared
        with Stopwatch() as watch:
            await asyncio.gather(*(enqueue(job, count) for job in jobs))
    return watch.seconds
