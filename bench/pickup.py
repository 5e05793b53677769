"""Pick-up: from the commit of an enqueue to the start of the handler in an idle worker, a process of its own.

Counted from the moment the enqueuing process has the answer to its commit, on the monotonic clock that both processes
share. Beside it the least that it takes on Postgres: one NOTIFY, heard by a bare LISTEN in another process, which marks
the row as taken and begins when that is committed.
"""

from __future__ import annotations

import asyncio
import random
import time

from bench.enqueue import INSERT
from bench.machine import Bench, client, crew, percentile, raw_connection, workers


async def measure(bench: Bench) -> None:
    count = bench.many(300, 25)
    raw = await _raw(bench, count)
    for store in ("postgres", "sqlite"):
        waits = await _pick_up(bench, store, count)
        bench.keep(f"pick-up ms, {store}", waits)
        for share, name in ((0.5, "p50"), (0.99, "p99")):
            beside = percentile(raw, share) if store == "postgres" else None
            bench.add(f"pick-up {name}", percentile(waits, share), "ms", store=store, raw=beside)


async def _until_idle() -> None:
    """A pause, not in step with anything: the worker has recorded the last run and waits."""
    await asyncio.sleep(random.uniform(0.01, 0.08))


async def _pick_up(bench: Bench, store: str, count: int) -> list[float]:
    url, waits = bench.database(store), []
    async with client(url) as app, workers(url, 1) as running:
        job = app.jobs["started"]
        for n in range(-5, count):  # the first ones open connections and prepare statements
            await _until_idle()
            await job.enqueue(n)
            committed = time.monotonic_ns()
            number, began = await running.wire.hear("started")
            assert number == n
            if n >= 0:
                waits.append((began - committed) / 1e6)
    return waits


async def _raw(bench: Bench, count: int) -> list[float]:
    url, waits = bench.database("postgres"), []
    async with raw_connection(url) as connection, crew([("-m", "bench.listener", url)], 1) as listening:
        for n in range(-5, count):
            await _until_idle()
            run = await connection.fetchval(f"{INSERT} returning id")
            committed = time.monotonic_ns()
            await connection.execute("select pg_notify('bench', $1)", str(run))
            number, began = await listening.wire.hear("started")
            assert number == run
            if n >= 0:
                waits.append((began - committed) / 1e6)
    return waits
