"""Schedules: thousands that become due at one instant, while the replicas are running and idle.

Counted from that instant, by the database's clock: until the last run row was written, until the last run was started.
With ten times as many stored that are due next year, the rate must be the same. Where the runs are over at once, they
take more of the two cores than the ticks do; where they last, as they do in earnest, the ticks have them to themselves.
"""

from __future__ import annotations

import asyncio
import math
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
from tests.harness import execute

from bench.drain import all_done
from bench.lateness import no_duplicates
from bench.machine import Bench, Stopwatch, client, middle, workers
from rota.stores.sqlite.connection import connect, database_path

# Spread over the minutes of a day in January, as real ones are: a thousand expressions, not one.
FILL = """
insert into scheduler_configs (job_id, name, cron, next_run_at)
with recursive n (i) as (select 1 union all select i + 1 from n where i < {count})
select '{job}', '{prefix}-' || i, (i % 60) || ' ' || (i / 60 % 24) || ' 1 1 *', {at} from n
"""
RAW_TICKS = """
insert into rota.job_runs (job_id, config_id, idempotency_key, correlation_id, run_at, due_at)
select 'tick', id, 'schedule:0', id::text, $2, $2 from unnest($1::integer[]) id
"""
RAW_ADVANCE = "update rota.scheduler_configs set next_run_at = $2, version = version + 1 where id = any($1::integer[])"
RAW_TICK_SQLITE = """
insert into job_runs (job_id, config_id, idempotency_key, correlation_id, run_at, due_at)
values ('tick', ?1, 'schedule:0', 'raw', ?2, ?2)
"""
RAW_ADVANCE_SQLITE = "update scheduler_configs set next_run_at = ?2, version = version + 1 where id = ?1"
NEXT_YEAR = timedelta(days=365)
SIZE = 1000


async def measure(bench: Bench) -> None:
    few, many, stored = bench.many(10_000, 1_000), bench.many(100_000, 2_000), bench.many(1_000_000, 10_000)
    for store in ("postgres", "sqlite"):
        rounds = [
            (await _raw(bench, store, few), *await _due_at_once(bench, store, few, few))
            for _ in range(bench.many(3, 1))
        ]
        raws, *ours = zip(*rounds, strict=True)
        for last, seconds in zip(("run row written", "run started"), ours, strict=True):
            value, raw = middle(seconds, raws)
            bench.add(f"{few:,} schedules due at once, last {last}", value, "s", store=store, raw=raw)
    for total in (many, stored):
        what = f"{many:,} schedules due of {total:,} stored"
        for job, which in (("tick", ""), ("lasting", ", runs that last")):
            raw = await _raw(bench, "postgres", many)
            written, started = await _due_at_once(bench, "postgres", many, total, job)
            more = {"started": f"{started:.1f} s"} if job == "tick" else {}
            bench.add(what + which, many / written, "/s", raw=many / raw, **more)


def _at(store: str, moment: datetime) -> str:
    text = moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    return f"'{text}'" if store == "sqlite" else f"timestamptz '{text}+00'"


async def fill_schedules(
    url: str, store: str, prefix: str, count: int, at: datetime | timedelta, job: str = "tick"
) -> None:
    """So many yearly schedules of a job, due at this instant or after this time."""
    at = datetime.now(UTC) + at if isinstance(at, timedelta) else at
    if count:
        await execute(url, FILL.format(count=count, prefix=prefix, at=_at(store, at), job=job))
        # Also vacuumed, or that would be done, on the same two cores, while they are due.
        await execute(url, "analyze" if store == "sqlite" else "vacuum analyze rota.scheduler_configs")


async def _due_at_once(bench: Bench, store: str, due: int, stored: int, job: str = "tick") -> tuple[float, float]:
    """Seconds from the instant until the last run row was written, and until the last run was started."""
    url = bench.database(store)
    async with client(url) as app:
        await fill_schedules(url, store, "later", stored - due, NEXT_YEAR)
        if stored > due:
            await execute(url, "checkpoint")  # or what was just stored is written to the disk while they are due
        async with workers(url, 2):
            # On a whole second, and far enough ahead to be stored, committed and slept towards before it comes.
            at = datetime.fromtimestamp(math.ceil(time.time() + 2 + due / 20_000), UTC)
            await fill_schedules(url, store, "due", due, at, job)
            ahead = (at - datetime.now(UTC)).total_seconds()
            assert ahead > 0.3, f"{due} schedules were not stored in time"
            await asyncio.sleep(ahead)
            # By rota's own look along its index: one that reads all schedules takes a core from those that work.
            while (await app.store.agenda([job])).due:
                await asyncio.sleep(0.1)
            if job == "tick":
                await all_done(url)
    [(runs, written, started)] = await execute(url, _spans(store, at))
    assert runs == due, f"{runs} runs for {due} due schedules"
    if due <= SIZE * 10:
        await no_duplicates(url)
    return float(str(written)), float(str(started))


def _spans(store: str, at: datetime) -> str:
    if store == "sqlite":
        after = "(julianday({}) - julianday(" + _at(store, at) + ")) * 86400"
    else:
        after = "extract(epoch from {} - " + _at(store, at) + ")::float8"
    written, started = after.format("max(created_at)"), after.format("max(started_at)")
    return f"select count(*), {written}, {started} from job_runs"


async def _raw(bench: Bench, store: str, count: int) -> float:
    """Seconds for the bare writes: the same run rows, the same new due times, a thousand of each in a transaction."""
    url, now = bench.database(store), datetime.now(UTC)
    async with client(url):
        await fill_schedules(url, store, "raw", count, now)
    batches = [list(range(first, min(first + SIZE, count + 1))) for first in range(1, count + 1, SIZE)]
    if store == "sqlite":
        return await asyncio.to_thread(_raw_sqlite, url, batches, now)
    connection: Any = await asyncpg.connect(url)
    try:
        with Stopwatch() as watch:
            for ids in batches:
                async with connection.transaction():
                    await connection.execute(RAW_TICKS, ids, now)
                    await connection.execute(RAW_ADVANCE, ids, now + NEXT_YEAR)
    finally:
        await connection.close()
    return watch.seconds


def _raw_sqlite(url: str, batches: list[list[int]], now: datetime) -> float:
    connection = connect(database_path(url))
    text, later = _at("sqlite", now).strip("'"), _at("sqlite", now + NEXT_YEAR).strip("'")
    with Stopwatch() as watch:
        for ids in batches:
            with connection:
                connection.executemany(RAW_TICK_SQLITE, [(n, text) for n in ids])
                connection.executemany(RAW_ADVANCE_SQLITE, [(n, later) for n in ids])
    connection.close()
    return watch.seconds
