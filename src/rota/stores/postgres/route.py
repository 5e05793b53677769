"""The way to the server: straight, or through a pooler, and what that means for a connection.

A pooler in session mode gives each client a server session of its own, but takes no settings at the start: they are
set after that. In transaction mode the session changes between two transactions: nothing may be left in it, no setting,
no session lock, no prepared statement, no LISTEN; so every statement is in a transaction that sets what it needs. In
statement mode there are no transactions, and nothing can be done.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import Any

import asyncpg

from rota.errors import PooledConnection, StoreUnavailable
from rota.stores.postgres.pool import Connection, begun
from rota.stores.postgres.session import Session

STATEMENTS = 250
"""How many prepared statements a connection keeps: more than we have."""
_LOOKS, _PATIENCE = 5, 3.0
# What a process ran last; null where the server does not track that.
_OVERHEARD = """
select pg_backend_pid(), case when current_setting('track_activities')::bool then
    coalesce((select query from pg_stat_activity where pid = $1), '') end
"""
# These are the session's or its socket's; a transaction has no use for them.
_OF_SESSIONS = ("tcp_", "plan_cache_mode", "idle_session_timeout")


class Route(StrEnum):
    DIRECT = "direct"
    SESSION = "session"
    TRANSACTION = "transaction"


def local(settings: dict[str, str]) -> str:
    """These settings for the rest of a transaction, as one round trip. What a session gives each by default, it has."""
    kept = {k.removeprefix("default_"): v for k, v in settings.items() if not k.startswith(_OF_SESSIONS)}
    return "; ".join(f"set local {name} = '{value}'" for name, value in kept.items())


def lasting(settings: dict[str, str]) -> str:
    """These settings for the rest of a session, as one round trip."""
    return "; ".join(f"set {name} = '{value}'" for name, value in settings.items())


def options(route: Route, tag: str, settings: dict[str, str]) -> dict[str, Any]:
    """What the driver is told about a connection that goes this way."""
    kept = 0 if route is Route.TRANSACTION else STATEMENTS
    given = settings if route is Route.DIRECT else {}
    return {"server_settings": given | {"application_name": tag}, "statement_cache_size": kept}


async def connect(route: Route, url: str, tag: str, settings: dict[str, str], timeout: float) -> Session:
    connection: Session = await asyncpg.connect(
        url, timeout=timeout, connection_class=Session, **options(route, tag, settings)
    )
    if route is Route.SESSION:
        try:
            await connection.execute(lasting(settings), timeout=timeout)
        except BaseException:
            connection.terminate()
            raise
    return connection


class Line:
    """A connection of its own, never pooled by us; each statement is a transaction by itself."""

    def __init__(self, connection: Connection, route: Route, settings: dict[str, str]) -> None:
        self.connection = connection
        self._locally = local(settings) if route is Route.TRANSACTION else ""

    async def fetch(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
        if not self._locally:
            return await self.connection.fetch(query, *arguments)
        async with begun(self.connection, self._locally):
            return await self.connection.fetch(query, *arguments)

    async def value(self, query: str, *arguments: Any) -> Any:
        rows = await self.fetch(query, *arguments)
        return rows[0][0] if rows else None


async def find_route(url: str, tag: str, timeout: float) -> Route:
    """Try what only a direct connection does: it takes settings at the start, and it has the server's process id."""
    try:
        async with _probe(url, tag, Route.DIRECT, timeout) as connection:
            asked, pid = await _look(connection)
            if asked == "5s" and pid == connection.get_server_pid():
                return Route.DIRECT
    except asyncpg.ProtocolViolationError as error:
        if "startup parameter" not in str(error):
            raise
    async with _probe(url, tag, Route.TRANSACTION, timeout) as first:
        async with _probe(url, tag, Route.TRANSACTION, timeout) as second:
            return await pool_mode(first, second)


async def pool_mode(first: Connection, second: Connection) -> Route:
    """In session mode the first keeps its server process, and nobody else ever uses that.

    The first one speaks and falls silent; then its process must not be the second one's, and what it ran last must
    still be what the first one said. On a busy pooler the process may have gone to a third client and come back:
    the last query tells of that too.
    """
    try:
        async with asyncio.timeout(_PATIENCE):
            _, own = await _look(first)
        for n in range(_LOOKS):
            said = f"select /* {own} {n} {secrets.token_hex(4)} */ 1"
            async with asyncio.timeout(_PATIENCE):
                await first.execute(said)
                await second.execute("begin")
                row = await second.fetchrow(_OVERHEARD, own)
            assert row is not None
            try:
                async with asyncio.timeout(_PATIENCE):
                    _, now = await _look(first)
            except TimeoutError:
                # The first one has to wait for what the second one holds: they share.
                return Route.TRANSACTION
            held, last = row
            if held == own or now != own or last not in (said, None):
                return Route.TRANSACTION
            await second.execute("rollback")
    except TimeoutError as error:
        raise StoreUnavailable("the pooler has no server connection free: enlarge its pool") from error
    return Route.SESSION


async def _look(connection: Connection) -> tuple[str, int]:
    """In a transaction: else the driver's two messages may reach two servers."""
    try:
        async with connection.transaction():
            row = await connection.fetchrow("select current_setting('lock_timeout'), pg_backend_pid()")
    except asyncpg.PostgresConnectionError as error:
        if "statement pooling" in str(error):
            raise PooledConnection("statement") from error
        raise
    assert row is not None
    return row[0], row[1]


@asynccontextmanager
async def _probe(url: str, tag: str, route: Route, timeout: float) -> AsyncIterator[Connection]:
    # Without named statements: one would stay behind in a session that another client gets.
    settings: dict[str, Any] = options(route, tag, {"lock_timeout": "5s"}) | {"statement_cache_size": 0}
    connection = await asyncpg.connect(url, timeout=timeout, **settings)
    try:
        yield connection
    finally:
        connection.terminate()
