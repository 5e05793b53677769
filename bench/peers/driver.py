"""Driver: what `measure` asks of a peer, answered from inside the peer's own environment.

`python -m bench.peers.NAME COMMAND [N]`, the database in PEER_URL; every answer is a line of JSON on standard output.

    setup            make the tables; says what the peer can do
    enqueue-one N    seconds for N, one by one over one connection
    enqueue-many N   seconds for N, a thousand at a time
    pickup N         N one at a time at random spacings; says when each was committed
    work | tick      says "ready", works until standard input ends, and answers the lines that come there:
                     "count" (how many handlers started, when the first one did) or "starts" (all of them)

A handler only notes when it started: nothing is printed for each job. driver.mjs is the same for Node.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

BATCH = 1000
Started = Callable[[float], None]


class Client(Protocol):
    async def one(self, number: int) -> None: ...

    async def many(self, numbers: list[int]) -> None: ...


class Peer:
    """What a driver's file fills in."""

    # A query that finds a row as long as a job is not finished.
    left: str
    # A few hundred jobs a second, so that fewer are drained.
    slow = False
    # It has an API for many jobs at once.
    bulk = True
    # It has schedules by the second.
    ticks = False

    def __init__(self, url: str) -> None:
        self.url = url

    async def setup(self) -> None:
        raise NotImplementedError

    def client(self) -> AbstractAsyncContextManager[Client]:
        raise NotImplementedError

    async def work(self, started: Started, ticking: bool) -> None:
        """Work until cancelled; handlers call `started` with the job's number, or the instant the tick was due."""
        raise NotImplementedError


def main(kind: type[Peer]) -> None:
    command, *more = sys.argv[1:]
    peer = kind(os.environ["PEER_URL"])
    count = int(more[0]) if more else 0
    commands = {
        "setup": lambda: _setup(peer),
        "enqueue-one": lambda: _enqueue_one(peer, count),
        "enqueue-many": lambda: _enqueue_many(peer, count),
        "pickup": lambda: _pickup(peer, count),
        "work": lambda: _work(peer, ticking=False),
        "tick": lambda: _work(peer, ticking=True),
    }
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(commands[command]())


async def _setup(peer: Peer) -> None:
    await peer.setup()
    _say({"left": peer.left, "slow": peer.slow, "bulk": peer.bulk, "ticks": peer.ticks})


async def _enqueue_one(peer: Peer, count: int) -> None:
    async with peer.client() as client:
        await client.one(0)
        began = time.perf_counter()
        for number in range(1, count + 1):
            await client.one(number)
        _say(time.perf_counter() - began)


async def _enqueue_many(peer: Peer, count: int) -> None:
    batches = [list(range(first, min(first + BATCH, count))) for first in range(0, count, BATCH)]
    async with peer.client() as client:
        began = time.perf_counter()
        for numbers in batches:
            await client.many(numbers)
        _say(time.perf_counter() - began)


async def _pickup(peer: Peer, count: int) -> None:
    sent = []
    async with peer.client() as client:
        for number in range(count):
            await asyncio.sleep(random.uniform(0.05, 0.15))
            await client.one(number)
            sent.append((number, time.time()))
    _say(sent)


async def _work(peer: Peer, ticking: bool) -> None:
    starts: list[tuple[float, float]] = []

    def started(what: float) -> None:
        starts.append((time.time(), what))

    threading.Thread(target=_answer, args=(starts,), daemon=True).start()
    _say("ready")
    await peer.work(started, ticking)


def _answer(starts: list[tuple[float, float]]) -> None:
    for line in sys.stdin:
        _say(starts if line.strip() == "starts" else [len(starts), starts[0][0] if starts else None])
    os._exit(0)


def _say(answer: Any) -> None:
    """On a line of its own, in one piece: the peer may be talking on another thread."""
    os.write(1, f"\n{json.dumps(answer)}\n".encode())


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where the peer's environment has it, as rota's workers do."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
