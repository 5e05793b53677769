"""Caller: somebody's connection, inside of a transaction of theirs, whatever library it belongs to.

A store asks no more of it than to say a statement with its values and to give the rows back. A library is known by the
names of its modules and is never imported from here: who has not installed it does not need it.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Protocol, TypeAlias, TypeVar

from rota.errors import BadInput

T = TypeVar("T")
Record: TypeAlias = tuple[Any, ...]
_NUMBERED = re.compile(r"\?(\d*)")


class _Executes(Protocol):
    @property
    def execute(self) -> Any: ...


class _HasCursor(Protocol):
    @property
    def cursor(self) -> Any: ...


class _StandsFor(Protocol):
    """As Django's `connection` stands for that of the current thread."""

    def __getattr__(self, name: str, /) -> Any: ...


Connection: TypeAlias = _Executes | _HasCursor | _StandsFor
"""What `connection=` takes: a connection of asyncpg, psycopg, psycopg2, sqlite3, aiosqlite, apsw or Django, or a
connection or session of SQLAlchemy, sync or async. docs/transactions.md shows each."""


class Caller(ABC):
    """A connection that answers in place, in the thread that asks."""

    def __init__(self, connection: Any, database: str) -> None:
        self.connection = connection
        self.database = database
        """`postgresql`, `sqlite`, or whatever else the library calls it."""

    @abstractmethod
    def execute(self, sql: str, values: Sequence[Any]) -> list[Record]:
        """A statement with the placeholders of its database: `$1` on Postgres, `?` or `?1` on SQLite."""

    @property
    def driver(self) -> Any:
        """The connection of the driver underneath."""
        return self.connection


class Awaited(ABC):
    """A connection of a driver whose answers are awaited, one by one. All of these are of Postgres."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    @abstractmethod
    async def execute(self, sql: str, values: Sequence[Any]) -> list[Record]: ...


class Bridged(ABC):
    """A connection that is awaited as a whole, around a function that asks in place."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    @abstractmethod
    async def run(self, talk: Callable[[Caller], T]) -> T: ...


def caller_of(connection: Any) -> Caller | Awaited | Bridged | None:
    """How to talk to it; None when it is of no kind that is known."""
    for kind in type(connection).__mro__:
        known = _KINDS.get((kind.__module__.partition(".")[0], kind.__name__))
        if known is not None:
            return known(connection)
    return None


def in_place(caller: Awaited | Bridged | Caller) -> Caller:
    """For who cannot await."""
    if isinstance(caller, Caller):
        return caller
    raise BadInput(
        f"a connection of type {type_name(caller.connection)} has to be awaited: write "
        "`await job.using(connection=...).enqueue(...)`, or pass a connection that is not async"
    )


def type_name(connection: Any) -> str:
    """As its user would write it: `sqlalchemy.Engine`."""
    kind, library = type(connection), type(connection).__module__.partition(".")[0]
    return kind.__name__ if library == "builtins" else f"{library}.{kind.__name__}"


# -- placeholders ----------------------------------------------------------------------------------


def percent(sql: str) -> str:
    """For drivers of Postgres that write `%s`; ours have one value, in one place."""
    return sql.replace("%", "%%").replace("$1", "%s")


def in_order(sql: str, values: Sequence[Any]) -> tuple[str, list[Any]]:
    """For Django on SQLite, which writes `%s` too, and takes each value once for every place."""
    places: list[Any] = []

    def place(match: re.Match[str]) -> str:
        places.append(values[int(match[1]) - 1 if match[1] else len(places)])
        return "%s"

    return _NUMBERED.sub(place, sql.replace("%", "%%")), places


# -- libraries -------------------------------------------------------------------------------------


class _Asyncpg(Awaited):
    async def execute(self, sql: str, values: Sequence[Any]) -> list[Record]:
        return [tuple(row) for row in await self.connection.fetch(sql, *values)]


class _Psycopg(Caller):
    def execute(self, sql: str, values: Sequence[Any]) -> list[Record]:
        # Not by connection.cursor(): the caller may have set it up to write placeholders, and rows, another way.
        from psycopg import Cursor
        from psycopg.rows import tuple_row

        with Cursor(self.connection, row_factory=tuple_row) as cursor:
            return cursor.execute(percent(sql).encode(), values).fetchall()


