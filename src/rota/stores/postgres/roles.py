"""Roles on Postgres."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rota.contract.roles import Candidate, Fence, Seat
from rota.stores.postgres.base import PostgresBase


class PostgresRoles(PostgresBase):
    async def stand(self, replica_id: int, roles: Sequence[str]) -> None:
        raise NotImplementedError

    async def look_roles(self) -> tuple[list[Seat], list[Candidate]]:
        raise NotImplementedError

    async def win_role(
        self, role: str, replica_id: int, *, seen: int, nonce: int, elector: str, force: bool = False
    ) -> Fence | None:
        raise NotImplementedError

    async def release_role(self, fence: Fence, *, meant_for: int | None = None) -> bool:
        raise NotImplementedError

    async def ask_step_down(self, role: str, *, meant_for: int | None = None) -> Seat:
        raise NotImplementedError

    async def check_fence(self, fence: Fence, connection: Any) -> None:
        raise NotImplementedError
