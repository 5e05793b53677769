"""What the parts of the Postgres store share: the pool, and one way to run a transition."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import asyncpg

from rota.errors import NotOpen, RotaError
from rota.settings import Settings
from rota.store import Store
from rota.stores.postgres import connection as pg
from rota.stores.postgres.pool import Pool
from rota.stores.postgres.route import Route

T = TypeVar("T")

_HELD_UP = 0.5
"""Seconds after which one that waits for a role's row asks who is in the way."""


class PostgresBase(Store):
    """Holds the pool; knows nothing of schedules or runs."""

    def __init__(self, settings: Settings, *, tag: str | None = None, pool_size: int = 8) -> None:
        self.settings = settings
        self.tag = tag or pg.session_tag()
        self._pool_size = pool_size
        self.route = Route.DIRECT
        """The way that the url goes; known once the store is open."""
        self._pool: Pool | None = None
        # Nothing else may have to wait for a handler's transaction.
        self._handlers_pool: asyncpg.Pool[asyncpg.Record] | None = None

    @property
    def pool(self) -> Pool:
        if self._pool is None:
            raise NotOpen
        return self._pool

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[pg.Connection]:
        """One transaction, with errors translated."""
        with pg.translated(self.settings.url):
            async with self.pool.begin() as connection:
                yield connection

    async def fetch(self, name: str, *arguments: Any, on: pg.Connection | None = None) -> list[asyncpg.Record]:
        """One named statement, by itself a transaction unless `on` is in one."""
        with pg.translated(self.settings.url):
            if on is not None:
                return await on.fetch(pg.QUERIES[name], *arguments)
            return await pg.retried(lambda: self.pool.fetch(pg.QUERIES[name], *arguments))

    async def fetch_value(self, name: str, *arguments: Any, on: pg.Connection | None = None) -> Any:
        rows = await self.fetch(name, *arguments, on=on)
        return rows[0][0] if rows else None

    async def whole(self, transition: Callable[[pg.Connection], Awaitable[T]]) -> T:
        """A transition of several statements, tried again as a whole after a deadlock."""

        async def attempt() -> T:
            async with self.pool.begin() as connection:
                return await transition(connection)

        with pg.translated(self.settings.url):
            return await pg.retried(attempt)

    async def past_the_silent(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something that may have to wait for a role's row, and end those who hold it and say nothing any more."""
        doing = asyncio.create_task(work)
        try:
            while not (await asyncio.wait({doing}, timeout=_HELD_UP))[0]:
                with suppress(RotaError):  # it may help, and need not
                    await self.fetch("win_role.end_silent")
        except BaseException:
            doing.cancel()
            await asyncio.gather(doing, return_exceptions=True)
            raise
        return doing.result()
