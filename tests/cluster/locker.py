"""A process that does things under locks: `python -m tests.cluster.locker`, with ROTA_TEST_TASK saying which.

What it does goes into one file, ROTA_TEST_TRACE, a line each, in the order in which it happened.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import signal
from contextlib import nullcontext
from pathlib import Path

from rota import LockLost, Rota
from tests.cluster.replica import say
from tests.cluster.trace import write

TRACE = os.open(os.environ["ROTA_TEST_TRACE"], os.O_WRONLY | os.O_APPEND)
COUNTER = os.open(Path(os.environ["ROTA_TEST_TRACE"]).parent / "counter", os.O_RDWR)
LOCKED = os.environ.get("ROTA_TEST_LOCKED", "yes") == "yes"


def note(**line: object) -> None:
    write(TRACE, line | {"pid": os.getpid()})


async def count(app: Rota) -> None:
    """Read, wait a little, write: whoever does that at the same time as another loses an update."""
    while True:
        async with app.lock("counter") if LOCKED else nullcontext():
            value = int(os.pread(COUNTER, 9, 0))
            await asyncio.sleep(random.uniform(0, 0.02))
            os.pwrite(COUNTER, b"%09d" % (value + 1), 0)
            note(value=value + 1)
        await asyncio.sleep(random.uniform(0, 0.01))


async def step(app: Rota) -> None:
    """Go on, step by step, for as long as the lock is held."""
    while True:
        try:
            async with app.lock("steps") as lock:
                say("Held", fence=lock.fence)
                while lock.held:
                    note(fence=lock.fence)
                    await asyncio.sleep(0.02)
                say("Stopped", fence=lock.fence)
        except LockLost:
            say("Lost", fence=lock.fence)


async def edit(app: Rota) -> None:
    """Many at once, of a few keys."""

    async def one(workspace: str) -> None:
        nonce = secrets.token_hex(4)
        async with app.serialize(workspace) if LOCKED else nullcontext():
            note(key=workspace, phase="start", nonce=nonce)
            await asyncio.sleep(random.uniform(0, 0.02))
            note(key=workspace, phase="end", nonce=nonce)

    await asyncio.gather(*(one(f"w{n % 3}") for n in range(15)))
    say("Done")
    await asyncio.Event().wait()


TASKS = {"count": count, "step": step, "edit": edit}


async def main() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    app = Rota()
    async with app:
        say("Ready")
        work = asyncio.create_task(TASKS[os.environ["ROTA_TEST_TASK"]](app))
        await asyncio.wait([work, asyncio.create_task(stop.wait())], return_when=asyncio.FIRST_COMPLETED)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
