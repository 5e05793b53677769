"""Offer: places of the worker for ticks about to be made. A tick that gets one starts as it is made.

The scheduler asks on the control thread and goes on; the worker answers on the loop of the handlers. No answer is an
answer too: a worker that is too busy to give one has no place.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from typing import Protocol

from rota.contract.places import Places
from rota.store import Claim


class Offer:
    """One question of the scheduler, and what becomes of it."""

    def __init__(self, most: int) -> None:
        self.most = most
        """More are of no use."""
        self.token = secrets.randbits(63)
        self._lock = threading.Lock()
        self._places: Places | None = None
        self._closed = False
        self.taken_up = False
        """Something may have been started under its token."""

    def make(self, places: Places) -> bool:
        """By the worker. False: it comes too late, and nothing is to be kept."""
        with self._lock:
            if not self._closed:
                self._places = places
            return not self._closed

    def places(self) -> Places | None:
        """By the scheduler, when it writes: what was offered by then is what there is."""
        self.close()
        self.taken_up = self._places is not None
        return self._places

    def close(self) -> None:
        """From now on an answer comes too late."""
        with self._lock:
            self._closed = True


class Hands(Protocol):
    """A worker, as the scheduler sees it; both may be called from any thread."""

    def offer(self, most: int) -> Offer: ...
    def fill(self, offer: Offer, claims: Sequence[Claim] | None) -> None:
        """These runs have places now. None: it is not known whether there are any."""


class _Nobody:
    def offer(self, most: int) -> Offer:
        return Offer(most)

    def fill(self, offer: Offer, claims: Sequence[Claim] | None) -> None: ...


NOBODY: Hands = _Nobody()
"""No worker: every tick becomes ready."""
