"""A stand-in for the store's roles, in memory: only what the Kubernetes elector calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rota.contract.roles import Candidate, Fence, Roles, Seat


class Records(Roles):
    """One for all electors of a test, as one database would be."""

    def __init__(self) -> None:
        self.seats: dict[str, Seat] = {}

    async def look_roles(self) -> tuple[list[Seat], list[Candidate]]:
        return list(self.seats.values()), []

    async def win_role(
        self, role: str, replica_id: int, *, seen: int, nonce: int, elector: str, force: bool = False
    ) -> Fence | None:
        seat = self.seats.get(role, Seat(role=role))
        if seat.nonce != nonce:
            if seat.term != seen or (seat.alive and not force):
                return None
            seat = Seat(
                role=role, term=seen + 1, nonce=nonce, replica_id=replica_id, holder=f"replica {replica_id}",
                elector=elector, alive=True, released=False,
            )  # fmt: skip
            self.seats[role] = seat
        return Fence(role=role, term=seat.term, nonce=seat.nonce)

    async def release_role(self, fence: Fence, *, meant_for: int | None = None) -> bool:
        seat = self.seats[fence.role]
        if (seat.term, seat.nonce) != (fence.term, fence.nonce) or seat.released:
            return False
        self.seats[fence.role] = msgspec.structs.replace(seat, alive=False, released=True, meant_for=meant_for)
        return True

    async def stand(self, replica_id: int, roles: Sequence[str]) -> None:
        raise NotImplementedError

    async def ask_step_down(self, role: str, *, meant_for: int | None = None) -> Seat:
        raise NotImplementedError

    async def check_fence(self, fence: Fence, connection: Any) -> None:
        raise NotImplementedError
