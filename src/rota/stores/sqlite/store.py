"""The SQLite store: its life, its schema. The rest is in schedules.py, ticks.py, runs.py, finish.py and replicas.py."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from rota.stores.queries import Migration, load_migrations
from rota.stores.sqlite.connection import translated
from rota.stores.sqlite.diagnosis import SQLiteDiagnosis
from rota.stores.sqlite.finish import SQLiteFinish
from rota.stores.sqlite.locks import SQLiteLocks
from rota.stores.sqlite.nodes import SQLiteNodes
from rota.stores.sqlite.replicas import SQLiteReplicas
from rota.stores.sqlite.roles import SQLiteRoles
from rota.stores.sqlite.runs import SQLiteRuns
from rota.stores.sqlite.schedules import SQLiteSchedules
from rota.stores.sqlite.session import Session
from rota.stores.sqlite.singletons import SQLiteSingletons
from rota.stores.sqlite.ticks import SQLiteTicks
from rota.stores.sqlite.times import from_text

MIGRATIONS = load_migrations("rota.stores.sqlite")

_HAS_BOOK = "select 1 from sqlite_master where type = 'table' and name = 'migrations'"
BOOK = """
create table if not exists migrations (
    version integer primary key, name text not null, compatible_with integer not null,
    applied_at text not null default (strftime('%Y-%m-%d %H:%M:%f000', 'now'))
) strict
"""


class SQLiteStore(
    SQLiteSchedules,
    SQLiteTicks,
    SQLiteRuns,
    SQLiteFinish,
    SQLiteReplicas,
    SQLiteRoles,
    SQLiteSingletons,
    SQLiteLocks,
    SQLiteNodes,
    SQLiteDiagnosis,
):
    """rota's tables in one SQLite file."""

    async def open(self) -> None:
        if self._worker is None:
            worker = self.new_worker()
            try:
                with translated(self.path):
                    # Reads the first page: a file that is no database is noticed here.
                    await worker.run(lambda db: db.execute("select count(*) from sqlite_master"))
            except BaseException:
                worker.stop()
                raise
            self._worker = worker

    async def close(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.close()

    async def schema_version(self) -> tuple[int, int]:
        def look(db: Session) -> tuple[int, int]:
            if not db.execute(_HAS_BOOK):
                return 0, 0
            [(version, compatible_with)] = db.execute(
                "select coalesce(max(version), 0), coalesce(max(compatible_with), 0) from migrations"
            )
            return version, compatible_with

        return await self.read(look)

    async def migrate(self, applied: Callable[[str], None] | None = None) -> list[str]:
        worker = self.new_worker()
        try:
            with translated(self.path):
                return await worker.run(lambda db: [m.name for m in MIGRATIONS if _apply(db, m, applied)])
        finally:
            await worker.close()

    async def now(self) -> datetime:
        return from_text(await self.read(lambda db: db.now()))


def _apply(db: Session, migration: Migration, applied: Callable[[str], None] | None) -> bool:
    """One migration in one transaction, unless it is there. The write lock lets one process at a time do it."""
    db.execute("begin immediate")
    try:
        db.execute(BOOK)
        [(have,)] = db.execute("select coalesce(max(version), 0) from migrations")
        if migration.version > have:
            db.execute(migration.sql)
            db.execute(
                "insert into migrations (version, name, compatible_with) values (?, ?, ?)",
                (migration.version, migration.name, migration.compatible_with),
            )
        db.execute("commit")
    except BaseException:
        if db.connection.in_transaction:
            db.execute("rollback")
        raise
    if migration.version > have and applied is not None:
        applied(migration.name)
    return bool(migration.version > have)
