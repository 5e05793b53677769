"""Idle: what one replica costs while nothing happens, with one schedule far in the future.

The only replica is also the caretaker of the cluster, so this is the dearest one; of many, most cost less.
"""

from __future__ import annotations

import asyncio

from bench.cost import cpu, server_cpu, statements
from bench.machine import Bench, client, workers


async def measure(bench: Bench) -> None:
    seconds, settle = bench.many(10, 2), bench.many(3, 1)
    with bench.server() as server:
        url = server.new_database()
        async with client(url) as app:
            await app.schedule("tick", "0 0 1 1 *")
        async with workers(url, 1) as running:
            await asyncio.sleep(settle)  # what follows joining is no idle cost
            before, before_server = cpu(running.processes), server_cpu(server)
            await asyncio.sleep(seconds)
            spent, spent_server = cpu(running.processes) - before, server_cpu(server) - before_server
            sent = await statements(server, seconds)
    bench.add("idle queries per second", sent / seconds, "/s")
    bench.add("idle CPU of a replica", spent / seconds * 100, "%")
    bench.add("idle CPU of the server", spent_server / seconds * 100, "%")
    url = bench.database("sqlite")
    async with client(url) as app:
        await app.schedule("tick", "0 0 1 1 *")
    async with workers(url, 1) as running:
        await asyncio.sleep(settle)
        before = cpu(running.processes)
        await asyncio.sleep(seconds)
        spent = cpu(running.processes) - before
    bench.add("idle CPU of a replica", spent / seconds * 100, "%", store="sqlite")
