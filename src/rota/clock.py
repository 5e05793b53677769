"""The only clock of this process that decides anything: how long ago something was, never what time it is."""

from __future__ import annotations

import time

if hasattr(time, "CLOCK_BOOTTIME"):

    def steady() -> float:
        """Seconds that only grow, also while the machine is suspended."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:  # no such clock here; a suspended machine then trusts itself a little longer, and the tokens still fence it

    def steady() -> float:
        """Seconds that only grow."""
        return time.monotonic()
