"""Replicas: a hundred on one database, idle and then all waiting for the same tick every second.

Each is a process of its own. A storm would show as CPU of the database that grows faster than their number.
"""

from __future__ import annotations

import asyncio
import time

from bench.cost import cpu, server_cpu, statements
from bench.lateness import no_duplicates
from bench.machine import Bench, Crew, client, crew, percentile


async def measure(bench: Bench) -> None:
    seconds = bench.many(10, 2)
    for count in (5,) if bench.quick else (10, 100):
        await _postgres(bench, count, seconds)
    await _sqlite(bench, bench.many(10, 3), seconds)


async def _postgres(bench: Bench, count: int, seconds: int) -> None:
    with bench.server(max_connections=100 + 16 * count) as server:
        url = server.new_database()
        async with client(url) as app:
            began = time.monotonic()
            async with crew([("-m", "bench.fleet", str(count))], count, ROTA_URL=url) as running:
                joined = time.monotonic() - began
                await asyncio.sleep(bench.many(5, 1))  # what follows joining is no idle cost
                sent = await statements(server, seconds) / seconds
                idle = -server_cpu(server)
                await asyncio.sleep(seconds)
                idle = (idle + server_cpu(server)) / seconds
                bench.add(f"{count} replicas idle, queries per second of each", sent / count, "/s")
                bench.add(f"{count} replicas idle, CPU of the server", idle * 100, "%", joined=f"{joined:.1f} s")
                await app.schedule("late", "every 1s")
                await running.wire.hear("tick")
                before = server_cpu(server)
                late = await _ticks(running, seconds)
                ticking = server_cpu(server) - before - idle * seconds
        await no_duplicates(url)
    bench.add(f"{count} replicas on one tick, CPU of the server", ticking / len(late) * 1000, "ms", ticks=len(late))
    bench.add(f"{count} replicas on one tick, lateness p99", percentile(late, 0.99), "ms")


async def _sqlite(bench: Bench, count: int, seconds: int) -> None:
    url = bench.database("sqlite")
    async with client(url) as app:
        async with crew([("-m", "bench.fleet", str(count))], count, ROTA_URL=url) as running:
            await asyncio.sleep(bench.many(3, 1))
            before = cpu(running.processes)
            await asyncio.sleep(seconds)
            idle = (cpu(running.processes) - before) / seconds
            bench.add(f"{count} replicas idle, CPU of each", idle / count * 100, "%", store="sqlite")
            await app.schedule("late", "every 1s")
            await running.wire.hear("tick")
            late = await _ticks(running, seconds)
    await no_duplicates(url)
    bench.add(f"{count} replicas on one tick, lateness p99", percentile(late, 0.99), "ms", store="sqlite")


async def _ticks(running: Crew, seconds: int) -> list[float]:
    ticks = await running.wire.collect("tick", seconds)
    due = [tick[0] for tick in ticks]
    assert len(set(due)) == len(due) >= seconds - 1, f"{len(due)} runs of {len(set(due))} ticks in {seconds} s"
    return [(began - due_at) * 1000 for due_at, began, _ in ticks]
