"""Roles on Postgres."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncpg
import msgspec

from rota.contract.roles import Candidate, Fence, Seat
from rota.errors import BadInput, LeadershipLost, NotFound, WrongState
from rota.stores.postgres import connection as pg
from rota.stores.postgres.base import PostgresBase


class PostgresRoles(PostgresBase):
    async def stand(self, replica_id: int, roles: Sequence[str]) -> None:
        await self.fetch("stand.seats", list(roles))
        await self.fetch("stand", replica_id, msgspec.json.encode(list(roles)).decode())

    async def look_roles(self) -> tuple[list[Seat], list[Candidate]]:
        rows = await self.fetch("look_roles", pg.REPLICAS, self.settings.dead_after)
        known = msgspec.json.decode(rows[0]["known"]) if rows else []
        seats = [Seat(**{name: value for name, value in row.items() if name != "known"}) for row in rows]
        return seats, [Candidate(replica_id=i, name=n, roles=tuple(roles), age=age) for i, n, roles, age in known]

    async def win_role(
        self, role: str, replica_id: int, *, seen: int, nonce: int, elector: str, force: bool = False
    ) -> Fence | None:
        judged = (pg.REPLICAS, self.settings.dead_after)
        term = await self.past_the_silent(
            self.fetch_value("win_role", role, replica_id, seen, nonce, elector, force, *judged)
        )
        return None if term is None else Fence(role=role, term=term, nonce=nonce)

    async def release_role(self, fence: Fence, *, meant_for: int | None = None) -> bool:
        return bool(await self.fetch("release_role", fence.role, fence.term, fence.nonce, meant_for))

    async def ask_step_down(self, role: str, *, meant_for: int | None = None) -> Seat:
        asked = await self.fetch("ask_step_down", role, meant_for)
        seat = next((seat for seat in (await self.look_roles())[0] if seat.role == role), None)
        if seat is None:
            raise NotFound(f"there is no role {role!r}")
        if not asked:
            raise WrongState(f"nobody leads {role!r}")
        return seat

    async def check_fence(self, fence: Fence, connection: Any) -> None:
        if not isinstance(connection, asyncpg.Connection | asyncpg.pool.PoolConnectionProxy):
            raise BadInput(f"connection must be an asyncpg connection, not {type(connection).__name__}")
        if not connection.is_in_transaction():
            raise BadInput("connection must be in a transaction: a fence holds until the transaction ends")
        if await connection.fetchval(pg.QUERIES["check_fence"], fence.role, fence.term, fence.nonce) is None:
            raise LeadershipLost(f"term {fence.term} of {fence.role!r} is over; nothing was written")
