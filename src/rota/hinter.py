"""Hinter: tells the other replicas that there is something to do, apart from the transactions that made it so.

A NOTIFY inside each of them would make their commits wait for one another. The first goes out at once, right behind
what it is about where the store can do that in one trip; what is hinted within the next moment goes out together at its
end. The moment is longer while much is hinted, as whoever was told of the first finds the others too, and when many
hints in a row take long: the database has better things to do. One that took long among others that did not is no
reason, and whoever hints now and then waits for no more than the shortest.
"""

from __future__ import annotations

import asyncio

from rota.clock import steady
from rota.errors import RotaError
from rota.store import Hint, Store

_MOMENT, _LONGEST = 0.005, 0.1
_MUCH = 5  # in one moment; the next is twice as long
_SHARE = 0.05  # of the time in which there are hints; beyond it, as much as pays for itself within _CREDIT seconds
_CREDIT = 0.1
_NO_LEAD = 10.0


class Hinter:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._wanted: set[Hint] = set()
        self._count = 0
        self._task: asyncio.Task[None] | None = None
        self._quiet_until = 0.0
        """The end of the moment."""
        self._led_until = 0.0
        """The same, if it is one that somebody leads."""
        self._leads_from = 0.0
        self._took = 0.0
        self._paid_by = 0.0
        """When so much time will have passed that hints took no more than their share of it."""

    def hint(self, kind: Hint) -> None:
        self._wanted.add(kind)
        self._count += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._send(), name="rota-hinter")

    def lead(self) -> bool:
        """Whether a hint would go out at once. Then it is for the caller to send it along with what it is about, and a
        moment begins; whoever could not says so by `failed`."""
        if self._wanted or (self._task is not None and not self._task.done()):
            return False
        now = steady()
        if now < self._quiet_until or now < self._leads_from:
            return False
        self._quiet_until = self._led_until = now + _MOMENT
        self._count = 0
        return True

    def failed(self, kind: Hint) -> None:
        """It goes out by itself, and so do the next ones for a while, for which it would be the same."""
        self._leads_from = steady() + _NO_LEAD
        if self._quiet_until == self._led_until:
            self._quiet_until = 0.0
        self.hint(kind)

    async def _send(self) -> None:
        while self._wanted:
            if (rest := self._quiet_until - steady()) > 0:
                await asyncio.sleep(rest)
            started, wanted, self._wanted = steady(), self._wanted, set()
            moment, self._count = 2 * _MOMENT if self._count > _MUCH else _MOMENT, 0
            for kind in wanted:
                try:
                    await self._store.hint(kind)
                except RotaError:
                    return  # nothing depends on a hint
            before, self._took, now = self._took, steady() - started, steady()
            self._paid_by = max(self._paid_by, started) + min(before, self._took) / _SHARE
            self._quiet_until = now + min(max(moment, self._paid_by - _CREDIT - now), _LONGEST)

    async def close(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task], timeout=1.0)
