"""Claimer: takes what is ready for one lane of a worker, while it has room.

A claim whose reply was lost is asked about by its token. What this replica took when it was still another one is
nobody's here: a reply may have waited for us while we were frozen.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import Protocol

from rota.events import Event, ServiceFailed
from rota.lane import Lane
from rota.service import Wake
from rota.store import Claim, Claimed, Store

_BATCH = 1000
_BUSY = (0.005, 1.0)
"""Seconds until another look at what others have hold of: at first, and at most."""


class Standing:
    """What this replica may take runs under: a number, which it may lose, and lose while a reply is on its way."""

    def __init__(self, store: Store, number: Callable[[], int], emit: Callable[[Event], None]) -> None:
        self.store, self._emit = store, emit
        self.number = number
        """Its number while it trusts itself, else 0."""
        self.ending = False
        """It takes no more, and gives back what has not begun."""

    async def still(self, replica_id: int) -> bool:
        """Whether this is still the replica that it was."""
        while not (number := self.number()) and not self.ending:
            await asyncio.sleep(0.1)
        return number == replica_id

    async def reclaim(self, replica_id: int, token: int) -> list[Claim]:
        """Whatever goes wrong, ask what was claimed under this token, as long as this is the same replica."""
        pause = 0.05
        while True:
            try:
                return await self.store.reclaim(replica_id, token)
            except Exception as error:
                self.failed(error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, 2.0)
                if not await self.still(replica_id) or self.ending:
                    return []  # what this incarnation may have claimed is freed with it

    def failed(self, error: Exception) -> None:
        self._emit(ServiceFailed("claimer", error))


class Taker(Protocol):
    """Who has the runs carried out."""

    @property
    def full(self) -> bool:
        """So much waits to be recorded that no more should begin."""

    def submit(self, replica_id: int, token: int, claims: Sequence[Claim]) -> None: ...
    def learn(self) -> None: ...


class Claimer:
    """On the loop of the handlers. Each lane has its own, so that none waits for another's backlog."""

    def __init__(self, lane: Lane, standing: Standing, taker: Taker) -> None:
        self.lane, self._standing, self._taker = lane, standing, taker
        self.then: Claimer | None = None
        """Hears that there may be something once this one has looked, so that what it took has started by then."""
        self._wake = Wake()
        self._news = True
        """Somebody says that there may be something to claim,"""
        self._untold = False
        """which the next one has not heard."""
        self._more = False
        """There may be something: claim as soon as there is room."""
        self.starved = False
        """It waits for that room."""
        self._pause = _BUSY[0]
        """How long to leave those alone that others have hold of."""
        self._soon: asyncio.TimerHandle | None = None

    def wake(self) -> None:
        """There may be something. From any thread."""
        if self.then and self.lane.asked:
            self.then.wake()  # at once: what this one has asked may take long to be answered
        else:
            self._untold = True
        self._news = True
        self._wake.set()

    def look(self) -> None:
        """There may be room; on the loop."""
        self._wake.set_here()

    async def run(self) -> None:
        standing = self._standing
        while not standing.ending:
            if self._news:
                self._news, self._more = False, True
            self._taker.learn()
            again, room = False, min(self.lane.room_beside(self.lane.kept), _BATCH)
            if self._more and room and not self._taker.full and (replica_id := standing.number()):
                self.lane.asked, self._more = room, False
                claimed = await self.claim(replica_id, room)
                self._more = again = self._more or claimed.more
                self.lane.asked = 0
                if self.then and self._untold:
                    await asyncio.sleep(0)  # for what was taken to start
            if self.then and self._untold:
                self._untold = False
                self.then.wake()
            if not again:
                self.starved = self._more
                await self._wake.wait()
                self.starved = False

    async def claim(self, replica_id: int, room: int) -> Claimed:
        """What was claimed, and is submitted."""
        token = secrets.randbits(63)
        try:
            claimed = await self._standing.store.claim_runs(replica_id, token, self.lane.jobs, room)
        except Exception as error:
            self._standing.failed(error)
            claims = await self._standing.reclaim(replica_id, token)
            claimed = Claimed(claims=claims, more=len(claims) == room)
        self._look_later(claimed.busy)
        if claimed.claims and not await self._standing.still(replica_id):
            return Claimed(claims=[])
        if claimed.claims:
            self._taker.submit(replica_id, token, claimed.claims)
        return claimed

    def _look_later(self, busy: bool) -> None:
        """What others leave, they tell nobody of."""
        if busy and self._soon is None:
            self._soon = asyncio.get_running_loop().call_later(self._pause, self._look_again)
        self._pause = min(2 * self._pause, _BUSY[1]) if busy else _BUSY[0]

    def _look_again(self) -> None:
        self._soon = None
        self._more = True
        self.look()
