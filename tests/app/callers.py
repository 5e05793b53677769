"""Callers of every kind: a connection of each library, in a transaction of its own, on each store it can reach.

What is not async happens in one plain thread, as in a program that has no event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, ClassVar, TypeVar
from urllib.parse import parse_qs, urlsplit

import aiosqlite
import apsw
import asyncpg
import django
import django.db
import psycopg
import sqlalchemy
from django.apps import apps
from django.conf import settings
from django.db import transaction
from django.db.utils import ConnectionHandler
from django.utils.connection import ConnectionProxy
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from rota import Job, Run
from rota.store import Enqueued, NewRun, Store

T = TypeVar("T")
_ALIAS = "rota_test"


def path_of(url: str) -> str:
    return url.removeprefix("sqlite:///")


class Caller(ABC):
    """A connection, used from one thread, with what its user does with it."""

    stores: ClassVar[tuple[str, ...]] = ("postgres", "sqlite")
    connection: Any

    def __init__(self, url: str) -> None:
        self.url = url

    @abstractmethod
    async def open(self) -> None: ...

    @abstractmethod
    async def begin(self) -> None: ...

    @abstractmethod
    async def commit(self) -> None: ...

    @abstractmethod
    async def rollback(self) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    async def enqueue(self, job: Job[..., T], *arguments: Any, **options: Any) -> Run[T]: ...

    @abstractmethod
    async def make(self, store: Store, runs: list[NewRun]) -> list[Enqueued]: ...


class AsyncCaller(Caller):
    async def enqueue(self, job: Job[..., T], *arguments: Any, **options: Any) -> Run[T]:
        return await job.using(connection=self.connection, **options).enqueue(*arguments)

    async def make(self, store: Store, runs: list[NewRun]) -> list[Enqueued]:
        return await store.enqueue(runs, self.connection)

    async def begin(self) -> None: ...

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()

    async def close(self) -> None:
        await self.connection.close()


class PlainCaller(Caller):
    """Everything in a thread that has no event loop."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._thread = ThreadPoolExecutor(1)

    async def do(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    async def enqueue(self, job: Job[..., T], *arguments: Any, **options: Any) -> Run[T]:
        return await self.do(lambda: job.using(connection=self.connection, **options).enqueue_sync(*arguments))

    async def make(self, store: Store, runs: list[NewRun]) -> list[Enqueued]:
        return await self.do(lambda: store.enqueue_sync(runs, self.connection))

    async def open(self) -> None:
        self.connection = await self.do(self._open)

    async def begin(self) -> None:
        await self.do(self._begin)

    async def commit(self) -> None:
        await self.do(self._commit)

    async def rollback(self) -> None:
        await self.do(self._rollback)

    async def close(self) -> None:
        try:
            await self.do(self._close)
        finally:
            self._thread.shutdown()

    def autocommit(self) -> None:
        """Make no transaction of what was not begun; most libraries are like that to begin with."""

    @abstractmethod
    def _open(self) -> Any: ...

    def _begin(self) -> None: ...

    def _commit(self) -> None:
        self.connection.commit()

    def _rollback(self) -> None:
        self.connection.rollback()

    def _close(self) -> None:
        self.connection.close()


# -- drivers of Postgres ---------------------------------------------------------------------------


class Asyncpg(AsyncCaller):
    stores = ("postgres",)
    _transaction: Any

    async def open(self) -> None:
        self.connection = await asyncpg.connect(self.url)

    async def begin(self) -> None:
        self._transaction = self.connection.transaction()
        await self._transaction.start()

    async def commit(self) -> None:
        await self._transaction.commit()

    async def rollback(self) -> None:
        await self._transaction.rollback()


class AsyncpgOfAPool(Asyncpg):
    _pool: Any

    async def open(self) -> None:
        self._pool = await asyncpg.create_pool(self.url, min_size=1, max_size=1)
        self.connection = await self._pool.acquire()

    async def close(self) -> None:
        await self._pool.release(self.connection)
        await self._pool.close()


class Psycopg(PlainCaller):
    stores = ("postgres",)

    def _open(self) -> Any:
        return psycopg.connect(self.url)

    def autocommit(self) -> None:
        self.connection.autocommit = True


class AsyncPsycopg(AsyncCaller):
    stores = ("postgres",)

    async def open(self) -> None:
        self.connection = await psycopg.AsyncConnection.connect(self.url)


# -- drivers of SQLite -----------------------------------------------------------------------------


class SQLite3(PlainCaller):
    stores = ("sqlite",)

    def _open(self) -> Any:
        return sqlite3.connect(path_of(self.url))

    def autocommit(self) -> None:
        self.connection.isolation_level = None


class Aiosqlite(AsyncCaller):
    stores = ("sqlite",)

    async def open(self) -> None:
        self.connection = await aiosqlite.connect(path_of(self.url))


class APSW(PlainCaller):
    stores = ("sqlite",)

    def _open(self) -> Any:
        connection = apsw.Connection(path_of(self.url))
        connection.set_busy_timeout(5000)
        return connection

    def _begin(self) -> None:
        self.connection.execute("begin immediate")

    def _commit(self) -> None:
        self.connection.execute("commit")

    def _rollback(self) -> None:
        self.connection.execute("rollback")


# -- SQLAlchemy ------------------------------------------------------------------------------------


def _engine_url(url: str, postgres: str, sqlite: str) -> str:
    kind, _, rest = url.partition(":")
    return f"{f'sqlite+{sqlite}' if kind == 'sqlite' else f'postgresql+{postgres}'}:{rest}"


class SQLAlchemyConnection(PlainCaller):
    _engine: sqlalchemy.Engine

    def _open(self) -> Any:
        self._engine = sqlalchemy.create_engine(_engine_url(self.url, "psycopg", "pysqlite"))
        return self._made()

    def _made(self) -> Any:
        return self._engine.connect()

    def _close(self) -> None:
        self.connection.close()
        self._engine.dispose()


class SQLAlchemySession(SQLAlchemyConnection):
    def _made(self) -> Any:
        return Session(self._engine)


class SQLAlchemyScopedSession(SQLAlchemyConnection):
    def _made(self) -> Any:
        return scoped_session(sessionmaker(self._engine))


class AsyncSQLAlchemyConnection(AsyncCaller):
    _engine: Any
    _driver = "asyncpg"

    async def open(self) -> None:
        self._engine = create_async_engine(_engine_url(self.url, self._driver, "aiosqlite"))
        self.connection = await self._made()

    async def _made(self) -> Any:
        return await self._engine.connect()

    async def close(self) -> None:
        await self.connection.close()
        await self._engine.dispose()


class AsyncSQLAlchemyByPsycopg(AsyncSQLAlchemyConnection):
    stores = ("postgres",)
    _driver = "psycopg"


class AsyncSQLAlchemySession(AsyncSQLAlchemyConnection):
    async def _made(self) -> Any:
        return AsyncSession(self._engine)


class AsyncSQLAlchemyScopedSession(AsyncSQLAlchemyConnection):
    async def _made(self) -> Any:
        return async_scoped_session(async_sessionmaker(self._engine), scopefunc=asyncio.current_task)


# -- Django ----------------------------------------------------------------------------------------


class Django(PlainCaller):
    _atomic: Any

    def _open(self) -> Any:
        if not settings.configured:
            settings.configure()
        if not apps.ready:
            django.setup()
        parts = urlsplit(self.url)
        if parts.scheme == "sqlite":
            given = {"ENGINE": "django.db.backends.sqlite3", "NAME": path_of(self.url)}
        else:
            host = parse_qs(parts.query).get("host", [parts.hostname or ""])[0]
            given = {
                "ENGINE": "django.db.backends.postgresql", "NAME": parts.path.lstrip("/"), "HOST": host,
                "USER": parts.username or "", "PASSWORD": parts.password or "", "PORT": str(parts.port or ""),
            }  # fmt: skip
        made = ConnectionHandler({"default": given})["default"]
        made.alias = _ALIAS
        django.db.connections[_ALIAS] = made
        return self._made()

    def _made(self) -> Any:
        return django.db.connections[_ALIAS]

    def _begin(self) -> None:
        self._atomic = transaction.atomic(using=_ALIAS)
        self._atomic.__enter__()

    def _commit(self) -> None:
        self._atomic.__exit__(None, None, None)

    def _rollback(self) -> None:
        with contextlib.suppress(InterruptedError):
            self._atomic.__exit__(InterruptedError, InterruptedError(), None)

    def _close(self) -> None:
        django.db.connections[_ALIAS].close()
        del django.db.connections[_ALIAS]


class DjangoProxy(Django):
    """As `django.db.connection` is one."""

    def _made(self) -> Any:
        return ConnectionProxy(django.db.connections, _ALIAS)


CALLERS: list[type[Caller]] = [
    Asyncpg, AsyncpgOfAPool, Psycopg, AsyncPsycopg, SQLite3, Aiosqlite, APSW, SQLAlchemyConnection, SQLAlchemySession,
    SQLAlchemyScopedSession, AsyncSQLAlchemyConnection, AsyncSQLAlchemyByPsycopg, AsyncSQLAlchemySession,
    AsyncSQLAlchemyScopedSession, Django, DjangoProxy,
]  # fmt: skip
CASES = [(kind, store) for kind in CALLERS for store in kind.stores]


@asynccontextmanager
async def calling(kind: type[Caller], url: str) -> AsyncIterator[Caller]:
    caller = kind(url)
    await caller.open()
    try:
        yield caller
    finally:
        await caller.close()
