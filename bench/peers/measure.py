"""Measure: the same questions to every peer, on the server that rota is measured on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg

from bench import quiet
from bench.machine import Bench, percentile
from bench.peers import idle
from bench.peers.conversation import FAILURES, Asked, Driver, answer, left_out, workers
from bench.peers.install import PEERS, PeerFailed


@dataclass(frozen=True)
class Pace:
    """How many, and for how many seconds."""

    one: int = 2000
    many: int = 50_000
    drain: int = 100_000
    slow: int = 2000
    pickups: int = 60
    settle: float = 3.0
    idle: float = 10.0
    ticks: float = 10.0


LONGEST = 60.0
QUICK = Pace(one=100, many=2000, drain=2000, slow=200, pickups=10, settle=1.0, idle=2.0, ticks=3.0)


async def measure(bench: Bench, names: Sequence[str]) -> None:
    await ask_all(bench, [PEERS[name] for name in names or PEERS], QUICK if bench.quick else Pace())


async def ask_all(bench: Bench, peers: Sequence[Asked], pace: Pace) -> None:
    """One peer after the other; one that fails says so and leaves the rest alone."""
    able = []
    for peer in peers:
        try:
            await asyncio.to_thread(peer.install)
            with quiet.surroundings(bench, peer.name):
                await _figures(bench, peer, pace)
            able.append(peer)
        except FAILURES as error:
            left_out(peer, error)
        bench.forget()
    with bench.server() as server:
        sent = await idle.statements(server, able, pace.settle, pace.idle)
    for peer in able:
        if peer.name in sent:
            _add(bench, peer, "idle queries per second", sent[peer.name] / pace.idle, "/s")


async def _figures(bench: Bench, peer: Asked, pace: Pace) -> None:
    url, able = await _new(bench, peer)
    jobs = pace.slow if able["slow"] else pace.drain
    _add(bench, peer, "enqueue one by one", pace.one / await answer(peer, url, "enqueue-one", pace.one), "/s")
    if able["bulk"]:
        many = min(jobs, pace.many)
        _add(bench, peer, "enqueue_many, 1000 at a time", many / await answer(peer, url, "enqueue-many", many), "/s")
    for processes in (1, 2):
        rate = await _drain(bench, peer, jobs, processes)
        _add(bench, peer, f"drain, async no-op, {processes} process{'es' * (processes > 1)}", rate, "/s")
    _spread(bench, peer, "pick-up", await _pickups(bench, peer, pace))
    if able["ticks"]:
        late, gaps = await _lateness(bench, peer, pace)
        _spread(bench, peer, "tick lateness", late, ticks=len(late), missed=gaps)


async def _drain(bench: Bench, peer: Asked, count: int, processes: int) -> float:
    """Jobs a second, from the first handler's start until the queue's table has nothing unfinished."""
    url, able = await _new(bench, peer)
    await answer(peer, url, "enqueue-many", count)
    async with _connection(url) as connection:
        await connection.execute("vacuum analyze")
        async with workers(peer, url, processes) as drivers:
            first = await _started(drivers, count)
            async with asyncio.timeout(30):
                while await connection.fetchval(able["left"]):
                    await asyncio.sleep(0.005)
            return count / (time.time() - first)


async def _pickups(bench: Bench, peer: Asked, pace: Pace) -> list[float]:
    """Milliseconds from the commit until the handler starts, the worker being idle."""
    url, _ = await _new(bench, peer)
    async with workers(peer, url, 1) as drivers:
        warm = pace.pickups // 10 + 1
        await answer(peer, url, "enqueue-many", warm)
        await _started(drivers, warm)
        sent = dict(await answer(peer, url, "pickup", pace.pickups))
        await _started(drivers, warm + pace.pickups)
        starts = (await drivers[0].ask("starts"))[warm:]
    return [(at - sent[number]) * 1000 for at, number in starts]


async def _lateness(bench: Bench, peer: Asked, pace: Pace) -> tuple[list[float], int]:
    """Milliseconds from the second that is due until its handler starts, with two replicas; and how many never came."""
    url, _ = await _new(bench, peer)
    async with workers(peer, url, 2, "tick") as drivers:
        await _started(drivers, 2)
        since = time.time()
        await asyncio.sleep(pace.ticks)
        starts = [start for driver in drivers for start in await driver.ask("starts")]
    starts = [(at, due) for at, due in starts if at > since]
    if not starts:
        raise PeerFailed("no tick came")
    return [(at - due) * 1000 for at, due in starts], missed([due for _, due in starts])


def missed(due: list[float]) -> int:
    """Seconds between the first and the last that nobody was started for: lateness alone would hide them."""
    return round(max(due) - min(due)) + 1 - len({round(instant - min(due)) for instant in due})


async def _started(drivers: list[Driver], count: int) -> float:
    """When the first handler started, once so many have. Asked of the workers: it costs the database nothing."""
    deadline = time.monotonic() + LONGEST
    while True:
        told = [await driver.ask("count") for driver in drivers]
        if sum(number for number, _ in told) >= count:
            return float(min(first for _, first in told if first is not None))
        if time.monotonic() > deadline:
            raise PeerFailed(f"{sum(number for number, _ in told)} of {count} started within {LONGEST} s")
        await asyncio.sleep(0.05)


async def _new(bench: Bench, peer: Asked) -> tuple[str, dict[str, Any]]:
    """A database with the peer's tables, and what the peer can do."""
    url = await _database(bench)
    return url, await answer(peer, url, "setup")


async def _database(bench: Bench) -> str:
    return await asyncio.to_thread(bench.database, "postgres")


@asynccontextmanager
async def _connection(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


def _spread(bench: Bench, peer: Asked, what: str, values: list[float], **more: Any) -> None:
    for share in (50, 99):
        _add(bench, peer, f"{what} p{share}", percentile(values, share / 100), "ms", **more)


def _add(bench: Bench, peer: Asked, what: str, value: float, unit: str, **more: Any) -> None:
    bench.add(what, value, unit, system=peer.name, version=peer.version, **more)
