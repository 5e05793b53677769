"""`python -m bench.listener URL`: the least that starts a run: a LISTEN in a process of its own, and one UPDATE."""

from __future__ import annotations

import asyncio
import os
import sys
import time

import asyncpg
import uvloop

from bench.wire import speaker

CLAIM = "update raw_runs set state = 'running', started_at = now() where id = $1 and state = 'queued'"


async def listen(url: str) -> None:
    say, told = speaker(os.environ["BENCH_WIRE"]), asyncio.Queue[int]()

    def heard(connection: object, pid: int, channel: str, payload: object) -> None:
        told.put_nowait(int(str(payload)))

    listener, worker = await asyncpg.connect(url), await asyncpg.connect(url)
    await listener.add_listener("bench", heard)
    say("joined", os.getpid())
    while True:
        run = await told.get()
        await worker.execute(CLAIM, run)
        say("started", run, time.monotonic_ns())


if __name__ == "__main__":
    uvloop.run(listen(sys.argv[1]))
