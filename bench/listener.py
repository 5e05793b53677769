"""`python -m bench.listener URL`: what a bare LISTEN in another process hears, and when."""

from __future__ import annotations

import asyncio
import os
import sys
import time

import asyncpg
import uvloop

from bench.wire import speaker


async def listen(url: str) -> None:
    say = speaker(os.environ["BENCH_WIRE"])

    def heard(connection: object, pid: int, channel: str, payload: object) -> None:
        began = time.monotonic_ns()
        say("notified", int(str(payload)), began)

    connection = await asyncpg.connect(url)
    await connection.add_listener("bench", heard)
    say("joined", os.getpid())
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(listen(sys.argv[1]))
