"""Runs made on a caller's own connection to SQLite, by whatever library, as part of its transaction.

With apsw what goes wrong comes out as rota's errors. With the others it comes out as the library's own, which the
caller's code knows how to handle; only where rota's tables are missing does rota say so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import apsw

from rota.caller import Awaited, Bridged, Caller, Record, caller_of, in_place, type_name
from rota.errors import BadInput, SchemaMismatch, StoreUnavailable
from rota.store import Enqueued, NewRun
from rota.stores.sqlite.connection import OLDEST, translated
from rota.stores.sqlite.copies import refuse_second_copy
from rota.stores.sqlite.enqueue import enqueue
from rota.stores.sqlite.session import Session, Values

READS_OUR_TABLES = (3, 38, 0)
"""Strict tables and JSON that is always there."""


class CallersSession(Session):
    """rota's statements, said through somebody's library."""

    def __init__(self, caller: Caller) -> None:
        super().__init__(caller.driver)
        self._caller = caller

    def execute(self, sql: str, values: Values = ()) -> list[Record]:
        rows = self._caller.execute(sql, tuple(values))
        # The caller may have set its connection up to give text as bytes.
        return [tuple(v.decode() if isinstance(v, bytes) else v for v in row) for row in rows]

    def first(self, sql: str, values: Values = ()) -> Record | None:
        return next(iter(self.execute(sql, values)), None)

    def changed(self, sql: str, values: Values = ()) -> int:
        self.execute(sql, values)
        [(count,)] = self.execute("select changes()")
        return int(count)

    @property
    def begins(self) -> bool:
        """Whether the library begins transactions for its user, who then expects to commit this one."""
        autocommit = getattr(self.connection, "autocommit", -1)
        if isinstance(autocommit, bool):
            return not autocommit
        return getattr(self.connection, "isolation_level", None) is not None


async def enqueue_within(connection: Any, path: str, runs: Sequence[NewRun]) -> list[Enqueued]:
    caller = _caller(connection, path)
    if isinstance(caller, Bridged):
        return await caller.run(lambda here: _enqueue(here, path, runs))
    return _enqueue(caller, path, runs)


def enqueue_within_sync(connection: Any, path: str, runs: Sequence[NewRun]) -> list[Enqueued]:
    return _enqueue(in_place(_caller(connection, path)), path, runs)


def _caller(connection: Any, path: str) -> Caller | Bridged:
    caller = caller_of(connection)
    if caller is None:
        raise BadInput(
            f"connection must be an apsw.Connection, not {type_name(connection)}; one of sqlite3, aiosqlite, "
            "SQLAlchemy or Django will do as well, and of an engine the connection that it gives you"
        )
    if isinstance(caller, Awaited):
        raise _elsewhere("postgresql", path)
    return caller


def _elsewhere(database: str, path: str) -> BadInput:
    return BadInput(f"connection leads to {database}, but the app's url to {path}: pass one to that file")


def _enqueue(caller: Caller, path: str, runs: Sequence[NewRun]) -> list[Enqueued]:
    if caller.database != "sqlite":
        raise _elsewhere(caller.database, path)
    if isinstance(caller.connection, apsw.Connection):
        with translated(path), _untraced(caller.connection):
            session: Session = Session(caller.connection)
            _check_file(session, path)
            return _all_or_none(session, runs)
    refuse_second_copy(path, type_name(caller.connection))
    with _explained(path):
        session = CallersSession(caller)
        [(version,)] = session.execute("select sqlite_version()")
        refuse_unable(version, path)
        _check_file(session, path)
        if _numbers(version) < OLDEST:
            # Its checkpoints may overlook what others write meanwhile. The replicas, which are newer, make them.
            session.execute("pragma wal_autocheckpoint = 0")
        return _all_or_none(session, runs)


def refuse_unable(version: str, path: str) -> None:
    """The interpreter's own SQLite may be older than our tables."""
    if _numbers(version) < READS_OUR_TABLES:
        raise StoreUnavailable(
            f"this connection's SQLite {version} cannot read the tables in {path}: that takes "
            f"{'.'.join(map(str, READS_OUR_TABLES))} or later; pass an apsw.Connection, which brings its own"
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3])


def _check_file(db: Session, path: str) -> None:
    """Another file would take the runs, and nobody would look for them there."""
    [file] = [file for _, name, file in db.execute("pragma database_list") if name == "main"]
    if not (os.path.exists(file) and os.path.exists(path) and os.path.samefile(file, path)):
        raise BadInput(f"connection is open on {file or 'memory'}, not on rota's file {path}")


def _all_or_none(db: Session, runs: Sequence[NewRun]) -> list[Enqueued]:
    """As a part of the caller's transaction. If there is none: in one of its own, or in one that the caller ends."""
    if not runs:
        return []
    within = db.connection.in_transaction
    left_open = not within and isinstance(db, CallersSession) and db.begins
    db.execute("savepoint rota_enqueue" if within else "begin immediate")
    try:
        made = enqueue(db, runs)
        if not left_open:
            db.execute("release rota_enqueue" if within else "commit")
        return made
    except BaseException:
        # Also after a commit that failed: a transaction that the caller did not begin must not be left to it.
        if db.connection.in_transaction:
            for undo in ("rollback to rota_enqueue", "release rota_enqueue") if within else ("rollback",):
                db.execute(undo)
        raise


@contextmanager
def _untraced(connection: apsw.Connection) -> Iterator[None]:
    """Rows as they are, whatever the caller makes of its own."""
    trace, connection.row_trace = connection.row_trace, None
    try:
        yield
    finally:
        connection.row_trace = trace


@contextmanager
def _explained(path: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if "no such table" in str(error) or "no such column" in str(error):
            [why, *_] = str(error).splitlines()
            raise SchemaMismatch(f"{path} lacks rota's tables ({why}): run `rota migrate`") from error
        raise
