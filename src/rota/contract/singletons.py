"""Singletons in the store: state that outlives its replica, and what is known of the body's life.

Every write shows the fence of the singleton's role; a stale one is refused with `LeadershipLost` in its transaction.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import datetime

from rota.contract.roles import Fence
from rota.contract.row import Row


class SingletonRow(Row, frozen=True, kw_only=True):
    """A singleton as the store knows it."""

    name: str
    state: str | None
    """JSON; None: never saved, reset, or expired."""
    saved_at: datetime | None
    expires_at: datetime | None
    ttl: float | None
    heartbeat: float
    expect_every: float | None
    created_at: datetime
    started_at: datetime | None
    beat_at: datetime | None
    executed_at: datetime | None
    run_count: int
    failure_count: int
    last_error: str | None
    healthy: bool
    """Nobody has to worry: it beats, and executes as often as expected. What does not run is not healthy."""


class LostState(Row, frozen=True, kw_only=True):
    """State that could not be read, kept aside."""

    name: str
    state: str
    reason: str
    at: datetime


def role_of(name: str) -> str:
    """The role that whoever runs this singleton leads."""
    return f"singleton:{name}"


def is_singleton(role: str) -> bool:
    return role.startswith("singleton:")


class Singletons(ABC):
    @abstractmethod
    async def begin_singleton(
        self, name: str, fence: Fence, *, ttl: float | None, heartbeat: float, expect_every: float | None
    ) -> SingletonRow:
        """A body starts under this term: noted, and what was saved (and has not expired) is returned."""

    @abstractmethod
    async def save_state(self, name: str, fence: Fence, state: str) -> None:
        """Store the state; with a time-to-live it expires that long from now."""

    @abstractmethod
    async def keep_aside(self, name: str, fence: Fence, reason: str) -> None:
        """The stored state cannot be read: move it to where people find it."""

    @abstractmethod
    async def beat_singleton(self, name: str, fence: Fence) -> None: ...

    @abstractmethod
    async def note_execution(self, name: str, fence: Fence, error: str | None = None) -> None:
        """The body did something, or failed at it: time and count, and the error if there was one."""

    @abstractmethod
    async def list_singletons(self, name: str | None = None) -> list[SingletonRow]: ...

    @abstractmethod
    async def lost_states(self, name: str) -> list[LostState]:
        """Newest first."""

    @abstractmethod
    async def reset_singleton(self, name: str) -> bool:
        """Keep the state aside and forget it; false when there was none. The term ends at once, so that a body that
        runs cannot save what it still remembers. `NotFound`."""

    @abstractmethod
    async def expire_states(self) -> list[str]:
        """Forget state whose time is over; the names."""
