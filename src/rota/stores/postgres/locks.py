"""Locks on Postgres."""

from __future__ import annotations

from collections.abc import Sequence

from rota.contract.locks import LockHolder, Taken
from rota.stores.postgres.base import PostgresBase


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
        raise NotImplementedError

    async def renew_lock(self, token: int, seconds: float) -> bool:
        raise NotImplementedError

    async def release_lock(self, token: int) -> bool:
        raise NotImplementedError

    async def list_locks(self, name: str | None = None) -> list[LockHolder]:
        raise NotImplementedError
