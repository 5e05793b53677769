"""Long: whether the rate holds over very many runs, with the default autovacuum, and while a snapshot is held.

Every run leaves dead rows behind. A transaction that stays open somewhere else keeps them from being cleaned up, and
what is slow then is a queue that walks over them again and again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import asyncpg
from tests.harness import execute

from bench.drain import FILL, all_done, raw_drain
from bench.machine import Bench, client, raw_connection, workers
from bench.queue import fill_queue

WINDOWS = 20
SPANS = """
with numbered as (
    select finished_at, (row_number() over (order by finished_at) - 1) / {size} as number from {table}
),
ends as (
    select number, min(finished_at) as first, max(finished_at) as last from numbered group by number
)
select extract(epoch from last - lag(last, 1, first) over (order by number))::float8 from ends order by number
"""


async def measure(bench: Bench) -> None:
    count = 2_000_000 if bench.long else bench.many(400_000, 20_000)
    raw = await _raw(bench, count)
    what = f"drain of {count:,} runs, last tenth / first"
    for held in (False, True):
        rates = await _rota(bench, count, held)
        name = what + (", a snapshot held" if held else "")
        bench.keep(f"runs/s, {count:,} runs" + (", a snapshot held" if held else ""), rates)
        bench.add(
            name,
            _last_to_first(rates),
            "x",
            raw=None if held else _last_to_first(raw),
            average=f"{_mean(rates):,.0f}/s",
        )
    bench.keep(f"runs/s, {count:,} runs, raw", raw)


def _last_to_first(rates: list[float]) -> float:
    """Two windows at each end, so that one checkpoint does not decide. The very first is left out: a slow start would
    pass for a rate that holds."""
    return _mean(rates[-2:]) / _mean(rates[1:3])


def _mean(rates: list[float]) -> float:
    return len(rates) / sum(1 / rate for rate in rates)


async def _rota(bench: Bench, count: int, held: bool) -> list[float]:
    url = bench.database("postgres")
    async with client(url), AsyncExitStack() as stack:
        await fill_queue(url, "postgres", count)
        if held:
            await stack.enter_async_context(_snapshot(url))
        async with workers(url, 1):
            await all_done(url)
    return await _rates(url, "job_runs", count)


async def _raw(bench: Bench, count: int) -> list[float]:
    url = bench.database("postgres")
    async with raw_connection(url) as connection:
        await connection.execute(FILL, count)
        await connection.execute("vacuum analyze raw_runs")
        await raw_drain(connection)
    return await _rates(url, "raw_runs", count)


@asynccontextmanager
async def _snapshot(url: str) -> AsyncIterator[Any]:
    """A report that somebody has left open."""
    connection: Any = await asyncpg.connect(url)
    try:
        async with connection.transaction(isolation="repeatable_read"):
            await connection.fetch("select 1")
            yield connection
    finally:
        await connection.close()


async def _rates(url: str, table: str, count: int) -> list[float]:
    size = count // WINDOWS
    return [size / float(str(seconds)) for (seconds,) in await execute(url, SPANS.format(table=table, size=size))]
