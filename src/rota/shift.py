"""Shift: what a change of the clocks has to do with a tick, and how to say it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal, NamedTuple


class Shift(NamedTuple):
    """Wall times are seconds since 1970-01-01 00:00 on the zone's clock."""

    kind: Literal["swallowed", "first", "both", "again"]
    """Ticks that a gap swallowed became this one; the first of two passes, of which it alone ticks, or both do; the
    second of them."""
    wall: int
    """The wall time meant; of those that a gap swallowed the first."""
    set_from: int
    """What the clock shows when it is set,"""
    set_to: int
    """and what it is set to."""
    swallowed: int = 0

    def __str__(self) -> str:
        day, time = f"{_wall(self.wall):%Y-%m-%d}", _time(self.wall)
        match self.kind:
            case "swallowed" if self.swallowed == 1:
                return f"{time} does not exist on {day}: runs at {_time(self.set_to)}"
            case "swallowed":
                return f"{self.swallowed} ticks from {time} on do not exist on {day}: one run at {_time(self.set_to)}"
            case "first":
                return f"clocks go back on {day}: {time} happens twice, runs the first time only"
            case "both":
                return f"clocks go back on {day}: {time} happens twice, runs both times"
            case "again":
                return f"the second {time} of {day}: clocks went back from {_time(self.set_from)}"


def _wall(seconds: int) -> datetime:
    return datetime(1970, 1, 1) + timedelta(seconds=seconds)


def _time(seconds: int) -> str:
    return f"{_wall(seconds):%H:%M:%S}".removesuffix(":00")
