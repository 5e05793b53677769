"""The seam behind every election: try to win, confirm, resign. The state machine above it is the same for all.

Whoever decides (a session lock, a lease in the store, a Kubernetes Lease, nobody but this process), the term is a row
in the store: winning begins a new one there, and what fences a leader's writes is that row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from rota.contract.roles import Candidate, Fence, Seat


class Elector(ABC):
    name: str
    pause = 0.25
    """Seconds between two looks of somebody who does not lead."""
    answer_within = 3.0
    """Seconds after which a call is given up."""
    by_lifeline = False
    """A leader's terms end with the connection that carries its session lock."""

    async def start(self) -> None:  # noqa: B027 - most have nothing to prepare
        """Called once, on the control thread, before anything else. Raises `Misconfigured` when it can never work."""

    async def stop(self) -> None:  # noqa: B027
        """Called once, after everything was resigned."""

    @abstractmethod
    async def look(self, roles: Sequence[str]) -> tuple[list[Seat], list[Candidate]]:
        """These roles as they are now, others too where they are known (they are somebody's load), and who else would
        take them (empty: not known, take what is vacant)."""

    @abstractmethod
    async def win(self, seat: Seat) -> Fence | None:
        """Try to lead the role that was seen like this; None when somebody else leads it, or when this replica could
        not believe in its term."""

    @abstractmethod
    async def confirm(self, fence: Fence) -> None:
        """Renew what is led. Called about once a second for each role that is led; `LeadershipLost` when it is over."""

    @abstractmethod
    def trusted_until(self, fence: Fence) -> float:
        """By `clock.steady()`: until when this leader may believe that nobody else leads. Counted from the sending of
        the last confirmed renewal. Compared at the moment of use."""

    @abstractmethod
    async def resign(self, fence: Fence, meant_for: int | None = None) -> None:
        """Let the role go at once, so that the next one need not wait."""
