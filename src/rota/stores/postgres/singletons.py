"""Singletons on Postgres."""

from __future__ import annotations

from typing import Any

from rota.contract.roles import Fence
from rota.contract.singletons import LostState, SingletonRow
from rota.errors import LeadershipLost, NotFound
from rota.stores.postgres.base import PostgresBase


class PostgresSingletons(PostgresBase):
    async def begin_singleton(
        self, name: str, fence: Fence, *, ttl: float | None, heartbeat: float, expect_every: float | None
    ) -> SingletonRow:
        await self._fenced("begin_singleton", name, fence, ttl, heartbeat, expect_every)
        return (await self.list_singletons(name))[0]

    async def save_state(self, name: str, fence: Fence, state: str) -> None:
        await self._fenced("save_state", name, fence, state)

    async def keep_aside(self, name: str, fence: Fence, reason: str) -> None:
        await self._fenced("keep_aside", name, fence, reason)

    async def beat_singleton(self, name: str, fence: Fence) -> None:
        await self._fenced("beat_singleton", name, fence)

    async def note_execution(self, name: str, fence: Fence, error: str | None = None) -> None:
        await self._fenced("note_execution", name, fence, error)

    async def list_singletons(self, name: str | None = None) -> list[SingletonRow]:
        return [SingletonRow(**dict(row.items())) for row in await self.fetch("list_singletons", name)]

    async def lost_states(self, name: str) -> list[LostState]:
        return [LostState(**dict(row.items())) for row in await self.fetch("lost_states", name)]

    async def reset_singleton(self, name: str) -> bool:
        rows = await self.fetch("reset_singleton", name)
        if not rows:
            raise NotFound(f"there is no singleton {name!r}")
        return bool(rows[0][0])

    async def expire_states(self) -> list[str]:
        return [row["name"] for row in await self.fetch("expire_states")]

    async def _fenced(self, query: str, name: str, fence: Fence, *values: Any) -> None:
        """The term is compared in the statement that writes, and held until it is done."""
        if not await self.fetch(query, name, fence.role, fence.term, fence.nonce, *values):
            raise LeadershipLost(f"term {fence.term} of {fence.role!r} is over; nothing was written")
