"""No election: this process leads by itself, and says so. Its terms are in the store all the same, and fence it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from rota.contract.roles import Candidate, Fence, Roles, Seat
from rota.elector import Elector
from rota.electors.store import new_nonce


class StandaloneElector(Elector):
    name = "standalone"
    pause = 1.0

    def __init__(self, store: Roles, *, replica_id: Callable[[], int]) -> None:
        self._store, self._replica_id = store, replica_id
        self._had: set[str] = set()

    async def look(self, roles: Sequence[str]) -> tuple[list[Seat], list[Candidate]]:
        seats, _ = await self._store.look_roles()
        return [self._seen(seat) for seat in seats if seat.role in roles], []

    def _seen(self, seat: Seat) -> Seat:
        """Whoever else leads is taken for gone, once: of two processes that both believe to be alone, the later one
        stays, and they do not fight for ever."""
        if seat.replica_id == self._replica_id() or seat.role in self._had:
            return seat
        return msgspec.structs.replace(seat, alive=False, released=True)

    async def win(self, seat: Seat) -> Fence | None:
        fence = await self._store.win_role(
            seat.role, self._replica_id(), seen=seat.term, nonce=new_nonce(), elector=self.name, force=True
        )
        if fence is not None:
            self._had.add(seat.role)
        return fence

    async def confirm(self, fence: Fence) -> None:
        """There is nobody to ask."""

    def trusted_until(self, fence: Fence) -> float:
        return math.inf

    async def resign(self, fence: Fence, meant_for: int | None = None) -> None:
        await self._store.release_role(fence, meant_for=meant_for)
