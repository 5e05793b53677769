"""Locks in the store: rows that say who holds what.

A holder that is a replica holds as long as the replica lives, without renewing; any other holds until its row expires,
and renews. A lock is a semaphore of one. `fence` grows with every acquisition of a name. Life is measured in real time:
moving the store's clock frees nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime

from rota.contract.row import Row


class LockHolder(Row, frozen=True, kw_only=True):
    """Somebody who holds a lock."""

    name: str
    token: int
    fence: int
    holder: str
    replica_id: int | None
    acquired_at: datetime
    expires_at: datetime | None
    alive: bool
    """False: its replica's session lock is free, or its time is over. It may be on its way back for a moment."""
    beat_at: datetime | None
    """Of its replica."""


class Taken(Row, frozen=True, kw_only=True):
    """How a try to take a lock ended."""

    fence: int | None
    """None: it could not be had."""
    holders: tuple[LockHolder, ...] = ()
    """Then these are in the way."""


class Locks(ABC):
    @abstractmethod
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
        """Take a lock that fewer than `limit` hold: for as long as the replica lives, or for so many seconds. A second
        call with the same token finds what the first one did. A replica that was buried takes nothing.

        `dead`: holders of whom the caller saw, half a second ago or more, that they were not alive. Those who are
        not now either, and whose replica has not beaten since, are removed. One whose time is over, whose beat is stale
        or whose replica was buried is removed anyhow.
        """

    @abstractmethod
    async def renew_locks(self, tokens: Sequence[int], seconds: float) -> frozenset[int]:
        """Hold them for so long from now, where there is no replica; those that are still held."""

    @abstractmethod
    async def locks_of(self, replica_id: int) -> frozenset[int]:
        """The tokens of what this replica holds."""

    @abstractmethod
    async def release_lock(self, token: int) -> bool:
        """Let it go; false when it was not held any more. Whoever waits is told by `hint("locks")`."""

    @abstractmethod
    async def list_locks(self, name: str | None = None) -> list[LockHolder]:
        """Who holds what, or who holds this one."""

    @abstractmethod
    async def sweep_locks(self) -> int:
        """Forget holders whose time was over a minute ago, or whose replica is gone; how many."""
