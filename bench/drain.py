"""Drain: how fast ready runs become finished ones, from the first start to the last finish, by the database's clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import asyncpg
from tests.harness import execute

from bench.enqueue import raw_sqlite
from bench.machine import Bench, Stopwatch, client, middle, raw_connection, workers

Once = Callable[[], Awaitable[float]]

CLAIM = """
update raw_runs set state = 'running', started_at = clock_timestamp()
where id = any(array(
    select id from raw_runs where finished_at is null and state = 'queued'
    order by id limit 500 for update skip locked))
returning id, args
"""
FINISH = "update raw_runs set state = 'succeeded', finished_at = clock_timestamp() where id = any($1::bigint[])"
FILL = "insert into raw_runs (job, args) select 'noop', '{\"n\": 1}' from generate_series(1, $1)"

CLAIM_SQLITE = """
update raw_runs set state = 'running', started_at = datetime('subsec')
where id in (select id from raw_runs where state = 'queued' order by id limit 500)
returning id, args
"""
FINISH_SQLITE = "update raw_runs set state = 'succeeded', finished_at = datetime('subsec') where id = ?"


DRAINS = (
    ("postgres", "noop", 1),
    ("postgres", "noop", 2),
    ("postgres", "plain", 1),
    ("sqlite", "noop", 1),
    ("sqlite", "plain", 1),
)
WHAT = {"noop": "async no-op", "plain": "plain functions in threads"}


async def measure(bench: Bench) -> None:
    count = bench.many(100_000, 5_000)
    for store, name, processes in DRAINS:
        bare = partial(_raw_sqlite, bench, count) if store == "sqlite" else partial(_raw, bench, count, processes)
        rate, raw = await _by_turns(bench, partial(_drain, bench, store, name, count, processes), bare)
        plural = "process" if processes == 1 else "processes"
        bench.add(f"drain, {WHAT[name]}, {processes} {plural}", rate, "/s", store=store, raw=raw)


async def _by_turns(bench: Bench, ours: Once, raw: Once) -> tuple[float, float]:
    rounds = [(await ours(), await raw()) for _ in range(bench.many(5, 1))]
    return middle(*zip(*rounds, strict=True))


async def raw_drain(connection: Any) -> None:
    while rows := await connection.fetch(CLAIM):
        await connection.execute(FINISH, [row["id"] for row in rows])


async def _raw(bench: Bench, count: int, connections: int) -> float:
    url = bench.database("postgres")
    async with raw_connection(url) as first, raw_connection(url) as second:
        await first.execute(FILL, count)
        await first.execute("vacuum analyze raw_runs")
        with Stopwatch() as watch:
            await asyncio.gather(*(raw_drain(c) for c in (first, second)[:connections]))
    return count / watch.seconds


async def _raw_sqlite(bench: Bench, count: int) -> float:
    return await asyncio.to_thread(_raw_drain_sqlite, bench, count)


def _raw_drain_sqlite(bench: Bench, count: int) -> float:
    connection = raw_sqlite(bench)
    with connection:
        connection.executemany("insert into raw_runs (job, args) values ('noop', ?)", [('{"n": 1}',)] * count)
    with Stopwatch() as watch:
        while rows := connection.execute(CLAIM_SQLITE).fetchall():
            with connection:
                connection.executemany(FINISH_SQLITE, [(row[0],) for row in rows])
    return count / watch.seconds


async def _drain(bench: Bench, store: str, name: str, count: int, processes: int) -> float:
    url = bench.database(store)
    async with client(url) as app:
        await fill(url, app.jobs[name], count)
        async with AsyncExitStack() as stack:
            async with _closed(url):
                await stack.enter_async_context(workers(url, processes))
            await all_done(url)
    return count / await _span(url)


@asynccontextmanager
async def _closed(url: str) -> AsyncIterator[None]:
    """Nobody claims anything before all are there: two processes do not start in the same instant."""
    if url.startswith("sqlite"):
        yield
        return
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await connection.execute("lock table rota.ready in exclusive mode")
            yield
    finally:
        await connection.close()


async def fill(url: str, job: Any, count: int) -> None:
    for first in range(0, count, 5000):
        await job.enqueue_many([job.call(n) for n in range(first, min(first + 5000, count))])
    if not url.startswith("sqlite"):
        for table in ("job_runs", "ready"):
            await execute(url, f"vacuum analyze rota.{table}")


async def all_done(url: str, within: float = 600.0) -> None:
    """Seldom asked, and cheaply: the question must not slow the answer."""
    deadline = time.monotonic() + within
    for table, pause in (("ready", 0.25), ("claims", 0.05)):
        while await execute(url, f"select 1 from {table} limit 1"):
            assert time.monotonic() < deadline, f"{table} is not empty after {within:g} s"
            await asyncio.sleep(pause)


async def _span(url: str) -> float:
    if url.startswith("sqlite"):
        seconds = "(julianday(max(finished_at)) - julianday(min(started_at))) * 86400"
    else:
        seconds = "extract(epoch from max(finished_at) - min(started_at))::float8"
    [(span,)] = await execute(url, f"select {seconds} from job_runs")
    return float(str(span))
