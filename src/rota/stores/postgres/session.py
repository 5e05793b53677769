"""Session: the driver's connection, with a short way for the statements that rota says again and again.

Between the driver's `fetch` and its protocol are a dozen calls of Python: they look the statement up by its text, keep
account of a timeout, and guard against two users at once. Here a statement is prepared once and then said straight
away; whoever has the connection has it alone, and sees to the time that it takes.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, TypeAlias

import asyncpg
from asyncpg.protocol.protocol import BaseProtocol

if TYPE_CHECKING:
    _Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]
else:
    _Connection = asyncpg.Connection

_ASKED = ["self", "state", "args", "portal_name", "limit", "return_extra", "timeout"]
KNOWN = list(inspect.signature(BaseProtocol.bind_execute).parameters) == _ASKED
"""Whether the driver's inside is as it was; else everything goes through its front door."""


class Session(_Connection):
    __slots__ = ("_said",)

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._said: dict[str, Any] = {}
        """Statements that are prepared; there are only so many that rota says outside of a transaction."""

    async def say(self, query: str, arguments: tuple[Any, ...]) -> tuple[list[asyncpg.Record], bytes]:
        """One statement, outside of a transaction: its rows, and what the server says that it did."""
        driver: Any = self  # with what is inside
        if not KNOWN or not driver._stmt_cache_enabled or driver._query_loggers:
            return await self._say_slowly(query, arguments)
        statement: Any = self._said.get(query)
        if statement is None:
            statement = self._said[query] = await self.prepare(query)
        try:
            rows, did, _ = await driver._protocol.bind_execute(statement._state, arguments, "", 0, True, None)
        except asyncpg.InvalidCachedStatementError:  # nothing was done: a table is not what it was
            del self._said[query]
            return await self._say_slowly(query, arguments)
        except asyncpg.OutdatedSchemaCacheError:
            self._said.clear()
            await self.reload_schema_state()
            raise
        return rows, did

    async def _say_slowly(self, query: str, arguments: tuple[Any, ...]) -> tuple[list[asyncpg.Record], bytes]:
        driver: Any = self
        rows, did, _ = await driver._execute(query, arguments, 0, None, return_status=True)
        return rows, did
