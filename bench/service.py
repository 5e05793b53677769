"""The service that the workers of the benchmark run. It takes its times first and says them afterwards."""

from __future__ import annotations

import asyncio
import os
import time

from bench.wire import speaker
from rota import Context, Rota
from rota.events import ReplicaJoined

app = Rota(os.environ.get("ROTA_URL", "sqlite:///bench.db"), keep_days=0)
say = speaker(os.environ.get("BENCH_WIRE"))
app.events.subscribe(ReplicaJoined, lambda event: say("joined", os.getpid()))


@app.job
async def noop(n: int) -> None: ...


@app.job
def plain(n: int) -> None: ...


@app.job
async def tick() -> None: ...


@app.job
async def lasting() -> None:
    await asyncio.sleep(2)


@app.job
async def started(n: int) -> None:
    began = time.monotonic_ns()
    say("started", n, began)


@app.job
async def late(ctx: Context) -> None:
    began = time.time()
    say("tick", ctx.tick.due_at.timestamp(), began, ctx.replica_id)
