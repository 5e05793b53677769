"""Memory: what a worker process holds while it works through a long queue beside many schedules.

It must hold only what it has claimed: the length of the queue must not show.
"""

from __future__ import annotations

import asyncio
import contextlib
import math

import psutil
from tests.harness import execute

from bench.drain import all_done
from bench.machine import Bench, client, workers
from bench.queue import fill_queue
from bench.schedules import NEXT_YEAR, fill_schedules


async def measure(bench: Bench) -> None:
    runs, schedules = bench.many(100_000, 5_000), bench.many(10_000, 1_000)
    for store in ("postgres", "sqlite"):
        url = bench.database(store)
        async with client(url):
            await fill_schedules(url, store, "later", schedules, NEXT_YEAR)
            async with workers(url, 1) as running:
                at_start = _held(running.processes[0])
            await fill_queue(url, store, runs)
            async with workers(url, 1) as running:
                watching = asyncio.create_task(_peak(running.processes[0]))
                await all_done(url)
                watching.cancel()
                peak, after = await watching, _held(running.processes[0])
        what = f"memory, {runs:,} queued runs, {schedules:,} schedules"
        bench.add(f"{what}, at start", at_start, "MB", store=store)
        bench.add(f"{what}, peak", peak, "MB", store=store)
        bench.add(f"{what}, after", after, "MB", store=store)
        assert not await execute(url, "select 1 from job_runs where state <> 'succeeded' limit 1")


def _held(process: psutil.Process) -> float:
    return process.memory_info().rss / 1e6


async def _peak(process: psutil.Process) -> float:
    """Looked at often until cancelled: not every system keeps the greatest size of a process."""
    peak = -math.inf
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            peak = max(peak, _held(process))
            await asyncio.sleep(0.02)
    return peak
