"""What the conformance tests do, one step each, on any store.

The clock is set to a fixed morning in the future, so ticks fall where the test says. Schedules tick on the hour.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import asyncpg
import msgspec

from rota.contract.places import Start, nowhere
from rota.policy import Decider
from rota.settings import Settings
from rota.store import (
    Claim,
    Decide,
    Declaration,
    Finished,
    Fired,
    NewRun,
    Outcome,
    RunFilter,
    RunRow,
    ScheduleRow,
    Store,
)
from rota.stores import open_store
from tests.harness import execute, move_clock
from tests.patience import PATIENCE

JOB = "work"
HOURLY = "0 * * * *"
START = datetime(2031, 5, 14, 12, 0, 10, tzinfo=UTC)
NOON = START.replace(second=0)

decide = Decider(late_after=60, check=lambda job, parameters: None)

_tokens = itertools.count(1)


def new_token() -> int:
    return next(_tokens)


@asynccontextmanager
async def opened(url: str, **settings: Any) -> AsyncIterator[Store]:
    """A store with its tables, as one replica has it."""
    store = open_store(Settings(url=url, **settings))
    await store.open()
    try:
        await store.migrate()
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def several(url: str, count: int) -> AsyncIterator[list[Store]]:
    """The stores of so many replicas."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(opened(url)) for _ in range(count)]


# -- time ------------------------------------------------------------------------------------------


async def set_clock(url: str, moment: datetime) -> None:
    await move_clock(url, (moment - datetime.now(UTC)).total_seconds())


async def hour(url: str, number: float) -> None:
    """The cluster's clock shows ten seconds past noon, and so many hours."""
    await set_clock(url, START + timedelta(hours=number))


def tick(number: int) -> datetime:
    """The tick of an hourly schedule, so many hours after noon."""
    return NOON + timedelta(hours=number)


async def eventually(check: Callable[[], Awaitable[bool]]) -> None:
    """For what the operating system or the server does in its own time, such as noticing a closed connection."""
    async with asyncio.timeout(PATIENCE):
        while not await check():
            await asyncio.sleep(0.01)


# -- schedules -------------------------------------------------------------------------------------


async def fire(
    store: Store,
    *,
    jobs: Sequence[str] = (JOB,),
    limit: int = 1000,
    advisory: bool = True,
    leave: Sequence[int] = (),
    deciding: Decide = decide,
    start: Start = nowhere,
    wait: float = 0.0,
) -> Fired:
    return await store.fire_due(
        deciding, jobs=jobs, limit=limit, advisory=advisory, leave=leave, start=start, wait=wait
    )


async def scheduled(store: Store, **fields: Any) -> ScheduleRow:
    """An hourly schedule, unless `fields` says otherwise, whose next tick was computed.

    Its slots outlive the hours between its ticks, during which nobody beats here.
    """
    given: dict[str, Any] = {"job_id": JOB, "cron": HOURLY, "lock_timeout_seconds": 1_000_000}
    row = await store.put_schedule(Declaration(**given | fields))
    await fire(store, jobs=[row.job_id])
    return await schedule(store, row.id)


async def schedule(store: Store, schedule_id: int) -> ScheduleRow:
    [row] = [row for row in await store.list_schedules() if row.id == schedule_id]
    return row


async def only_schedule(store: Store) -> ScheduleRow:
    [row] = await store.list_schedules()
    return row


def wanted(row: ScheduleRow) -> dict[str, Any]:
    """The fields that code, or an operator, decides on."""
    return {field.name: getattr(row, field.name) for field in msgspec.structs.fields(Declaration)}


async def ledger(store: Store, schedule_id: int | None = None) -> list[RunRow]:
    """The rows of the schedule (of all runs if None), by their tick."""
    rows = await store.find_runs(RunFilter(config_id=schedule_id, limit=10_000))
    return sorted(rows, key=lambda row: (row.due_at or row.created_at, row.id))


async def story(store: Store, schedule_id: int | None = None) -> list[tuple[str, str | None, int]]:
    """(state, reason, ticks) of each row of the ledger."""
    return [(row.state, row.reason, row.missed_count or 1) for row in await ledger(store, schedule_id)]


@asynccontextmanager
async def held(url: str, schedule_id: int) -> AsyncIterator[None]:
    """An operator holds the schedule, in the way that the documentation gives for this database."""
    if url.startswith("sqlite"):
        await execute(url, f"insert into schedule_holds (config_id) values ({schedule_id})")
        yield
        await execute(url, f"delete from schedule_holds where config_id = {schedule_id}")
        return
    psql = await asyncpg.connect(url)
    try:
        await psql.execute(f"select pg_advisory_lock(1919906913, {schedule_id})")
        yield
        await psql.execute(f"select pg_advisory_unlock(1919906913, {schedule_id})")
    finally:
        await psql.close()


# -- runs ------------------------------------------------------------------------------------------


async def enqueue(store: Store, **fields: Any) -> int:
    [made] = await store.enqueue([NewRun(**{"job_id": JOB} | fields)])
    return made.id


async def claim(
    store: Store, limit: int = 100, *, replica: int = 1, jobs: Sequence[str] = (JOB,), token: int | None = None
) -> list[Claim]:
    return (await store.claim_runs(replica, token or new_token(), list(jobs), limit)).claims


async def claim_one(store: Store, **more: Any) -> Claim:
    [claimed] = await claim(store, 1, **more)
    return claimed


async def admitted(store: Store) -> list[Claim]:
    """What can be started now, after time and limits were looked at, is claimed."""
    await store.promote_due(1000)
    await store.admit_waiting()
    return await claim(store)


async def running(store: Store, **fields: Any) -> Claim:
    """A run that was enqueued, and is held."""
    await enqueue(store, **fields)
    return await claim_one(store)


def outcome(
    claimed: Claim, state: Literal["succeeded", "failed", "cancelled", "queued"] = "succeeded", **more: Any
) -> Outcome:
    return Outcome(id=claimed.id, token=claimed.token, state=state, slot=claimed.slot, **more)


async def finish(
    store: Store,
    claimed: Claim,
    state: Literal["succeeded", "failed", "cancelled", "queued"] = "succeeded",
    **more: Any,
) -> Finished:
    return await store.finish_runs([outcome(claimed, state, **more)], closed=[])


async def get(store: Store, run_id: int) -> RunRow:
    [row] = await store.get_runs([run_id])
    return row


async def count(url: str, query: str) -> int:
    """`select count(*)` of what follows."""
    [(number,)] = await execute(url, f"select count(*) from {query}")
    assert isinstance(number, int)
    return number
