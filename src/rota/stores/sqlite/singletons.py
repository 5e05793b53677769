"""Singletons on SQLite."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from rota.contract.roles import Fence
from rota.contract.singletons import LostState, SingletonRow
from rota.errors import NotFound
from rota.stores.sqlite.base import SQLiteBase
from rota.stores.sqlite.roles import check_term
from rota.stores.sqlite.session import Session

T = TypeVar("T")


class SQLiteSingletons(SQLiteBase):
    async def begin_singleton(
        self, name: str, fence: Fence, *, ttl: float | None, heartbeat: float, expect_every: float | None
    ) -> SingletonRow:
        def transition(db: Session) -> SingletonRow:
            db.all("begin_singleton", (name, ttl, heartbeat, expect_every, db.now()))
            return _singletons(db, name)[0]

        return await self._fenced(fence, transition)

    async def save_state(self, name: str, fence: Fence, state: str) -> None:
        await self._fenced(fence, lambda db: db.all("save_state", (name, state, db.now())))

    async def keep_aside(self, name: str, fence: Fence, reason: str) -> None:
        await self._fenced(fence, lambda db: db.all("keep_aside", (name, reason, db.now())))

    async def beat_singleton(self, name: str, fence: Fence) -> None:
        await self._fenced(fence, lambda db: db.all("beat_singleton", (name, db.now())))

    async def note_execution(self, name: str, fence: Fence, error: str | None = None) -> None:
        await self._fenced(fence, lambda db: db.all("note_execution", (name, db.now(), error)))

    async def list_singletons(self, name: str | None = None) -> list[SingletonRow]:
        return await self.read(lambda db: _singletons(db, name))

    async def lost_states(self, name: str) -> list[LostState]:
        return await self.read(lambda db: db.structs(LostState, "lost_states", (name,)))

    async def reset_singleton(self, name: str) -> bool:
        def transition(db: Session) -> bool:
            kept = bool(db.all("keep_aside", (name, "reset by hand", db.now())))
            if not db.all("reset_singleton", (name,)):
                raise NotFound(f"there is no singleton {name!r}")
            db.all("reset_singleton.depose", (name,))
            return kept

        return await self.write(transition)

    async def expire_states(self) -> list[str]:
        return await self.write(
            lambda db: [name for (name,) in db.all("expire_states", (db.now(),))],
            unless=lambda db: None if db.value("expire_states.any", (db.now(),)) else [],
        )

    async def _fenced(self, fence: Fence, transition: Callable[[Session], T]) -> T:
        """The term is compared in the transaction that writes: nobody can come in between."""

        def checked(db: Session) -> T:
            check_term(db, fence)
            return transition(db)

        return await self.write(checked)


def _singletons(db: Session, name: str | None) -> list[SingletonRow]:
    return db.structs(SingletonRow, "list_singletons", (name, db.now()))
