"""Where to begin in an index whose front is dead: what was taken leaves entries behind until vacuum comes.

While as much is there as was asked for, the next look begins behind the last one taken. It begins at the very beginning
ten times a second, since something better may have come and others may have let go, and whenever there was less.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from rota.clock import steady

T = TypeVar("T")

_LOOK_AGAIN = 0.1


class Front(Generic[T]):
    def __init__(self, beginning: T) -> None:
        self.beginning = self._reached = beginning
        self._until = 0.0

    def start(self) -> T:
        """Where the next look begins."""
        return self._reached if steady() < self._until else self.beginning

    def note(self, start: T, last: T | None) -> None:
        """A look from `start` ended here; None: there was less than asked for."""
        if last is None:
            self._until = 0.0
            return
        self._reached = last
        if start == self.beginning:
            self._until = steady() + _LOOK_AGAIN
