"""Failover: from the end of a leader until the next one's `on_become_leader` runs, with the settings as shipped.

Processes are killed and frozen, connections fall silent, in turn, always those of the leader. Everybody writes all the
time, and the whole history is judged at the end: a fast failover with two leaders is none.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable

from tests.cluster.cluster import Process
from tests.cluster.leaders import DEFAULTS, Leaders, apart, leaders

from bench.machine import Bench, percentile

SETTINGS = DEFAULTS | {"ROTA_TEST_PAUSE": "0.02"}


async def measure(bench: Bench) -> None:
    kills, others = (100, 20) if bench.long else (bench.many(30, 3), bench.many(4, 1))
    for store in ("postgres", "sqlite"):
        taken = await _repeated(bench, store, kills, _kill)
        bench.add("failover, kill -9, p50", percentile(taken, 0.5) * 1000, "ms", store=store, kills=len(taken))
        bench.add("failover, kill -9, p99", percentile(taken, 0.99) * 1000, "ms", store=store)
        bench.add("failover, kill -9, the longest", max(taken) * 1000, "ms", store=store)
        bench.keep(f"failover ms, kill -9, {store}", [seconds * 1000 for seconds in taken])
    for store in ("postgres", "sqlite"):
        taken = await _repeated(bench, store, others, _freeze)
        bench.add("failover, frozen, the longest", max(taken), "s", store=store, freezes=len(taken))
    taken = await _cuts(bench, others)
    bench.add("failover, silent cut, the longest", max(taken), "s", cuts=len(taken))


async def _repeated(bench: Bench, store: str, times: int, fault: Callable[[Leaders], Awaitable[float]]) -> list[float]:
    async with leaders(bench.database(store), bench.new_folder(), count=3, **SETTINGS) as it:
        return [await fault(it) for _ in range(times)]


async def _at_random(it: Leaders) -> tuple[Process, int]:
    """Whoever leads, at an instant that has nothing to do with when the others look."""
    await it.leader()
    await asyncio.sleep(random.uniform(0.5, 1.5))
    return await it.leader()


async def _kill(it: Leaders) -> float:
    victim, term = await _at_random(it)
    at = time.monotonic_ns()
    victim.process.kill()
    taken = await _until_next(it, term, at)
    await victim.gone()
    await it.replace(victim)
    return taken


async def _freeze(it: Leaders) -> float:
    victim, term = await _at_random(it)
    at = await it.freeze(victim)
    taken = await _until_next(it, term, at)
    await it.leader(after=term)
    victim.send(signal.SIGCONT)
    await it.steps_down(term)
    return taken


async def _cuts(bench: Bench, times: int) -> list[float]:
    taken = []
    async with apart(bench.databases.server(), bench.new_folder(), count=3, **SETTINGS) as it:
        for _ in range(times):
            victim, term = await _at_random(it)
            at = time.monotonic_ns()
            it.proxies[victim.pid].mute()
            taken.append(await _until_next(it, term, at))
            await it.leader(after=term)
            it.proxies[victim.pid].unmute()
    return taken


async def _until_next(it: Leaders, term: int, at: int) -> float:
    _, became = await it.saw("become", after=term, seconds=60)
    return float(became["at"] - at) / 1e9
