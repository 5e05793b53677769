"""Where to begin in an index whose front is dead: what was taken leaves entries behind until vacuum comes.

While as much is there as was asked for, the next look begins behind the last one taken. It begins at the very beginning
ten times a second, since something better may have come and others may have let go, and whenever there was less. Where
that takes long, because somebody holds a snapshot and nothing can be cleaned up, it is a twentieth of the time at most.
One that took long after one that did not is no reason: that was the disk.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from rota.clock import steady

T = TypeVar("T")

_LOOK_AGAIN, _LONGEST = 0.1, 5.0
_SHARE = 0.05


class Front(Generic[T]):
    def __init__(self, beginning: T) -> None:
        self.beginning = self._reached = beginning
        self._began = self._took = self._until = 0.0

    def start(self) -> T:
        """Where the next look begins."""
        self._began = steady()
        return self._reached if self._began < self._until else self.beginning

    def note(self, start: T, last: T | None) -> None:
        """A look from `start` ended here; None: there was less than asked for."""
        if last is None:
            self._until = 0.0
            return
        self._reached = last
        if start == self.beginning:
            now = steady()
            before, self._took = self._took, now - self._began
            self._until = now + min(max(_LOOK_AGAIN, min(before, self._took) / _SHARE), _LONGEST)
