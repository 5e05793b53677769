"""Hold: one acquisition of a lock, and for how long this process may act on it.

Whether it is held is compared at the moment of use. Once it was not, it never is again: somebody else may have had it
in between. Losing it cancels the block that it protects, and the block's end raises `LockLost`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from rota.clock import steady
from rota.errors import LockLost
from rota.trust import Trust


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be had."""

    name: str
    limit: int = 1
    """How many may hold it at once."""


@dataclass(frozen=True, slots=True)
class Standing:
    """As whom a lock is held: a replica, for a period of its trust; or nobody, for a time."""

    replica_id: int | None = None
    seconds: float | None = None
    trust: Trust | None = None
    period: int = 0


class Hold:
    """What `async with app.lock(...) as lock` gives."""

    def __init__(
        self,
        name: str,
        token: int,
        fence: int,
        standing: Standing,
        until: float,
        let_go: Callable[[Hold], Awaitable[None]],
    ) -> None:
        self.name = name
        """As the store and `rota locks` spell it."""
        self.fence = fence
        """Grows with every acquisition of the name, in the whole cluster."""
        self.token = token
        self.standing, self.let_go = standing, let_go
        self.renewed_until = until
        self.task = asyncio.current_task()
        self.lost: str | None = None
        """Why it is not held any more, though nobody let it go."""
        self.ended = False
        self.in_block = False
        self._cancels = 0
        self._cancelled_at = 0.0

    @property
    def held(self) -> bool:
        """Whether it is ours at this moment. Ask right before each step that must not overlap with another holder's."""
        return not self.ended and self.lost is None and steady() < self.sure_until

    @property
    def sure_until(self) -> float:
        """Until when nobody else can have it, by this machine's steady clock."""
        trust = self.standing.trust
        if trust is None:
            return self.renewed_until
        return trust.until if trust.period == self.standing.period else 0.0

    def check(self) -> None:
        """Raise `LockLost` if it is not held any more."""
        if not self.held:
            raise self.loss()

    def loss(self) -> LockLost:
        """The error that says that, and why, it is not held any more."""
        why = self.lost or ("it was released" if self.ended else "its time is over")
        return LockLost(
            f"lock {self.name!r} (fence {self.fence}) is not held any more: {why}; "
            "another process may have it, so what it protects must stop here"
        )

    # -- for its keeper ----------------------------------------------------------------------------

    def cancel(self) -> None:
        """Cancel the block. Again, some time later, if it went on."""
        if self.in_block and self.task is not None and not self.task.done():
            self._cancels += 1
            self._cancelled_at = steady()
            self.task.cancel(f"lock {self.name!r} was lost")

    @property
    def cancelled_for(self) -> float:
        """Seconds since the block was last told to stop."""
        return steady() - self._cancelled_at

    def leave_block(self) -> bool:
        """At the block's end: takes back the cancellations made here; whether there were no others."""
        self.in_block = False
        for _ in range(self._cancels):
            assert self.task is not None
            self.task.uncancel()
        self._cancels = 0
        return self.task is None or self.task.cancelling() == 0

    def __repr__(self) -> str:
        return f"<lock {self.name!r}, fence {self.fence}, {'held' if self.held else 'not held'}>"
