"""Lateness: how long after its due time a tick's handler starts, with two replicas that compete for it.

The replicas and the database share the machine's clock, so the handler's own time can be compared with the due time.
Beside it, at the half seconds of the same run, the least that it takes: one process that sleeps until then and commits
the run and the schedule's next due time; until that is done, since it has no handler to start.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import asyncpg
from tests.harness import execute

from bench.machine import Bench, client, percentile, workers
from rota.stores.sqlite.connection import PATIENCE, connect, database_path

RAW_TICK = "insert into {}raw_ticks (due_at) values ({})"
RAW_ADVANCE = "update {}raw_schedules set next_run_at = {} where id = 1"
RAW_TABLES = """
create table {0}raw_ticks (id integer primary key {1}, due_at double precision not null);
create table {0}raw_schedules (id integer primary key, next_run_at double precision not null);
insert into {0}raw_schedules values (1, 0);
"""


async def measure(bench: Bench) -> None:
    for store in ("postgres", "sqlite"):
        late, raw = await _every_second(bench, store, bench.many(100, 3))
        bench.keep(f"tick lateness ms, {store}", late)
        bench.add(
            "tick lateness p50", percentile(late, 0.5), "ms", store=store, raw=percentile(raw, 0.5), ticks=len(late)
        )
        bench.add("tick lateness p99", percentile(late, 0.99), "ms", store=store, raw=percentile(raw, 0.99))
        bench.add("tick lateness, the latest", max(late), "ms", store=store, raw=max(raw))


async def _every_second(bench: Bench, store: str, seconds: int) -> tuple[list[float], list[float]]:
    url = bench.database(store)
    async with AsyncExitStack() as stack:
        commit = await _raw(stack, bench.database(store), store)
        app = await stack.enter_async_context(client(url))
        running = await stack.enter_async_context(workers(url, 2))
        await app.schedule("late", "every 1s")
        await running.wire.hear("tick")  # the first one opens connections and prepares statements
        ticks, beside = await asyncio.gather(running.wire.collect("tick", seconds), _at_half_seconds(commit, seconds))
    due = [tick[0] for tick in ticks]
    assert len(due) >= seconds - 1, f"{len(due)} ticks in {seconds} s"
    assert len(set(due)) == len(due), "a tick ran twice"
    assert max(due) - min(due) == len(due) - 1, "a tick is missing"
    await no_duplicates(url)
    return [(began - due_at) * 1000 for due_at, began, _ in ticks], beside


async def _at_half_seconds(commit: Callable[[float], Awaitable[None]], count: int) -> list[float]:
    late, due = [], int(time.time()) + 1.5
    for n in range(count):
        await asyncio.sleep(due + n - time.time())
        await commit(due + n)
        late.append((time.time() - due - n) * 1000)
    return late


async def _raw(stack: AsyncExitStack, url: str, store: str) -> Callable[[float], Awaitable[None]]:
    """What commits a tick with bare SQL."""
    if store == "sqlite":
        lite = connect(database_path(url), PATIENCE)
        stack.callback(lite.close)
        lite.execute(RAW_TABLES.format("", ""))

        def write(due: float) -> None:
            with lite:
                lite.execute(RAW_TICK.format("", "?"), (due,))
                lite.execute(RAW_ADVANCE.format("", "?"), (due + 1,))

        return lambda due: asyncio.to_thread(write, due)
    connection = await asyncpg.connect(url)
    stack.push_async_callback(connection.close)
    await connection.execute(RAW_TABLES.format("public.", "generated always as identity"))

    async def commit(due: float) -> None:
        async with connection.transaction():
            await connection.execute(RAW_TICK.format("public.", "$1"), due)
            await connection.execute(RAW_ADVANCE.format("public.", "$1"), due + 1)

    return commit


async def no_duplicates(url: str) -> None:
    """By the books, not only by what the handlers said."""
    twice = await execute(
        url, "select 1 from job_runs group by config_id, due_at having count(*) > 1 or sum(attempt) > 1"
    )
    assert not twice, "a tick has two runs, or a run was started twice"
