"""Election by the store: a role is led by a replica, and a replica lives as long as its session lock and its beat.

`advisory` on Postgres, `file` on SQLite: the session lock is there, and a dead process is noticed at the next look.
`lease`: there is none behind the replica's row (a pooler is in between), and its beat alone decides.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

from rota.clock import steady
from rota.contract.roles import Candidate, Fence, Roles, Seat
from rota.elector import Elector


class StoreElector(Elector):
    def __init__(self, name: str, store: Roles, *, replica_id: Callable[[], int], trusted: Callable[[], float]) -> None:
        self.name, self._store, self._replica_id, self._trusted = name, store, replica_id, trusted
        self.by_lifeline = name != "lease"

    async def look(self, roles: Sequence[str]) -> tuple[list[Seat], list[Candidate]]:
        return await self._store.look_roles()

    async def win(self, seat: Seat) -> Fence | None:
        if steady() >= self._trusted():
            return None  # without its session lock it would be dead for the others, who would win at once
        return await self._store.win_role(
            seat.role, self._replica_id(), seen=seat.term, nonce=new_nonce(), elector=self.name
        )

    async def confirm(self, fence: Fence) -> None:
        """The beat of the replica confirms all its roles at once; each look tells whether they are still its own."""

    def trusted_until(self, fence: Fence) -> float:
        return self._trusted()

    async def resign(self, fence: Fence, meant_for: int | None = None) -> None:
        await self._store.release_role(fence, meant_for=meant_for)


def new_nonce() -> int:
    """Never 0, which is nobody's."""
    return secrets.randbits(62) + 1
