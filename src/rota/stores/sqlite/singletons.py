"""Singletons on SQLite."""

from __future__ import annotations

from rota.contract.roles import Fence
from rota.contract.singletons import LostState, SingletonRow
from rota.stores.sqlite.base import SQLiteBase


class SQLiteSingletons(SQLiteBase):
    async def begin_singleton(
        self, name: str, fence: Fence, *, ttl: float | None, heartbeat: float, expect_every: float | None
    ) -> SingletonRow:
        raise NotImplementedError

    async def save_state(self, name: str, fence: Fence, state: str) -> None:
        raise NotImplementedError

    async def keep_aside(self, name: str, fence: Fence, reason: str) -> None:
        raise NotImplementedError

    async def beat_singleton(self, name: str, fence: Fence) -> None:
        raise NotImplementedError

    async def note_execution(self, name: str, fence: Fence, error: str | None) -> None:
        raise NotImplementedError

    async def list_singletons(self, name: str | None = None) -> list[SingletonRow]:
        raise NotImplementedError

    async def lost_states(self, name: str) -> list[LostState]:
        raise NotImplementedError

    async def reset_singleton(self, name: str) -> bool:
        raise NotImplementedError

    async def expire_states(self) -> list[str]:
        raise NotImplementedError
