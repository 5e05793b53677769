"""Hinter: tells the other replicas that there is something to do, apart from the transactions that made it so.

A NOTIFY inside each of them would make their commits wait for one another. One is under way at a time; what is hinted
meanwhile goes out with the next.
"""

from __future__ import annotations

import asyncio

from rota.errors import RotaError
from rota.store import Hint, Store


class Hinter:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._wanted: set[Hint] = set()
        self._task: asyncio.Task[None] | None = None

    def hint(self, kind: Hint) -> None:
        self._wanted.add(kind)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._send(), name="rota-hinter")

    async def _send(self) -> None:
        while self._wanted:
            kind = self._wanted.pop()
            try:
                await self._store.hint(kind)
            except RotaError:
                return  # nothing depends on a hint

    async def close(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task], timeout=1.0)
