"""Pick-up: from the commit of an enqueue to the start of the handler in an idle worker, a process of its own.

Counted from the moment the enqueuing process has the answer to its commit, on the monotonic clock that both processes
share. Beside it, by turns, the least that it takes on Postgres: one NOTIFY, heard by a bare LISTEN in another process,
which marks the row as taken and begins when that is committed. And what a commit waits for: the disk.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from bench.enqueue import INSERT
from bench.machine import Bench, client, crew, disk, percentile, raw_connection, workers

Try = Callable[[int], Awaitable[float]]


async def measure(bench: Bench) -> None:
    count = bench.many(300, 25)
    for store in ("postgres", "sqlite"):
        async with AsyncExitStack() as stack:
            sync = stack.enter_context(disk(bench.new_folder()))
            ways = {"disk": _as_try(sync), "rota": await _rota(stack, bench.database(store))}
            if store == "postgres":
                ways["raw"] = await _raw(stack, bench.database(store))
            waits = await _by_turns(ways, count)
        bench.keep(f"pick-up ms, {store}", waits["rota"])
        for share, name in ((0.5, "p50"), (0.99, "p99")):
            beside = percentile(waits["raw"], share) if store == "postgres" else None
            bench.add(f"pick-up {name}", percentile(waits["rota"], share), "ms", store=store, raw=beside)
            bench.add(f"fdatasync {name}", percentile(waits["disk"], share), "ms", store=store, system="disk")


async def _by_turns(ways: dict[str, Try], count: int) -> dict[str, list[float]]:
    waits: dict[str, list[float]] = {name: [] for name in ways}
    for n in range(-5, count):  # the first ones open connections and prepare statements
        for name, once in ways.items():
            # A pause, not in step with anything: the worker has recorded the last run and waits.
            await asyncio.sleep(random.uniform(0.01, 0.08))
            wait = await once(n)
            if n >= 0:
                waits[name].append(wait)
    return waits


async def _rota(stack: AsyncExitStack, url: str) -> Try:
    app = await stack.enter_async_context(client(url))
    running = await stack.enter_async_context(workers(url, 1))
    job = app.jobs["started"]

    async def once(n: int) -> float:
        await job.enqueue(n)
        committed = time.monotonic_ns()
        number, began = await running.wire.hear("started")
        assert number == n
        return float(began - committed) / 1e6

    return once


async def _raw(stack: AsyncExitStack, url: str) -> Try:
    connection = await stack.enter_async_context(raw_connection(url))
    listening = await stack.enter_async_context(crew([("-m", "bench.listener", url)], 1))

    async def once(_: int) -> float:
        run = await connection.fetchval(f"{INSERT} returning id")
        committed = time.monotonic_ns()
        await connection.execute("select pg_notify('bench', $1)", str(run))
        number, began = await listening.wire.hear("started")
        assert number == run
        return float(began - committed) / 1e6

    return once


def _as_try(sync: Callable[[], float]) -> Try:
    async def once(_: int) -> float:
        return sync()

    return once
