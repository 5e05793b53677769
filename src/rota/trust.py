"""Trust: for how long this process may act on what it holds as long as its replica lives.

It is trusted from one confirmed beat to the next, `lease` seconds after the sending of each; and for a moment only when
the session lock may be free, because the others wait no longer than that before they look again. A period of trust is
one without a gap: whatever was held in an earlier one may be with somebody else by now, also if trust is back already
when this is asked for. Set by the control thread, read by any.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from rota.clock import steady

MOMENT = 0.4
"""Less than the time between the two looks after which others call a replica dead (`caretaker.SECOND_LOOK`)."""


class Trust:
    def __init__(self) -> None:
        # Replaced as a whole: a reader on another thread never sees a new end with an old period.
        self._state: tuple[int, float, float] = (0, 0.0, math.inf)
        self.shortened: Callable[[], None] | None = None
        """Called, on the control thread, when trust ends sooner than it was last said to."""
        self.needed = False
        """Something stands on it: beats should not be few."""

    @property
    def period(self) -> int:
        """The number of the present period; 0 while there is no trust. Compared at the moment of use."""
        period, until, cut = self._state
        return period if steady() < min(until, cut + MOMENT) else 0

    @property
    def until(self) -> float:
        """When it ends, unless it is renewed."""
        _, until, cut = self._state
        return min(until, cut + MOMENT)

    def renew(self, until: float) -> None:
        """A beat was confirmed, behind a session lock. After a gap this begins another period."""
        period = self.period or self._state[0] + 1
        self._state = (period, until, math.inf)

    def cut(self) -> None:
        """The session lock may be free from now on."""
        period, until, cut = self._state
        if cut == math.inf:
            self._state = (period, until, steady())
            self._tell()

    def end(self) -> None:
        """This incarnation is over."""
        self._state = (self._state[0], 0.0, math.inf)
        self._tell()

    def _tell(self) -> None:
        if self.shortened is not None:
            self.shortened()
