"""Locks on Postgres.

Taken in two statements, without a transaction around them: a look, and a write that happens only if the number of the
last acquisition is still the one that was seen. Nobody waits for anybody's row lock for longer than a statement.
"""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg
import msgspec

from rota.contract.locks import LockHolder, Taken
from rota.stores.postgres import connection as pg
from rota.stores.postgres.base import PostgresBase

_TRIES = 5
_COLUMNS = tuple(field.name for field in msgspec.structs.fields(LockHolder) if field.name != "alive")


class PostgresLocks(PostgresBase):
    async def take_lock(
        self,
        name: str,
        token: int,
        holder: str,
        *,
        limit: int,
        replica_id: int | None,
        seconds: float | None,
        dead: Sequence[LockHolder] = (),
    ) -> Taken:
        holders: tuple[LockHolder, ...] = ()
        for _ in range(_TRIES):
            rows = await self.fetch("take_lock.look", name, pg.REPLICAS, self.settings.dead_after)
            last = rows[0]["last"]
            found = [row for row in rows if row["token"] is not None]
            if any(row["token"] == token for row in found):
                return Taken(fence=next(row["fence"] for row in found if row["token"] == token))
            gone: set[int] = set()
            if dead or any(row["over"] for row in found):
                gone = {row["token"] for row in await self._remove(name, dead)}
            holders = tuple(_holder(row) for row in found if row["token"] not in gone)
            if len(holders) >= limit:
                break
            fence = await self.fetch_value("take_lock", name, last, token, holder, replica_id, seconds)
            if fence is not None:
                return Taken(fence=fence)
            # Somebody else was faster, or this replica is not one any more.
        return Taken(fence=None, holders=holders)

    async def _remove(self, name: str, dead: Sequence[LockHolder]) -> list[asyncpg.Record]:
        return await self.fetch(
            "take_lock.remove", name, pg.REPLICAS, self.settings.dead_after,
            [each.token for each in dead], [each.beat_at for each in dead],
        )  # fmt: skip

    async def renew_locks(self, tokens: Sequence[int], seconds: float) -> frozenset[int]:
        return frozenset(row["token"] for row in await self.fetch("renew_locks", list(tokens), seconds))

    async def locks_of(self, replica_id: int) -> frozenset[int]:
        return frozenset(row["token"] for row in await self.fetch("locks_of", replica_id))

    async def release_lock(self, token: int) -> bool:
        return bool(await self.fetch_value("release_lock", token))

    async def sweep_locks(self) -> int:
        return len(await self.fetch("sweep_locks"))

    async def list_locks(self, name: str | None = None) -> list[LockHolder]:
        if name is None:
            rows = await self.fetch("list_locks", pg.REPLICAS, self.settings.dead_after)
        else:
            rows = await self.fetch("take_lock.look", name, pg.REPLICAS, self.settings.dead_after)
        return sorted((_holder(row) for row in rows if row["token"] is not None), key=lambda h: (h.name, h.fence))


def _holder(row: asyncpg.Record) -> LockHolder:
    return LockHolder(**{name: row[name] for name in _COLUMNS}, alive=not (row["over"] or row["free"]))
