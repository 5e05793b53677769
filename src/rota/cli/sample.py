"""The service that the demo and the soak run: `rota run rota.cli.sample:app`."""

from __future__ import annotations

import asyncio
import os
import random

from rota import Context, Rota

app = Rota(os.environ.get("ROTA_URL", "sqlite:///rota-demo.db"), shutdown_timeout=5.0)


@app.every("1s", overlap="queue")
async def heartbeat() -> None:
    """Something short."""


@app.every("2s", overlap="queue", retry=3)
async def report(ctx: Context) -> str:
    """Something that fails now and then, and is tried again."""
    await asyncio.sleep(random.uniform(0.05, 0.2))
    if ctx.attempt == 1 and random.random() < 0.2:
        raise RuntimeError("the mail server hiccuped")
    return "sent"


@app.every("3s", overlap="skip")
async def import_feed(ctx: Context) -> None:
    """Something long that reports how far it is, and now and then is still at it when the next tick comes."""
    steps = random.choice((5, 5, 5, 15))
    for step in range(steps):
        ctx.progress(step, steps)
        await asyncio.sleep(0.25)


@app.every("2s", overlap="queue")
def thumbnails() -> None:
    """A plain function; it runs in a thread."""
    sum(i * i for i in range(50_000))
