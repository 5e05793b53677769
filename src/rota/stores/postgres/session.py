"""Session: the driver's connection, with a short way for the statements that rota says again and again.

The first array on a connection is not asked about: the driver knows few kinds of them, and to learn of another one it
asks the server a question that takes longer than claiming a hundred runs. Those that are used here are the same on
every server.

Between the driver's `fetch` and its protocol are a dozen calls of Python: they look the statement up by its text, keep
account of a timeout, and guard against two users at once. Here a statement is prepared once and then said straight
away; whoever has the connection has it alone, and sees to the time that it takes.
"""

from __future__ import annotations

import contextlib
import inspect
import socket
from typing import TYPE_CHECKING, Any, TypeAlias

import asyncpg

if TYPE_CHECKING:
    _Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]
else:
    _Connection = asyncpg.Connection

_ASKED = ["self", "state", "args", "portal_name", "limit", "return_extra", "timeout"]


def _known() -> bool:
    try:
        from asyncpg.protocol.protocol import BaseProtocol

        return list(inspect.signature(BaseProtocol.bind_execute).parameters) == _ASKED
    except (ImportError, AttributeError, TypeError, ValueError):
        return False


KNOWN = _known()
"""Whether the driver's inside is as it was; else everything goes through its front door."""

# By the numbers that Postgres has for them, in every version and database.
_ARRAYS = [
    dict.fromkeys(("basetype", "range_subtype", "attrtypoids", "attrnames"))
    | {"oid": oid, "ns": "pg_catalog", "name": f"_{name}", "kind": b"b", "elemtype": of, "elemtype_name": name,
       "elemdelim": ","}
    for name, of, oid in (
        ("bool", 16, 1000), ("int4", 23, 1007), ("int8", 20, 1016), ("float8", 701, 1022), ("timestamptz", 1184, 1185),
    )
]  # fmt: skip


def keep_alive(connection: Any) -> None:
    """Our end of what the settings ask of the server's: a peer that is silently gone is noticed within seconds."""
    there = connection._transport.get_extra_info("socket")
    if there is None or there.family not in (socket.AF_INET, socket.AF_INET6):
        return
    there.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 2), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 5000)):
        if hasattr(socket, name):
            there.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Session(_Connection):
    __slots__ = ("_said",)

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._said: dict[str, Any] = {}
        """Statements that are prepared; there are only so many that rota says outside of a transaction."""
        driver: Any = self
        keep_alive(driver)
        with contextlib.suppress(AttributeError, LookupError, TypeError):  # another driver than we know asks the server
            driver._protocol.get_settings().register_data_types(_ARRAYS)

    async def say(self, query: str, arguments: tuple[Any, ...], *, status: bool = False) -> Any:
        """One statement, outside of a transaction; its rows, or what the server says that it did."""
        driver: Any = self  # with what is inside
        if not KNOWN or not driver._stmt_cache_enabled or driver._query_loggers:
            return await self._say_slowly(query, arguments, status)
        state = self._said.get(query)
        if state is None:
            state = self._said[query] = await self._prepared(query)
        try:
            answer = await driver._protocol.bind_execute(state, arguments, "", 0, status, None)
            return answer[1].decode() if status else answer
        except (asyncpg.InvalidCachedStatementError, asyncpg.InvalidSQLStatementNameError):
            # Nothing was done: a table is not what it was, or somebody has cleared the session.
            del self._said[query]
            return await self._say_slowly(query, arguments, status)
        except asyncpg.OutdatedSchemaCacheError:
            await self.reload_schema_state()
            self._said.clear()
            raise

    async def _say_slowly(self, query: str, arguments: tuple[Any, ...], status: bool) -> Any:
        return await (self.execute if status else self.fetch)(query, *arguments)

    async def _prepared(self, query: str) -> Any:
        """Without the driver's handle, which would keep the connection alive that keeps it."""
        handle: Any = await self.prepare(query)
        handle._state.attach()
        return handle._state
