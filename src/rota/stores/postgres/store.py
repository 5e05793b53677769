"""The Postgres store: its life, its schema. The rest is in the files named for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any

import asyncpg

from rota.errors import StoreUnavailable
from rota.stores.postgres import connection as pg
from rota.stores.postgres.diagnosis import PostgresDiagnosis
from rota.stores.postgres.locks import PostgresLocks
from rota.stores.postgres.nodes import PostgresNodes
from rota.stores.postgres.pool import begun
from rota.stores.postgres.replicas import PostgresReplicas
from rota.stores.postgres.roles import PostgresRoles
from rota.stores.postgres.route import Route, connect, find_route
from rota.stores.postgres.runs import PostgresRuns
from rota.stores.postgres.schedules import PostgresSchedules
from rota.stores.postgres.singletons import PostgresSingletons
from rota.stores.postgres.ticks import PostgresTicks
from rota.stores.queries import load_migrations

_TRANSACTIONS = 16
# Through a pooler only a transaction can keep the lock; where there is a session, it has the lock already. Then short
# lock waits, so that a migration queued behind a long transaction does not stop everybody else.
ONE_AT_A_TIME = f"""
set local transaction_isolation = 'read committed'; set local lock_timeout = 0;
select pg_advisory_xact_lock({pg.MIGRATION}, 0); set local lock_timeout = '5s'
"""

MIGRATIONS = load_migrations("rota.stores.postgres")

BOOK = """
create schema if not exists rota;
create table if not exists rota.migrations (
    version integer primary key, name text not null, compatible_with integer not null,
    applied_at timestamptz not null default clock_timestamp()
)
"""


class PostgresStore(
    PostgresSchedules,
    PostgresTicks,
    PostgresRuns,
    PostgresReplicas,
    PostgresRoles,
    PostgresSingletons,
    PostgresLocks,
    PostgresNodes,
    PostgresDiagnosis,
):
    """rota's tables in the schema `rota` of a Postgres database."""

    async def open(self) -> None:
        url, tag = self.settings.url, self.tag
        with pg.translated(url):
            self.route = await find_route(url, tag, timeout=5.0)
            self._pool = pg.make_pool(url, tag, self._pool_size, self.route)
            self._handlers_pool = await pg.make_handlers_pool(url, tag, _TRANSACTIONS, self.route)
            number = await self._value("select current_setting('server_version_num')::integer")
            if number < 140000:
                await self.close()
                raise StoreUnavailable(f"Postgres {number // 10000} is too old: rota needs 14 or later")

    async def close(self) -> None:
        pool, handlers_pool = self._pool, self._handlers_pool
        self._pool = self._handlers_pool = None
        if pool is not None:
            await pool.close()
        if handlers_pool is not None:
            try:
                async with asyncio.timeout(2.0):
                    await handlers_pool.close()
            except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                handlers_pool.terminate()

    async def schema_version(self) -> tuple[int, int]:
        with pg.translated(self.settings.url):
            if await self._value("select to_regclass('rota.migrations')") is None:
                return 0, 0
            [row] = await self.pool.fetch(
                "select coalesce(max(version), 0), coalesce(max(compatible_with), 0) from rota.migrations"
            )
        return row[0], row[1]

    async def migrate(self, applied: Callable[[str], None] | None = None) -> list[str]:
        done = []
        with pg.translated(self.settings.url):
            connection = await connect(self.route, self.settings.url, self.tag, {"lock_timeout": "5s"}, timeout=5.0)
            try:
                if self.route is not Route.TRANSACTION:
                    await connection.execute(f"set lock_timeout = 0; select pg_advisory_lock({pg.MIGRATION}, 0)")
                for migration in MIGRATIONS:
                    async with begun(connection, ONE_AT_A_TIME):
                        if await connection.fetchval("select to_regclass('rota.migrations')") is None:
                            await connection.execute(BOOK)
                        have = await connection.fetchval("select coalesce(max(version), 0) from rota.migrations")
                        if migration.version <= have:
                            continue
                        await connection.execute(migration.sql)
                        await connection.execute(
                            "insert into rota.migrations (version, name, compatible_with) values ($1, $2, $3)",
                            migration.version, migration.name, migration.compatible_with,
                        )  # fmt: skip
                    done.append(migration.name)
                    if applied is not None:
                        applied(migration.name)
            finally:
                connection.terminate()
        return done

    async def now(self) -> datetime:
        with pg.translated(self.settings.url):
            value: datetime = await self._value("select rota.rota_now()")
        return value

    async def _value(self, query: str) -> Any:
        return (await self.pool.fetch(query))[0][0]
