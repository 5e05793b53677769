"""procrastinate: psycopg with its C part, LISTEN on, thirty jobs at once."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from procrastinate import App, PsycopgConnector

from bench.peers import driver


class Client:
    def __init__(self, app: App) -> None:
        self._job = app.configure_task("noop")

    async def one(self, number: int) -> None:
        await self._job.defer_async(number=number)

    async def many(self, numbers: list[int]) -> None:
        await self._job.batch_defer_async(*({"number": number} for number in numbers))


class Peer(driver.Peer):
    left = "select 1 from procrastinate_jobs where status in ('todo', 'doing') limit 1"
    slow = True
    ticks = True

    def _app(self, connections: int) -> App:
        logging.getLogger("procrastinate").setLevel(logging.ERROR)
        return App(connector=PsycopgConnector(conninfo=self.url, min_size=1, max_size=connections))

    async def setup(self) -> None:
        async with self._app(1).open_async() as app:
            await app.schema_manager.apply_schema_async()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with self._app(1).open_async() as app:
            yield Client(app)

    async def work(self, started: driver.Started, ticking: bool) -> None:
        async with self._app(10).open_async() as app:

            @app.task(name="noop")
            async def noop(number: int) -> None:
                started(number)

            if ticking:

                @app.periodic(cron="* * * * * *")
                @app.task(name="tick")
                async def tick(timestamp: int) -> None:
                    started(timestamp)

            await app.run_worker_async(concurrency=30, install_signal_handlers=False)


if __name__ == "__main__":
    driver.main(Peer)
