"""Clock: the time that a whole cluster goes by, held still and moved by a test.

The store's clock decides what is due, so moving that one moves it for every replica at once. Signs of life are measured
in real time: moving the clock kills nobody.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from rota.errors import BadInput
from rota.schema import check_schema
from rota.settings import Settings
from rota.stores import open_store

_SHOWN = "%Y-%m-%d %H:%M:%S.%f"


class Clock:
    """The clock of one database. From the first move on it stands still between moves.

    It stays as it was left: for a database that is thrown away after the test. `prepared`: the tables are there.
    """

    def __init__(self, url: str, *, prepared: bool = False) -> None:
        self._settings = Settings(url=url)
        self._prepared = prepared

    def __repr__(self) -> str:
        return "<Clock of a test>"

    async def now(self) -> datetime:
        """What every replica takes for the time, in UTC."""
        if self._settings.url.startswith("sqlite:"):
            [(text,)] = await self._execute("select now from moment")
            return datetime.strptime(str(text), _SHOWN).replace(tzinfo=UTC)
        [(moment,)] = await self._execute("select rota.rota_now()")
        assert isinstance(moment, datetime)
        return moment.astimezone(UTC)

    async def travel_to(self, moment: datetime) -> datetime:
        """Make it this moment, for everybody. In UTC it is what is returned."""
        if moment.tzinfo is None:
            raise BadInput(
                f"{moment} has no time zone; use an aware datetime such as datetime(2027, 3, 28, tzinfo=UTC)"
            )
        moment = moment.astimezone(UTC)
        shown = moment.strftime(_SHOWN)
        if self._settings.url.startswith("sqlite:"):
            # Text that sorts as time; years have four digits, also on systems whose strftime gives fewer.
            await self._execute(
                "begin immediate; drop view moment; create view moment as "
                f"select '{shown:0>26}' as now, strftime('%Y-%m-%d %H:%M:%f000', 'now') as real; commit"
            )
        else:
            await self._execute(
                "create or replace function rota.rota_now() returns timestamptz language sql volatile parallel safe "
                f"as $$ select timestamptz '{shown:0>26}+00' $$"
            )
        return moment

    async def advance(
        self,
        by: timedelta | None = None,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
    ) -> datetime:
        """Let so much time pass at once: `clock.advance(hours=3)`. The new time."""
        return await self.travel_to(await self.now() + duration(by, days, hours, minutes, seconds))

    async def _execute(self, sql: str) -> list[tuple[object, ...]]:
        if not self._prepared:
            await _prepare(self._settings)
            self._prepared = True
        return await execute(self._settings.url, sql)


def in_utc(moment: datetime) -> datetime:
    """The same moment; a time without a zone is refused."""
    if moment.tzinfo is None:
        raise BadInput(f"{moment} has no time zone; use an aware datetime, such as datetime(2027, 3, 28, tzinfo=UTC)")
    return moment.astimezone(UTC)


def duration(by: timedelta | None, days: float, hours: float, minutes: float, seconds: float) -> timedelta:
    """What the arguments of an `advance` come to."""
    total = (by or timedelta()) + timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    if total < timedelta():
        raise BadInput(f"time does not go back: {total} is negative; travel_to() sets an earlier time")
    return total


async def _prepare(settings: Settings) -> None:
    """Whoever comes first makes the tables, a clock too."""
    store = open_store(settings)
    await store.open()
    try:
        await check_schema(store, migrate=True)
    finally:
        await store.close()


async def execute(url: str, sql: str, *values: object) -> list[tuple[object, ...]]:
    """A statement on a connection of its own, as somebody outside of all replicas would type it."""
    if url.startswith("sqlite:"):
        return await asyncio.to_thread(_execute_sqlite, url, sql, values)
    import asyncpg

    connection: Any = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await connection.fetch(sql, *values)]
    finally:
        await connection.close()


def _execute_sqlite(url: str, sql: str, values: tuple[object, ...]) -> list[tuple[object, ...]]:
    from rota.stores.sqlite.connection import connect, database_path

    connection = connect(database_path(url))
    try:
        return list(connection.execute(sql, values))
    finally:
        connection.close()
