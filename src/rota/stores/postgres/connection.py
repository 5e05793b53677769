"""Connections to Postgres: how they are made, and how their errors become rota's, at this one boundary."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self, TypeAlias, TypeVar

import asyncpg
import msgspec

from rota.address import place
from rota.errors import BadInput, RotaError, SchemaMismatch, StaleWrite, StoreUnavailable
from rota.stores.postgres.pool import Connection as Connection
from rota.stores.postgres.pool import Pool
from rota.stores.postgres.route import Line, Route, connect, lasting, local, options
from rota.stores.postgres.session import Session
from rota.stores.queries import load_queries

T = TypeVar("T")
Kinds: TypeAlias = tuple[Callable[[Sequence[Any]], Any], ...]

# The lock namespaces of pg_locks. NAMESPACE is "rota" in ASCII; an operator holds schedule 7 with
# `select pg_advisory_lock(1919906913, 7)`.
NAMESPACE = 0x726F7461
REPLICAS = NAMESPACE + 1
CARETAKER = NAMESPACE + 2
MIGRATION = NAMESPACE + 3

QUERIES = load_queries("rota.stores.postgres")

# Commits that carry promises are durable, whatever the database's default.
HANDLERS = {"lock_timeout": "5s", "synchronous_commit": "on", "tcp_user_timeout": "10000"}
POOLED = HANDLERS | {
    # Whatever the database's default: what is looked at after a lock must be what was committed by then.
    "default_transaction_isolation": "read committed",
    # A frozen process must not keep row locks: the server ends its transaction.
    "idle_in_transaction_session_timeout": "3s",
    "statement_timeout": "30s",
    # Every statement is meant to go by an index, in the order of the index: a plan made while a table was small must
    # not scan or sort it when it is not.
    "enable_seqscan": "off",
    "enable_sort": "off",
    "jit": "off",
    # Planned once per session: planning some of them takes longer than running them.
    "plan_cache_mode": "force_generic_plan",
}
# For the connection that holds the session lock; `join` adds after how much silence the server ends it.
CONTROL = POOLED | {
    "lock_timeout": "1s",
    "statement_timeout": "2s",
    "tcp_keepalives_idle": "2",
    "tcp_keepalives_interval": "1",
}

TRANSIENT = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError, asyncpg.LockNotAvailableError)
_NO_SUCH = (
    asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError, asyncpg.UndefinedColumnError,
    asyncpg.UndefinedObjectError, asyncpg.UndefinedFunctionError,
)  # fmt: skip
_UNREACHABLE = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.QueryCanceledError,
    OSError,
    TimeoutError,
)


def session_tag() -> str:
    """The `application_name` by which the sessions of one process are found, and ended when it is deposed."""
    return f"rota-{secrets.token_hex(8)}"


async def line(route: Route, url: str, tag: str, settings: dict[str, str], timeout: float) -> Line:
    """A connection of its own, never pooled."""
    with translated(url):
        return Line(await connect(route, url, tag, settings, timeout=timeout), route, settings)


def make_pool(url: str, tag: str, most: int, route: Route = Route.DIRECT) -> Pool:
    """For rota's own statements."""
    locally = local(POOLED) if route is Route.TRANSACTION else ""
    return Pool(lambda: connect(route, url, tag, POOLED, timeout=5.0), most, locally)


def make_handlers_pool(url: str, tag: str, most: int, route: Route = Route.DIRECT) -> asyncpg.Pool[asyncpg.Record]:
    """For the transactions of handlers, who keep them for as long as they like and leave what they like behind."""

    async def prepared(connection: Any) -> None:
        await connection.execute(lasting(HANDLERS))

    async def left(connection: Any) -> None:
        """The session that a reset would reach is somebody else's by now."""

    return asyncpg.create_pool(
        url, min_size=0, max_size=most, timeout=5.0, max_inactive_connection_lifetime=60.0, connection_class=Session,
        setup=prepared if route is Route.SESSION else None, reset=left if route is Route.TRANSACTION else None,
        **options(route, tag, HANDLERS),
    )  # fmt: skip


