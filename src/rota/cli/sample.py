"""The service that the demo and the soak run: `rota run rota.cli.sample:app`."""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import dataclass

from rota import Context, Rota, Singleton

app = Rota(os.environ.get("ROTA_URL", "sqlite:///rota-demo.db"), shutdown_timeout=5.0)


@app.every("1s", overlap="queue")
async def heartbeat() -> None:
    """Something short."""


@app.every("2s", overlap="queue", retry=3)
async def report(ctx: Context) -> str:
    """Something that fails now and then, and is tried again."""
    await asyncio.sleep(random.uniform(0.5, 0.7))
    if ctx.attempt == 1 and random.random() < 0.2:
        raise RuntimeError("the mail server hiccuped")
    return "sent"


@app.every("2s", overlap="skip")
async def import_feed(ctx: Context) -> None:
    """Something long that says how far it is. A tick that comes while it is still at it is skipped, on the record."""
    for step in range(1, 6):
        ctx.progress(step, 5)
        await asyncio.sleep(0.25)


@app.every("2s", overlap="queue")
def thumbnails() -> None:
    """A plain function; it runs in a thread."""
    sum(i * i for i in range(50_000))


@app.leader_only
async def lead() -> None:
    """Lives on one replica at a time."""
    await asyncio.Event().wait()


@dataclass
class Count:
    value: int = 0


@app.singleton(state=Count)
async def counter(me: Singleton[Count]) -> None:
    """Counts on one replica at a time, and goes on elsewhere where it stopped: each step is stored as it is made."""
    while True:
        await asyncio.sleep(0.5)
        async with me.update() as count:
            count.value += 1
