"""APScheduler 4: asyncpg for the data store and for the event broker, no limit of runs for the task."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from apscheduler import AsyncScheduler, ConflictPolicy, current_job
from apscheduler.datastores.sqlalchemy import SQLAlchemyDataStore
from apscheduler.eventbrokers.asyncpg import AsyncpgEventBroker
from apscheduler.triggers.interval import IntervalTrigger
from sqlalchemy.ext.asyncio import create_async_engine

from bench.peers import driver


async def nothing(number: int = 0) -> None: ...


class Client:
    def __init__(self, scheduler: AsyncScheduler) -> None:
        self._scheduler = scheduler

    async def one(self, number: int) -> None:
        await self._scheduler.add_job("noop", args=[number])

    async def many(self, numbers: list[int]) -> None:
        for number in numbers:
            await self.one(number)


class Peer(driver.Peer):
    left = "select 1 from jobs limit 1"
    slow = True
    bulk = False
    ticks = True

    def _scheduler(self) -> AsyncScheduler:
        logging.getLogger("apscheduler").setLevel(logging.ERROR)
        engine = create_async_engine(self.url.replace("postgresql://", "postgresql+asyncpg://"), pool_size=10)
        return AsyncScheduler(SQLAlchemyDataStore(engine), AsyncpgEventBroker(self.url), max_concurrent_jobs=100)

    async def setup(self) -> None:
        async with self._scheduler() as scheduler:
            await scheduler.configure_task("noop", func=nothing, max_running_jobs=None)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with self._scheduler() as scheduler:
            yield Client(scheduler)

    async def work(self, started: driver.Started, ticking: bool) -> None:
        async def noop(number: int) -> None:
            started(number)

        async def tick() -> None:
            due = current_job.get().scheduled_fire_time
            assert due is not None
            started(due.timestamp())

        async with self._scheduler() as scheduler:
            await scheduler.configure_task("noop", func=noop, max_running_jobs=None)
            if ticking:
                await scheduler.configure_task("tick", func=tick, max_running_jobs=None)
                await scheduler.add_schedule(
                    "tick", IntervalTrigger(seconds=1), id="tick", conflict_policy=ConflictPolicy.do_nothing
                )
            await scheduler.run_until_stopped()


if __name__ == "__main__":
    driver.main(Peer)
