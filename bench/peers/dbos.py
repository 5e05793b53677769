"""dbos: a workflow without steps on a queue without limits, polled every second as it comes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from dbos import DBOS, DBOSClient, DBOSConfig
from sqlalchemy import create_engine

from bench.peers import driver


class Client:
    def __init__(self, client: DBOSClient, url: str) -> None:
        self._client = client
        self._engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))

    async def one(self, number: int) -> None:
        await self._client.enqueue_async({"workflow_name": "noop", "queue_name": "bench"}, number)

    async def many(self, numbers: list[int]) -> None:
        """It has no call for many, but one transaction of the caller's may hold them."""
        await asyncio.to_thread(self._in_one_transaction, numbers)

    def _in_one_transaction(self, numbers: list[int]) -> None:
        with self._engine.begin() as connection:
            for number in numbers:
                self._client.enqueue_in_transaction(
                    connection, {"workflow_name": "noop", "queue_name": "bench"}, number
                )


class Peer(driver.Peer):
    left = "select 1 from dbos.workflow_status where status in ('ENQUEUED', 'PENDING') limit 1"
    slow = True
    ticks = True

    async def setup(self) -> None:
        await asyncio.to_thread(self._launch)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        client = await asyncio.to_thread(DBOSClient, system_database_url=self.url)
        yield Client(client, self.url)
        client.destroy()

    async def work(self, started: driver.Started, ticking: bool) -> None:
        @DBOS.workflow(name="noop")
        async def noop(number: int) -> None:
            started(number)

        @DBOS.workflow(name="tick")
        async def tick(due: datetime, context: Any) -> None:
            started(due.timestamp())

        await asyncio.to_thread(self._launch)
        if ticking:
            schedule = {"schedule_name": "tick", "workflow_fn": tick, "schedule": "* * * * * *", "context": None}
            await asyncio.to_thread(DBOS.apply_schedules, [schedule])
        await asyncio.Event().wait()

    def _launch(self) -> None:
        config: DBOSConfig = {
            "name": "bench",
            "system_database_url": self.url,
            "application_version": "1",
            "executor_id": f"bench-{os.getpid()}",
            "log_level": "ERROR",
            "scheduler_polling_interval_sec": 1.0,
        }
        DBOS(config=config)
        DBOS.launch()
        DBOS.register_queue("bench")


if __name__ == "__main__":
    driver.main(Peer)
