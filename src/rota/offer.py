"""Offers: places of the worker that are kept for ticks about to be made. A tick that gets one starts as it is made.

The scheduler asks on the control thread and goes on; the worker answers on the loop of the handlers. No answer is an
answer too: a worker that is too busy to give one has no place.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from rota.contract.places import Places
from rota.lane import Lane
from rota.store import Claim

_KEPT_FOR = 1.0


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


class Offers:
    """The worker's side: which places are kept, and for whom. On the loop of the handlers."""

    def __init__(self, lanes: Sequence[Lane], freed: Callable[[], None]) -> None:
        self._lanes, self._freed = [lane for lane in lanes if lane.jobs], freed
        self._open: dict[Offer, Places] = {}
        self._kept: dict[Offer, list[tuple[Lane, int]]] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def make(self, offer: Offer, replica_id: int) -> None:
        rooms = [(lane, min(lane.room_beside(lane.asked), offer.most)) for lane in self._lanes]
        lanes = tuple((frozenset(lane.jobs), room) for lane, room in rooms if room)
        places = Places(replica_id=replica_id, token=offer.token, lanes=lanes)
        if lanes and offer.make(places):
            self._open[offer], self._kept[offer] = places, rooms
            for lane, room in rooms:
                lane.kept += room
            # The scheduler may have to wait for long; the worker need not.
            asyncio.get_running_loop().call_later(_KEPT_FOR, self._free, offer)

    def close(self, offer: Offer) -> Places | None:
        """What was offered, if anything was; the places are no longer kept."""
        self._free(offer)
        return self._open.pop(offer, None)

    def _free(self, offer: Offer) -> None:
        for lane, room in self._kept.pop(offer, ()):
            lane.kept -= room
        self._freed()