class _AsyncPsycopg(Awaited):
    async def execute(self, sql: str, values: Sequence[Any]) -> list[Record]:
        from psycopg import AsyncCursor
        from psycopg.rows import tuple_row

        async with AsyncCursor(self.connection, row_factory=tuple_row) as cursor:
            await cursor.execute(percent(sql).encode(), values)
            return await cursor.fetchall()


class _Psycopg2(Caller):
    def execute(self, sql: str, values: Sequence[Any]) -> list[Record]:
        plain = import_module("psycopg2.extensions").cursor
        with self.connection.cursor(cursor_factory=plain) as cursor:
            cursor.execute(percent(sql), values)
            found: list[Record] = cursor.fetchall()
            return found


class _SQLite3(Caller):
    def execute(self, sql: str, values: Sequence[Any]) -> list[Record]:
        cursor = self.connection.cursor()
        try:
            cursor.row_factory = None
            found: list[Record] = cursor.execute(sql, tuple(values)).fetchall()
            return found
        finally:
            cursor.close()


class _Aiosqlite(Bridged):
    async def run(self, talk: Callable[[Caller], T]) -> T:
        # In the connection's own thread, and whole: a caller that is cancelled leaves nothing half-said.
        found: T = await self.connection._execute(lambda: talk(_SQLite3(self.connection._conn, "sqlite")))
        return found


class _APSW(Caller):
    def execute(self, sql: str, values: Sequence[Any]) -> list[Record]:
        found: list[Record] = self.connection.execute(sql, values).fetchall()
        return found


class _Django(Caller):
    def execute(self, sql: str, values: Sequence[Any]) -> list[Record]:
        if self.database == "sqlite":
            sql, values = in_order(sql, values)
        else:
            sql = percent(sql)
        with self.connection.cursor() as cursor:
            cursor.execute(sql, values or None)
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

    @property
    def driver(self) -> Any:
        self.connection.ensure_connection()
        return self.connection.connection


class _SQLAlchemy(Caller):
    """A connection, or that of a session. What is said through it, and not to its driver, begins its transaction."""

    def execute(self, sql: str, values: Sequence[Any]) -> list[Record]:
        if self.connection.dialect.paramstyle in ("format", "pyformat"):
            sql = percent(sql)
        result = self.connection.exec_driver_sql(sql, tuple(values))
        return [tuple(row) for row in result] if result.returns_rows else []

    @property
    def driver(self) -> Any:
        return self.connection.connection.driver_connection


class _AsyncSQLAlchemy(Bridged):
    async def run(self, talk: Callable[[Caller], T]) -> T:
        found: T = await self.connection.run_sync(lambda it: talk(_of_sqlalchemy(it)))
        return found


def _of_sqlalchemy(given: Any) -> Caller:
    connection = given if hasattr(given, "exec_driver_sql") else given.connection()
    return _SQLAlchemy(connection, connection.dialect.name)


def _of_django(connection: Any) -> Caller:
    return _Django(connection, connection.vendor)


_KINDS: dict[tuple[str, str], Callable[[Any], Caller | Awaited | Bridged]] = {
    ("asyncpg", "Connection"): _Asyncpg,
    ("asyncpg", "PoolConnectionProxy"): _Asyncpg,
    ("psycopg", "Connection"): lambda it: _Psycopg(it, "postgresql"),
    ("psycopg", "AsyncConnection"): _AsyncPsycopg,
    ("psycopg2", "connection"): lambda it: _Psycopg2(it, "postgresql"),
    ("sqlite3", "Connection"): lambda it: _SQLite3(it, "sqlite"),
    ("aiosqlite", "Connection"): _Aiosqlite,
    ("apsw", "Connection"): lambda it: _APSW(it, "sqlite"),
    ("django", "BaseDatabaseWrapper"): _of_django,
    ("django", "ConnectionProxy"): _of_django,
    ("sqlalchemy", "Connection"): _of_sqlalchemy,
    ("sqlalchemy", "Session"): _of_sqlalchemy,
    ("sqlalchemy", "scoped_session"): _of_sqlalchemy,
    ("sqlalchemy", "AsyncConnection"): _AsyncSQLAlchemy,
    ("sqlalchemy", "AsyncSession"): _AsyncSQLAlchemy,
    ("sqlalchemy", "async_scoped_session"): lambda it: _AsyncSQLAlchemy(it()),
}