class translated:
    """Turns the driver's errors into rota's, with the way out in the sentence."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.spared: BaseException | None = None
        """An error that is none of the store's, and goes through as it is."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None or error is self.spared or isinstance(error, RotaError):
            return
        hosts, database = place(self._url)
        where = f"Postgres at {f'{hosts}/{database}'.rstrip('/') if hosts else 'the default socket'}"
        if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
            raise StoreUnavailable(f"{where} is read-only: point the url at the primary") from error
        if isinstance(error, asyncpg.InsufficientPrivilegeError):
            raise StoreUnavailable(
                f"{where} refuses: {error}; grant the role USAGE on schema rota and DML on its tables, "
                "or run `rota migrate` as their owner"
            ) from error
        if isinstance(error, _NO_SUCH):
            raise SchemaMismatch(f"{where} lacks rota's tables ({error}): run `rota migrate`") from error
        if isinstance(error, asyncpg.IntegrityConstraintViolationError | asyncpg.DataError):
            raise BadInput(f"nothing was changed: {error}") from error
        if isinstance(error, asyncpg.InvalidAuthorizationSpecificationError | asyncpg.InvalidCatalogNameError):
            raise StoreUnavailable(f"{where} does not let us in: {error}; check user, password and database") from error
        if isinstance(error, TRANSIENT):
            raise StaleWrite(f"{where}: {error}") from error
        if isinstance(error, _UNREACHABLE):
            raise StoreUnavailable(f"{where} does not answer: {type(error).__name__}: {error}") from error


@asynccontextmanager
async def transaction(pool: asyncpg.Pool[asyncpg.Record], route: Route) -> AsyncIterator[Connection]:
    """A handler's transaction. Cut off in the middle, its connection is dropped, not given back."""
    connection = await pool.acquire()
    try:
        async with connection.transaction():
            if route is Route.TRANSACTION:
                await connection.execute(local(HANDLERS))
            yield connection  # type: ignore[misc]
    except BaseException:
        if not gone(connection) and connection.is_in_transaction():
            connection.terminate()
        raise
    finally:
        await asyncio.shield(pool.release(connection))


def gone(connection: Any) -> bool:
    """Whether the connection is lost; the pool takes a lost one back by itself."""
    try:
        return bool(connection.is_closed())
    except asyncpg.InterfaceError:
        return True


async def retried(attempt: Callable[[], Awaitable[T]]) -> T:
    """Again after a deadlock or a lock timeout: every method is one whole transition, so nothing is half-done."""
    for delay in (0.01, 0.05, 0.2, None):
        try:
            return await attempt()
        except TRANSIENT:
            if delay is None:
                raise
            await asyncio.sleep(delay)
    raise AssertionError("unreachable")


def columns(rows: Any, count: int) -> list[Sequence[Any]]:
    """Rows turned into arrays for `unnest`. One of nothing but null is left empty: unnest fills it up."""
    found = list(zip(*rows, strict=True)) or [()] * count
    return [column if any(value is not None for value in column) else () for column in found]


def arrays(rows: Any, kinds: Kinds) -> list[Any]:
    """The same, each written in its way: as `numbers`, as `texts`, or by the driver."""
    return [write(column) for write, column in zip(kinds, columns(rows, len(kinds)), strict=True)]


def numbers(values: Sequence[float | None]) -> str:
    """An array of numbers, as Postgres reads it: the driver takes half a microsecond for each element of one."""
    return f"{{{msgspec.json.encode(values).decode()[1:-1]}}}"


def texts(values: Sequence[str | None]) -> str:
    """The same of texts, for which the driver takes twice as long."""
    with contextlib.suppress(TypeError):  # where one is null
        together = "\n".join(values)  # type: ignore[arg-type]
        if values and together.count("\n") == len(values) - 1:  # no line ends within one: all at once
            return "{" + _quoted(together).replace("\n", '","') + "}"
    return "{" + ",".join("null" if value is None else _quoted(value) for value in values) + "}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
