"""Race: which of many schedulers goes for the next tick in the instant in which it is due.

One is enough, and the questions of the others would keep it waiting. So whoever made the last tick gets ready for the
next one a moment ahead, and of the others one on average, so that the work is spread. Everybody else looks a moment
after it, when it has been made. If nobody has, it is a moment late, and whoever makes it is first at the next.
"""

from __future__ import annotations

import random

AHEAD, BEHIND = 0.02, 0.01
"""Seconds: enough for a thread that slept to wake up, ask and decide, and for a tick to be made."""


class Race:
    def __init__(self) -> None:
        self.replicas = 1
        self.first = True
        """Whether to go for the next tick."""

    def ran(self, *, won: bool) -> None:
        """A tick was due, and was made here, or by somebody else."""
        self.first = won or random.random() * self.replicas < 1

    def is_close(self, due_in: float) -> bool:
        """So close that there is no sense in looking again before it is due."""
        return self.first and due_in <= 2 * AHEAD

    def look_in(self, due_in: float) -> float:
        """Seconds until the next look, where the next tick is due in so many."""
        if self.first:
            return due_in if self.is_close(due_in) else due_in - AHEAD
        return due_in + BEHIND
