"""Roles in the store: who leads, in which term.

A role is held by a replica, and a replica lives as long as its session lock is held and its beat is fresh. So a role
whose replica is dead is vacant, without a lock of its own. What decides is one row: winning it is a comparison with the
term that was seen, so of two who see a vacancy one wins.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rota.contract.row import Row


class Fence(Row, frozen=True, kw_only=True):
    """What a leader shows with every durable write. Compared for equality, never for order."""

    role: str
    term: int
    nonce: int


class Seat(Row, frozen=True, kw_only=True):
    """A role as it is now."""

    role: str
    term: int = 0
    nonce: int = 0
    replica_id: int | None = None
    holder: str | None = None
    elector: str | None = None
    alive: bool = False
    """Its holder lives: the session lock is held, the beat is fresh."""
    won_at: datetime | None = None
    released: bool = True
    """Nobody holds it because its last holder let it go, and not because it died."""
    ended: float | None = None
    """Seconds since the last holder was heard of."""
    step_down: bool = False
    """Its present term is asked to end."""
    meant_for: int | None = None
    """The living replica that is to take it next; the others wait."""


class Candidate(Row, frozen=True, kw_only=True):
    """A living replica that would take roles."""

    replica_id: int
    name: str
    roles: tuple[str, ...]
    age: float
    """Seconds since it joined."""


class Roles(ABC):
    @abstractmethod
    async def stand(self, replica_id: int, roles: Sequence[str]) -> None:
        """Make known which roles this replica would take; those that nobody ever held get a row."""

    @abstractmethod
    async def look_roles(self) -> tuple[list[Seat], list[Candidate]]:
        """All roles as they are, and who would take them."""

    @abstractmethod
    async def win_role(
        self, role: str, replica_id: int, *, seen: int, nonce: int, elector: str, force: bool = False
    ) -> Fence | None:
        """Begin the next term, if the role still has the term that was `seen` and its holder is dead or gone.

        With `force` whoever holds it is deposed: somebody else (Kubernetes) has decided. A second call with the same
        nonce finds what the first one did. Durable when it returns. None: somebody else was faster.
        """

    @abstractmethod
    async def release_role(self, fence: Fence, *, meant_for: int | None = None) -> bool:
        """End a term cleanly and tell the others; false when it had ended already."""

    @abstractmethod
    async def ask_step_down(self, role: str, *, meant_for: int | None = None) -> Seat:
        """Ask the present term to end. `NotFound` for an unknown role, `WrongState` when nobody leads."""

    @abstractmethod
    async def check_fence(self, fence: Fence, connection: Any) -> None:
        """Hold this term until the caller's transaction on `connection` ends; `LeadershipLost` if it is over.

        A transaction that holds a term keeps the next one from beginning. So one that falls silent does not last: a
        server ends it after three seconds without a statement.
        """
