"""Roles on SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from rota.contract.roles import Candidate, Fence, Seat
from rota.errors import BadInput, LeadershipLost, NotFound, WrongState
from rota.stores.sqlite import files
from rota.stores.sqlite.base import SQLiteBase
from rota.stores.sqlite.session import Session, encode
from rota.stores.sqlite.times import optional_time, seconds_until, shifted

_HANDED_OVER, _ASKED = 2.0, 30.0


class SQLiteRoles(SQLiteBase):
    async def stand(self, replica_id: int, roles: Sequence[str]) -> None:
        def transition(db: Session) -> None:
            db.all("stand.seats", (encode(list(roles)),))
            db.all("stand", (replica_id, encode(list(roles))))

        await self.write(transition)

    async def look_roles(self) -> tuple[list[Seat], list[Candidate]]:
        return await self.read(self._look_at_roles)

    async def win_role(
        self, role: str, replica_id: int, *, seen: int, nonce: int, elector: str, force: bool = False
    ) -> Fence | None:
        def transition(db: Session) -> Fence | None:
            found = db.all("win_role.seat", (role, replica_id))
            if not found:
                return None
            [(term, stored, holder, beat_at, locked, name)] = found
            if stored == nonce and holder == replica_id:
                return Fence(role=role, term=term, nonce=nonce)
            real = db.clocks()[1]
            vacant = holder == replica_id or not self._alive(holder, beat_at, locked, real)
            if name is None or not (force or (term == seen and vacant)):
                return None
            return Fence(
                role=role, term=db.value("win_role", (role, replica_id, nonce, elector, real, name)), nonce=nonce
            )

        return await self.write(transition)

    async def release_role(self, fence: Fence, *, meant_for: int | None = None) -> bool:
        def transition(db: Session) -> bool:
            real = db.clocks()[1]
            until = None if meant_for is None else shifted(real, _HANDED_OVER)
            return bool(db.all("release_role", (fence.role, fence.term, fence.nonce, meant_for, real, until)))

        return await self.write(transition)

    async def ask_step_down(self, role: str, *, meant_for: int | None = None) -> Seat:
        def transition(db: Session) -> Seat:
            until = None if meant_for is None else shifted(db.clocks()[1], _ASKED)
            asked = db.all("ask_step_down", (role, meant_for, until))
            seat = next((seat for seat in self._look_at_roles(db)[0] if seat.role == role), None)
            if seat is None:
                raise NotFound(f"there is no role {role!r}")
            if not asked:
                raise WrongState(f"nobody leads {role!r}")
            return seat

        return await self.write(transition)

    async def check_fence(self, fence: Fence, connection: Any) -> None:
        if not isinstance(connection, apsw.Connection):
            raise BadInput(f"connection must be an apsw.Connection, not {type(connection).__name__}")
        if connection.get_autocommit():
            raise BadInput("connection must be in a transaction: a fence holds until the transaction ends")
        check_term(Session(connection), fence)

    def _look_at_roles(self, db: Session) -> tuple[list[Seat], list[Candidate]]:
        real = db.clocks()[1]
        seats = [
            Seat(
                role=role, term=term, nonce=nonce, replica_id=holder, holder=name, elector=elector,
                won_at=optional_time(won_at), released=bool(released), step_down=bool(asked), meant_for=meant_for,
                alive=self._alive(holder, beat_at, locked, real), ended=_since(beat_at or ended_at or won_at, real),
            )
            for role, term, nonce, holder, name, elector, won_at, released, ended_at, asked, meant_for, beat_at, locked
            in db.all("look_roles", (real,))
        ]  # fmt: skip
        candidates = [
            Candidate(
                replica_id=n, name=name, roles=tuple(msgspec.json.decode(roles)), age=_since(started, real) or 0.0
            )
            for n, name, roles, started, beat_at, locked in db.all("look_roles.candidates")
            if self._alive(n, beat_at, locked, real)
        ]
        return seats, candidates

    def _alive(self, holder: int | None, beat_at: str | None, locked: int | None, real: str) -> bool:
        if holder is None or beat_at is None or beat_at <= shifted(real, -self.settings.dead_after):
            return False
        return not (locked and files.is_free(files.lock_path(self.path, holder)))


def check_term(db: Session, fence: Fence) -> None:
    """In a write transaction, which nobody can come in between."""
    if not db.all("check_fence", (fence.role, fence.term, fence.nonce)):
        raise LeadershipLost(f"term {fence.term} of {fence.role!r} is over; nothing was written")


def _since(moment: str | None, real: str) -> float | None:
    return None if moment is None else -(seconds_until(moment, real) or 0.0)
