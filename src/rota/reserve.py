"""Reserve: the worker's side of its offers. Which places are kept, and for which. On the loop of the handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from rota.contract.places import Places
from rota.lane import Lane
from rota.offer import Offer

_KEPT_FOR = 1.0


class Reserve:
    def __init__(self, lanes: Sequence[Lane], freed: Callable[[], None]) -> None:
        self._lanes, self._freed = [lane for lane in lanes if lane.jobs], freed
        self._open: dict[Offer, Places] = {}
        self._kept: dict[Offer, list[tuple[Lane, int]]] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def make(self, offer: Offer, replica_id: int) -> None:
        rooms = [(lane, min(_spared(lane.room_beside(lane.asked)), offer.most)) for lane in self._lanes]
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


def _spared(room: int) -> int:
    """One place is left for a run that comes up while the scheduler waits for a tick."""
    return room - 1 if room > 1 else room
