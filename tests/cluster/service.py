"""The service under test: jobs that leave a trace of every attempt, so that a history can be judged afterwards.

An attempt writes a line when it starts and one when it ends, and returns who it was. What it returns is stored with the
run, by whoever completes it: so the ledger tells the accepted holder apart from one that was refused.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import random
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypedDict

from rota import Context, Retry, Rota
from tests.cluster.trace import write

CHILDREN = 5

app = Rota()
_trace = os.open(os.environ.get("ROTA_TEST_TRACE", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)


class Holder(TypedDict):
    """Who did it."""

    replica: int
    attempt: int
    pid: int
    nonce: str


@contextmanager
def traced(ctx: Context) -> Iterator[Holder]:
    me = Holder(replica=ctx.replica_id, attempt=ctx.attempt, pid=os.getpid(), nonce=secrets.token_hex(4))
    write(_trace, {"phase": "start", "run": ctx.run_id, "job": ctx.job, **me})
    yield me
    write(_trace, {"phase": "end", "run": ctx.run_id, "job": ctx.job, **me})


# -- the jobs of the schedules ---------------------------------------------------------------------


@app.job()
async def brief(ctx: Context) -> Holder:
    with traced(ctx) as me:
        await asyncio.sleep(random.uniform(0, 0.05))
        return me


@app.job()
async def steady(ctx: Context) -> Holder:
    with traced(ctx) as me:
        await asyncio.sleep(random.uniform(0.1, 1.2))  # sometimes until after the next tick
        return me


@app.job()
async def slow(ctx: Context) -> Holder:
    with traced(ctx) as me:
        await asyncio.sleep(random.uniform(1.05, 1.4))  # always until after the next tick
        return me


@app.job()
def plain(ctx: Context) -> Holder:
    with traced(ctx) as me:
        time.sleep(random.uniform(0, 0.15))
        return me


@app.job()
async def child(ctx: Context, of: int) -> Holder:
    with traced(ctx) as me:
        await asyncio.sleep(random.uniform(0, 0.8))
        return me


@app.job(retry=Retry(attempts=20, base=0.05, longest=0.5))
async def parent(ctx: Context) -> Holder:
    """Every attempt asks for the same children: their keys make them once."""
    with traced(ctx) as me:
        for n in range(CHILDREN):
            await child.using(key=f"child:{ctx.run_id}:{n}").enqueue(of=ctx.run_id)
        return me


@app.job()
async def echo(ctx: Context, of: int) -> Holder:
    with traced(ctx) as me:
        return me


@app.job(transactional=True)
async def ledger(ctx: Context) -> Holder:
    """An effect and a run without a key, in the transaction of the completion: exactly once, whatever happens."""
    with traced(ctx) as me:
        done = ctx.connection.execute(f"insert into effects (run_id, attempt) values ({ctx.run_id}, {ctx.attempt})")
        if inspect.isawaitable(done):
            await done
            await asyncio.sleep(random.uniform(0, 0.1))
        await echo.using(connection=ctx.connection).enqueue(of=ctx.run_id)
        return me


# -- jobs that single tests enqueue ----------------------------------------------------------------


@app.job()
async def nap(ctx: Context, seconds: float) -> Holder:
    with traced(ctx) as me:
        await asyncio.sleep(seconds)
        return me


@app.job()
def stubborn(ctx: Context, seconds: float) -> Holder:
    """Does not look at `ctx.stopping`."""
    with traced(ctx) as me:
        time.sleep(seconds)
        return me


@app.job()
async def block(ctx: Context, seconds: float) -> Holder:
    """Keeps the event loop from turning."""
    with traced(ctx) as me:
        time.sleep(seconds)  # noqa: ASYNC251
        return me


@app.job()
async def spin(ctx: Context, seconds: float) -> Holder:
    """Keeps the event loop from turning, and the interpreter busy."""
    with traced(ctx) as me:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            sum(range(1000))
        return me


@app.job(concurrency_limit=1)
async def alone(ctx: Context) -> Holder:
    with traced(ctx) as me:
        await asyncio.sleep(0.05)
        return me
