"""A peer for the test of the benchmark's questions: a queue of one table, polled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from bench.peers import driver


class Client:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def one(self, number: int) -> None:
        await self.many([number])

    async def many(self, numbers: list[int]) -> None:
        await self._connection.execute("insert into fake select unnest($1::int[])", numbers)


class Peer(driver.Peer):
    left = "select 1 from fake limit 1"
    slow = True
    ticks = True

    async def setup(self) -> None:
        async with self.client() as client:
            await client._connection.execute("create table fake (number int)")

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        connection = await asyncpg.connect(self.url)
        yield Client(connection)
        await connection.close()

    async def work(self, started: driver.Started, ticking: bool) -> None:
        print("the peer's own chatter", flush=True)
        async with self.client() as client:
            while True:
                if ticking:
                    started(time.time() - 0.5)
                for row in await client._connection.fetch(
                    "delete from fake where ctid = any(array("
                    "select ctid from fake limit 20 for update skip locked)) returning number"
                ):
                    started(row["number"])
                await asyncio.sleep(0.01)


if __name__ == "__main__":
    driver.main(Peer)
