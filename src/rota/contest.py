"""Contest: the wait for one lock.

Those who wait in one process go first in, first out; only the first of them asks the store, when a hint says that
something was let go and every quarter of a second behind that. A holder that is not alive at two looks, half a second
apart, and has not beaten in between, is dead: one whose connection broke for a moment is back by then.
"""

from __future__ import annotations

import asyncio
import random
from shlex import quote

from rota.caretaker import SECOND_LOOK
from rota.clock import steady
from rota.contract.locks import LockHolder
from rota.errors import LockNotAcquired, RotaError, StaleWrite, StoreUnavailable
from rota.events import LockAcquired, LockContended
from rota.hold import Hold, Wanted
from rota.keeper import Keeper, new_token
from rota.line import Line

_POLL, _CROWD = 0.25, 50
"""Seconds between two looks; more where so many locks, or more, are waited for in one process."""
_AT_LEAST, _LONGEST = 1.0, 30.0
"""Seconds that a try gets, also when there is less time left."""
ALARM = 30.0


class Contest:
    def __init__(self, keeper: Keeper, wanted: Wanted, timeout: float | None) -> None:
        self._keeper, self._wanted, self._timeout = keeper, wanted, timeout
        self._began = steady()
        self._alarm_at = self._began + ALARM
        self._token, self._uncertain = new_token(), False
        self._suspects: dict[int, tuple[LockHolder, float]] = {}
        self._error: RotaError | None = None

    async def win(self) -> Hold:
        """Wait until it is had; `LockNotAcquired` when that takes too long."""
        name = self._wanted.name
        line = self._keeper.lines.enter(name)
        try:
            await self._stand_in(line)
            try:
                return await self._try(line)
            finally:
                line.turn.release()
        finally:
            self._keeper.lines.leave(name)
            if self._uncertain:
                self._keeper.forget(self._token)

    async def try_once(self) -> Hold | None:
        """Have it now, or not."""
        try:
            found = await self._keeper.take(self._wanted, self._token, (), _LONGEST)
        except RotaError:
            self._keeper.forget(self._token)
            raise
        return self._won(found) if isinstance(found, Hold) else None

    async def _stand_in(self, line: Line) -> None:
        try:
            async with asyncio.timeout(self._left):
                await line.turn.acquire()
        except TimeoutError:
            raise self._too_late(line.holders) from None

    async def _try(self, line: Line) -> Hold:
        while True:
            found = await self._attempt()
            if isinstance(found, Hold):
                return self._won(found)
            line.holders = found or line.holders
            left = self._left
            if left is not None and left <= 0:
                raise self._too_late(line.holders)
            if steady() >= self._alarm_at:
                self._alarm_at = steady() + ALARM
                self._keeper.emit(LockContended(self._wanted.name, self._waited, described(line.holders)))
            pause = min(self._next_look(), self._alarm_at - steady())
            await line.wake.wait(pause if left is None else min(pause, left))

    async def _attempt(self) -> Hold | tuple[LockHolder, ...]:
        left, now = self._left, steady()
        dead = tuple(holder for holder, seen in self._suspects.values() if now - seen >= SECOND_LOOK)
        patience = _LONGEST if left is None else max(left, _AT_LEAST)
        uncertain, self._uncertain = self._uncertain, True
        try:
            found = await self._keeper.take(self._wanted, self._token, dead, patience)
        except (StoreUnavailable, StaleWrite) as error:
            self._error = error
            return ()
        except asyncio.CancelledError:
            self._uncertain = uncertain  # what was under way is undone by the keeper
            raise
        self._uncertain, self._error = False, None
        if found is None:
            self._token = new_token()
            return ()
        if isinstance(found, Hold):
            return found
        now = steady()
        before, self._suspects = self._suspects, {}
        for holder in found:
            if not holder.alive:
                first, seen = before.get(holder.token, (holder, now))
                self._suspects[holder.token] = (first, seen) if first.beat_at == holder.beat_at else (holder, now)
        return found

    def _won(self, hold: Hold) -> Hold:
        self._keeper.emit(LockAcquired(hold.name, self._waited, hold.fence))
        return hold

    def _next_look(self) -> float:
        pause = _POLL * random.uniform(0.8, 1.2) * max(1.0, len(self._keeper.lines) / _CROWD)
        due = [seen + SECOND_LOOK - steady() for _, seen in self._suspects.values()]
        return min([pause, *(max(each, 0.01) for each in due)])

    @property
    def _waited(self) -> float:
        return steady() - self._began

    @property
    def _left(self) -> float | None:
        return None if self._timeout is None else self._timeout - self._waited

    def _too_late(self, holders: tuple[LockHolder, ...]) -> LockNotAcquired:
        name = self._wanted.name
        if self._error is not None:
            return LockNotAcquired(f"lock {name!r} could not be had within {self._timeout:g} s: {self._error}")
        return LockNotAcquired(
            f"lock {name!r} could not be had within {self._timeout:g} s: held by {described(holders)}; wait longer "
            f"(timeout=), or look with `rota locks who {quote(name)}` and free it with "
            f"`rota locks release {quote(name)}`"
        )


def described(holders: tuple[LockHolder, ...]) -> str:
    """For people: who, and since when."""
    return ", ".join(
        f"{holder.holder} since {holder.acquired_at:%Y-%m-%d %H:%M:%S} UTC" + ("" if holder.alive else " (not alive)")
        for holder in holders
    ) or "nobody known"  # fmt: skip
