"""Locks on SQLite: one write transaction each, after a look that takes no write lock while there is nothing to have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rota.contract.locks import LockHolder, Taken
from rota.stores.sqlite import files
from rota.stores.sqlite.base import SQLiteBase
from rota.stores.sqlite.session import Record, Session, encode
from rota.stores.sqlite.times import from_text, optional_time, shifted


@dataclass(frozen=True, slots=True)
class _Seen:
    """A holder at this moment."""

    row: LockHolder
    over: bool
    """It holds nothing any more, whatever it thinks."""


class SQLiteLocks(SQLiteBase):
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
        silent = {each.token: each.beat_at for each in dead}

        def gone(seen: _Seen) -> bool:
            row = seen.row
            return seen.over or (not row.alive and row.token in silent and silent[row.token] == row.beat_at)

        def taken(found: list[_Seen]) -> Taken | None:
            for seen in found:
                if seen.row.token == token:
                    return Taken(fence=seen.row.fence)
            return None

        def hopeless(db: Session) -> Taken | None:
            found = self._look(db, db.all("take_lock.look", (name,)))
            mine = taken(found)
            if mine is not None or len(found) < limit or any(gone(seen) for seen in found):
                return mine
            return Taken(fence=None, holders=tuple(seen.row for seen in found))

        def transition(db: Session) -> Taken:
            found = self._look(db, db.all("take_lock.look", (name,)))
            if (mine := taken(found)) is not None:
                return mine
            for seen in [seen for seen in found if gone(seen)]:
                db.all("take_lock.remove", (seen.row.token,))
                found.remove(seen)
            if len(found) >= limit or (replica_id is not None and not db.value("take_lock.joined", (replica_id,))):
                return Taken(fence=None, holders=tuple(seen.row for seen in found))
            real = db.clocks()[1]
            fence: int = db.value("take_lock.fence", (name,))
            expires = None if seconds is None else shifted(real, seconds)
            db.all("take_lock", (token, name, fence, holder, replica_id, expires, real))
            return Taken(fence=fence)

        return await self.write(transition, unless=hopeless)

    def _look(self, db: Session, rows: list[Record]) -> list[_Seen]:
        real = db.clocks()[1]
        stale_before = shifted(real, -self.settings.dead_after)
        found = []
        for token, name, fence, holder, replica_id, acquired_at, expires_at, beat_at, locked in rows:
            # Buried, or silent for too long; without a replica, its time.
            over = expires_at <= real if replica_id is None else beat_at is None or beat_at < stale_before
            free = bool(locked) and not over and files.is_free(files.lock_path(self.path, replica_id))
            row = LockHolder(
                name=name, token=token, fence=fence, holder=holder, replica_id=replica_id,
                acquired_at=from_text(acquired_at), expires_at=optional_time(expires_at),
                alive=not (over or free), beat_at=optional_time(beat_at),
            )  # fmt: skip
            found.append(_Seen(row, over))
        return found

    async def renew_locks(self, tokens: Sequence[int], seconds: float) -> frozenset[int]:
        def transition(db: Session) -> frozenset[int]:
            real = db.clocks()[1]
            rows = db.all("renew_locks", (encode(list(tokens)), shifted(real, seconds), real))
            return frozenset(token for (token,) in rows)

        return await self.write(transition)

    async def locks_of(self, replica_id: int) -> frozenset[int]:
        return frozenset(token for (token,) in await self.rows("locks_of", (replica_id,)))

    async def release_lock(self, token: int) -> bool:
        def transition(db: Session) -> bool:
            rows = db.all("release_lock", (token, db.clocks()[1]))
            return any(held for (held,) in rows)

        return await self.write(transition)

    async def sweep_locks(self) -> int:
        return await self.write(
            lambda db: len(db.all("sweep_locks", (shifted(db.clocks()[1], -60.0),))),
            unless=lambda db: None if db.value("sweep_locks.any", (shifted(db.clocks()[1], -60.0),)) else 0,
        )

    async def list_locks(self, name: str | None = None) -> list[LockHolder]:
        def look(db: Session) -> list[_Seen]:
            rows = db.all("list_locks") if name is None else db.all("take_lock.look", (name,))
            return self._look(db, rows)

        return [seen.row for seen in await self.read(look)]
