"""What the parts of the SQLite store share: the thread with the connection, and the ways to run a transition."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TypeVar

from rota.errors import NotOpen
from rota.settings import Settings
from rota.store import Store
from rota.stores.sqlite.connection import connect, database_path, translated
from rota.stores.sqlite.session import Record, Session, Values
from rota.stores.sqlite.worker import Worker

T = TypeVar("T")


class SQLiteBase(Store):
    """Holds the thread; knows nothing of schedules or runs."""

    def __init__(self, settings: Settings, *, tag: str | None = None) -> None:
        self.settings = settings
        self.tag = tag or f"rota-{secrets.token_hex(8)}"
        self.path = database_path(settings.url)
        self._worker: Worker | None = None

    @property
    def worker(self) -> Worker:
        if self._worker is None:
            raise NotOpen
        return self._worker

    def new_worker(self) -> Worker:
        """A thread and a connection apart from the store's own."""
        return Worker(lambda: connect(self.path), "rota-sqlite")

    async def read(self, function: Callable[[Session], T]) -> T:
        """Outside of a transaction: each statement sees a state of its own."""
        with translated(self.path):
            return await self.worker.run(function)

    async def rows(self, name: str, values: Values = ()) -> list[Record]:
        return await self.read(lambda db: db.all(name, values))

    async def write(
        self, function: Callable[[Session], T], *, unless: Callable[[Session], T | None] | None = None
    ) -> T:
        """A transition, in one write transaction. `unless` looks first, so that an idle replica takes no lock."""
        with translated(self.path):
            return await self.worker.write(function, unless)
