"""pgqueuer: asyncpg and uvloop, the tables as its own `install` and autovacuum settings make them, large batches."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.models import Job, Schedule
from pgqueuer.queries import Queries

from bench.peers import driver

BATCH = 1000


class Client:
    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    async def one(self, number: int) -> None:
        await self._queries.enqueue("noop", b"%d" % number)

    async def many(self, numbers: list[int]) -> None:
        count = len(numbers)
        await self._queries.enqueue(["noop"] * count, [b"%d" % number for number in numbers], [0] * count)


class Peer(driver.Peer):
    left = "select 1 from pgqueuer limit 1"
    ticks = True

    async def setup(self) -> None:
        connection = await asyncpg.connect(self.url)
        queries = Queries.from_asyncpg_connection(connection)
        await queries.install()
        await queries.optimize_autovacuum()
        await connection.close()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        connection = await asyncpg.connect(self.url)
        yield Client(Queries.from_asyncpg_connection(connection))
        await connection.close()

    async def work(self, started: driver.Started, ticking: bool) -> None:
        async with asyncpg.create_pool(self.url, min_size=2, max_size=4) as pool:
            service = PgQueuer.from_asyncpg_pool(pool)

            @service.entrypoint("noop")
            async def noop(job: Job) -> None:
                started(int(job.payload or b"0"))

            if not ticking:
                await service.qm.run(batch_size=BATCH)
                return

            @service.schedule("tick", "* * * * * *")
            async def tick(schedule: Schedule) -> None:
                # The row already has the next instant; this one was the first whole second after the last run. Not the
                # second that has just begun: a tick that is a second late would pass for one in time.
                last = schedule.last_run.timestamp() if schedule.last_run else time.time() - 1
                started(math.floor(last) + 1)

            await service.run(batch_size=BATCH)


if __name__ == "__main__":
    driver.main(Peer)
