"""Drain: how fast ready runs become finished ones, from the first start to the last finish, by the database's clock."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tests.harness import execute

from bench.machine import Bench, Stopwatch, raw_connection, workers
from bench.service import app as service
from rota import Rota

CLAIM = """
update raw_runs set state = 'running', started_at = clock_timestamp()
where id = any(array(
    select id from raw_runs where finished_at is null and state = 'queued'
    order by id limit 500 for update skip locked))
returning id, args
"""
FINISH = "update raw_runs set state = 'succeeded', finished_at = clock_timestamp() where id = any($1::bigint[])"


async def measure(bench: Bench) -> None:
    count = bench.many(100_000, 5_000)
    raw = {n: await _raw(bench, count, n) for n in (1, 2)}
    for processes in (1, 2):
        rate = await _drain(bench, "postgres", "noop", count, processes)
        plural = "process" if processes == 1 else "processes"
        bench.add(f"drain, async no-op, {processes} {plural}", rate, "/s", raw=raw[processes])
    rate = await _drain(bench, "postgres", "plain", count, 1)
    bench.add("drain, plain functions in threads, 1 process", rate, "/s", raw=raw[1])
    rate = await _drain(bench, "sqlite", "noop", count, 1)
    bench.add("drain, async no-op, 1 process", rate, "/s", store="sqlite", raw=_raw_sqlite(bench, count))


async def _raw(bench: Bench, count: int, connections: int) -> float:
    url = bench.database("postgres")

    async def client(connection: Any) -> None:
        while rows := await connection.fetch(CLAIM):
            await connection.execute(FINISH, [row["id"] for row in rows])

    async with raw_connection(url) as first, raw_connection(url) as second:
        await first.execute(
            "insert into raw_runs (job, args) select 'noop', '{\"n\": 1}' from generate_series(1, $1)", count
        )
        await first.execute("vacuum analyze raw_runs")
        with Stopwatch() as watch:
            await asyncio.gather(*(client(c) for c in (first, second)[:connections]))
    return count / watch.seconds


def _raw_sqlite(bench: Bench, count: int) -> float:
    import apsw

    connection = apsw.Connection(bench.database("sqlite").removeprefix("sqlite:///"))
    connection.execute("pragma journal_mode = wal; pragma synchronous = full")
    connection.execute(
        "create table raw_runs (id integer primary key, job text, args text, state text default 'queued', "
        "started_at text, finished_at text); create index q on raw_runs (id) where state = 'queued'"
    )
    connection.execute("begin")
    connection.executemany("insert into raw_runs (job, args) values ('noop', ?)", (('{"n": 1}',) for _ in range(count)))
    connection.execute("commit")
    with Stopwatch() as watch:
        while True:
            rows = connection.execute(
                "update raw_runs set state = 'running', started_at = datetime() where id in "
                "(select id from raw_runs where state = 'queued' order by id limit 500) returning id, args"
            ).fetchall()
            if not rows:
                break
            connection.execute("begin immediate")
            connection.executemany(
                "update raw_runs set state = 'succeeded', finished_at = datetime() where id = ?",
                ((r[0],) for r in rows),
            )
            connection.execute("commit")
    return count / watch.seconds


async def _drain(bench: Bench, store: str, name: str, count: int, processes: int) -> float:
    url = bench.database(store)
    app = Rota(url)
    async with app.client():
        job = app.add_job(service.jobs[name].fn, name, service.jobs[name].policies)
        for first in range(0, count, 5000):
            await job.enqueue_many([job.call(n) for n in range(first, min(first + 5000, count))])
        if store == "postgres":
            for table in ("job_runs", "ready"):
                await execute(url, f"vacuum analyze rota.{table}")
        async with workers(url, processes):
            await _all_done(url, count)
        return count / await _span(url)


async def _all_done(url: str, count: int) -> None:
    """Seldom asked, and cheaply: the question must not slow the answer."""
    deadline = time.monotonic() + 600
    while await execute(url, "select 1 from ready limit 1"):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.25)
    while await execute(url, "select 1 from claims limit 1"):
        await asyncio.sleep(0.05)


async def _span(url: str) -> float:
    if url.startswith("sqlite"):
        [(seconds,)] = await execute(
            url, "select (julianday(max(finished_at)) - julianday(min(started_at))) * 86400 from job_runs"
        )
    else:
        [(seconds,)] = await execute(
            url, "select extract(epoch from max(finished_at) - min(started_at))::float8 from job_runs"
        )
    return float(str(seconds))
