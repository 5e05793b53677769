"""Connections for rota's own statements, handed from one to the next as they are.

The driver's pool takes longer in Python than many a statement takes on the server, and resets the session in a round
trip of its own after each. rota's statements leave nothing behind in a session (`set local` at most), so there is
nothing to reset. Handlers, who may leave anything, have the driver's pool.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple, TypeAlias

import asyncpg

from rota.clock import steady
from rota.stores.postgres.session import Session

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

_IDLE_SECONDS = 60.0
_SILENT_SECONDS = 30.0
_TEND_EVERY = 5.0
_GRACE = 2.0


class Pool:
    """At most so many connections; the one used last is used next, and those not needed for a minute are closed."""

    def __init__(self, connect: Callable[[], Awaitable[Session]], most: int, locally: str = "") -> None:
        self._connect, self._most = connect, most
        # Set at the beginning of every transaction, and then everything is in one: the session is not ours.
        self._locally = locally
        self._places = _Places(most)
        self._idle: dict[Session, _Seen | None] = {}
        self._in_use: dict[Session, _Seen | None] = {}
        self._tending: asyncio.TimerHandle | None = None
        self._closed = False

    async def fetch(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
        """One statement, by itself a transaction; its rows."""
        rows: list[asyncpg.Record] = await self._say(query, arguments, False)
        return rows

    async def execute(self, query: str, *arguments: Any) -> str:
        """One statement, by itself a transaction; what the server says that it did."""
        did: str = await self._say(query, arguments, True)
        return did

    async def _say(self, query: str, arguments: tuple[Any, ...], status: bool) -> Any:
        if self._locally:
            async with self._use_locally() as connection:
                return await connection.say(query, arguments, status=status)
        connection = self.at_hand() or await self.take()
        try:
            answer = await connection.say(query, arguments, status=status)
        except BaseException as error:
            self.give_back(connection, error)
            raise
        self.give_back(connection)
        return answer

    def use(self) -> AbstractAsyncContextManager[Session]:
        """A connection for the time of the block. One that was cut off in the middle of something is not used again."""
        return self._use_locally() if self._locally else _Lent(self)

    @asynccontextmanager
    async def _use_locally(self) -> AsyncIterator[Session]:
        async with _Lent(self) as connection, begun(connection, self._locally):
            yield connection

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Connection]:
        """A transaction: the block's end commits, an exception rolls back."""
        async with self.use() as connection:
            if connection.is_in_transaction():
                yield connection
            else:
                async with transaction(connection):
                    yield connection

    async def close(self) -> None:
        """Let those in use come to an end, for a moment; then cut them off. Say good-bye to the others."""
        self._closed = True
        if self._tending is not None:
            self._tending.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE):
                for _ in range(self._most):
                    await self._places.acquire()
        for connection in list(self._in_use):
            connection.terminate()
        idle, self._idle = self._idle, {}
        await asyncio.gather(*(_part(connection) for connection in idle))

    def at_hand(self) -> Session | None:
        """The one that was used last, where that needs no waiting: nearly always."""
        if self._idle and self._places.take_now():
            connection, _ = self._idle.popitem()
            if not connection.is_closed():
                self._in_use[connection] = None
                return connection
            self._places.release()
        return None

    async def take(self) -> Session:
        await self._places.acquire()
        try:
            connection = None
            while self._idle and (connection is None or connection.is_closed()):
                connection, _ = self._idle.popitem()
            if connection is None or connection.is_closed():
                connection = await self._connect()
        except BaseException:
            self._places.release()
            raise
        self._in_use[connection] = None
        if self._tending is None:
            self._tending = asyncio.get_running_loop().call_later(_TEND_EVERY, self._tend)
        return connection

    def give_back(self, connection: Session, error: BaseException | None = None) -> None:
        """With the error that its use ended in: where that came from without, something may be under way still."""
        self._in_use.pop(connection, None)
        self._places.release()
        if connection.is_closed():
            return
        cut_off = error is not None and (not isinstance(error, Exception) or isinstance(error, TimeoutError))
        if cut_off or self._closed or connection.is_in_transaction():
            connection.terminate()
            return
        self._idle[connection] = None

    def _tend(self) -> None:
        """Close what nobody has needed for a minute, and what nobody answers on. A look every few seconds: a timer for
        each statement takes longer than all else that is done for it here."""
        now, silent = steady(), False
        for connections, most in ((self._idle, _IDLE_SECONDS), (self._in_use, _SILENT_SECONDS)):
            for connection, seen in connections.items():
                statements = _statements(connection)
                if seen is None or seen.statements != statements:
                    connections[connection] = _Seen(statements, now)
                elif seen.since <= now - most:
                    connection.terminate()
                    silent = silent or connections is self._in_use
        if silent:  # what went to the same place may be gone too, and would be waited for as long, one after the other
            for connection in self._idle:
                connection.terminate()
        self._idle = {connection: seen for connection, seen in self._idle.items() if not connection.is_closed()}
        again = bool(self._idle or self._in_use)
        self._tending = asyncio.get_running_loop().call_later(_TEND_EVERY, self._tend) if again else None


class _Seen(NamedTuple):
    """A connection has had so many statements, and no other since then."""

    statements: int
    since: float


def _statements(connection: Any) -> int:
    """How many it has had."""
    return 0 if connection.is_closed() else int(connection._protocol.queries_count)


class _Places(asyncio.Semaphore):
    """A semaphore of which one can be had without a coroutine, when there is one."""

    def take_now(self) -> bool:
        """Whether there was one, and nobody is waiting for it."""
        if self._value <= 0 or self._waiters:
            return False
        self._value -= 1
        return True

    def release(self) -> None:
        if self._waiters:
            super().release()
        else:
            self._value += 1


class _Lent:
    """No generator: the event loop keeps account of those, and that alone takes longer than all of this."""

    __slots__ = ("_connection", "_pool")

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._connection: Session | None = None

    async def __aenter__(self) -> Session:
        self._connection = self._pool.at_hand() or await self._pool.take()
        return self._connection

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        assert self._connection is not None
        self._pool.give_back(self._connection, error)


@asynccontextmanager
async def transaction(connection: Connection) -> AsyncIterator[None]:
    """Where it is cancelled, the server is left to roll back: the network may be why, and would be waited for again."""
    own = connection.transaction()
    await own.start()
    try:
        yield
    except Exception:
        await own.rollback()
        raise
    except BaseException:
        connection.terminate()
        raise
    await own.commit()


@asynccontextmanager
async def begun(connection: Connection, locally: str) -> AsyncIterator[None]:
    """A transaction with settings of its own."""
    async with transaction(connection):
        await connection.execute(locally)
        yield


async def _part(connection: Connection) -> None:
    try:
        await connection.close(timeout=_GRACE)
    except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()
