"""Keeper: what locks this process holds, and what becomes of them.

- A hold that is not sure any more is lost at once, and its block is cancelled: before anybody else can have the lock.
- Without a replica behind it a hold is renewed; with one it lives as long as the replica. Both are compared with the
  store now and then: an operator may have freed one.
- What may be in the store though nobody here wants it (a cancelled try, a release that failed) is released until the
  store has said that it is gone.
- Closing waits for blocks a moment only, whatever they do.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine
from typing import Any

from rota.clock import steady
from rota.contract.locks import LockHolder, Taken
from rota.errors import NotOpen, RotaError, StoreUnavailable
from rota.events import Event, LockLapsed
from rota.hold import Hold, Standing, Wanted
from rota.line import Lines
from rota.service import Wake
from rota.store import Store
from rota.trust import Trust

LEASE, SURE, RENEW = 10.0, 8.0, 3.0
"""Without a replica: how long a row lasts, how long its holder relies on it, how often it is renewed."""
_CHECK, _CHECK_SOON = 2.0, 0.25
_CANCEL_AGAIN = 5.0
_LITTER = 35.0
"""A statement whose answer was lost may be carried out as late as this."""
_GRACE, _PATIENCE = 2.0, 5.0


class Keeper:
    """Belongs to one event loop, that of the handlers."""

    def __init__(self, store: Store, holder: str, *, emit: Callable[[Event], None], hint: Callable[[], None]) -> None:
        self.holder, self.emit = holder, emit
        self._store, self._hint = store, hint
        self._trust: Trust | None = None
        self._replica_id: Callable[[], int] = lambda: 0
        self._holds: dict[int, Hold] = {}
        self.lines = Lines(self._check_soon)
        self._litter: dict[int, float] = {}
        self._tidying: asyncio.Task[Any] | None = None
        self._wake = Wake()
        self._chores: set[asyncio.Task[Any]] = set()
        self._keeping: asyncio.Task[None] | None = None
        self._check_at = 0.0
        self._checking = False
        self.closed = False

    def serve(self, trust: Trust, replica_id: Callable[[], int]) -> None:
        """From now on locks are held by this replica."""
        self._trust, self._replica_id = trust, replica_id
        trust.shortened = self._wake.set

    # -- taking ------------------------------------------------------------------------------------

    def standing(self) -> Standing | None:
        """As whom a lock can be taken now; None while this replica is not sure of itself."""
        if self.closed:
            raise NotOpen
        if self._trust is None:
            return Standing(seconds=LEASE)
        # The period first: an incarnation that ends in between ends it.
        period = self._trust.period
        return Standing(self._replica_id(), None, self._trust, period) if period else None

    def held_by(self, task: asyncio.Task[Any] | None, name: str) -> bool:
        return any(hold.name == name and hold.task is task for hold in self._holds.values())

    async def take(
        self, wanted: Wanted, token: int, dead: tuple[LockHolder, ...], patience: float
    ) -> Hold | tuple[LockHolder, ...] | None:
        """One try. Who is in the way if it failed; None if it cannot be told, and the token is used up."""
        standing = self.standing()
        if standing is None:
            raise StoreUnavailable("the database has not confirmed this replica's last beat: it can hold nothing now")
        sent = steady()
        trying = asyncio.create_task(
            self._store.take_lock(
                wanted.name, token, self.holder, limit=wanted.limit, replica_id=standing.replica_id,
                seconds=standing.seconds, dead=dead,
            )
        )  # fmt: skip
        # Never cancelled itself: what it did would be unknown.
        try:
            await asyncio.wait({trying}, timeout=patience)
        except asyncio.CancelledError:
            self._chore(self._undo(trying, token))
            raise
        if not trying.done():
            self._chore(self._undo(trying, token))
            return None
        taken = trying.result()
        if taken.fence is None:
            return taken.holders
        hold = Hold(wanted.name, token, taken.fence, standing, sent + SURE, self.release)
        if not hold.held:  # it took too long, or this replica was cut off meanwhile
            self._chore(self._discard(token, wanted.name))
            return None
        self._holds[token] = hold
        self._attend()
        return hold

    async def _undo(self, trying: asyncio.Task[Taken], token: int) -> None:
        try:
            await trying
        except RotaError:
            self._litter[token] = steady() + _LITTER
            self._attend()
        await self._discard(token)

    # -- letting go --------------------------------------------------------------------------------

    async def release(self, hold: Hold) -> None:
        """Let it go. `LockLost` when it was not held any more; a store that is away keeps nobody for long."""
        if hold.ended:
            return
        self._look(hold)
        hold.ended = True
        self._holds.pop(hold.token, None)
        self._wake.set_here()
        releasing = self._chore(self._discard(hold.token, hold.name))
        if hold.lost is None:
            await asyncio.wait({releasing}, timeout=_PATIENCE)
            if releasing.done() and not releasing.cancelled() and releasing.result() is False:
                hold.lost = "somebody took it away"
        if hold.lost is not None:
            raise hold.loss()

    async def _discard(self, token: int, name: str | None = None) -> bool | None:
        """Whether it was there; None when that cannot be told now, and it is tried again later."""
        try:
            was_held = await self._store.release_lock(token)
        except RotaError:
            self._litter[token] = steady() + _LITTER
            self._attend()
            return None
        if was_held:
            self._litter.pop(token, None)
            self._hint()
            self.lines.wake(name)
        return was_held

    def forget(self, token: int) -> None:
        """Nobody knows whether it was taken, and nobody wants it."""
        if self.closed:
            return  # the replica's end frees it, or its time
        self._litter[token] = steady() + _LITTER
        self._attend()
        self._chore(self._discard(token))

    # -- keeping -----------------------------------------------------------------------------------

    def _check_soon(self) -> None:
        if self._holds:
            self._check_at = min(self._check_at, steady() + _CHECK_SOON)
            self._wake.set_here()

    def _attend(self) -> None:
        if self.closed:
            return
        if self._trust is not None:
            self._trust.needed = True
        if self._keeping is None or self._keeping.done():
            self._check_at = steady() + self._pause
            self._keeping = asyncio.create_task(self._keep(), name="rota-keeper")
        self._wake.set_here()

    @property
    def _pause(self) -> float:
        return RENEW if self._trust is None else _CHECK

    async def _keep(self) -> None:
        while self._holds or self._litter:
            moments = [self._look(hold) for hold in list(self._holds.values())]
            if steady() >= self._check_at and not self._checking:
                self._checking, self._check_at = True, steady() + self._pause
                # Apart from this: a store that hangs must not keep a hold from being lost in time.
                self._chore(self._check())
            if not self._checking:
                moments.append(self._check_at)
            await self._wake.wait(max(0.005, min(moments) - steady()) if moments else None)
        if self._trust is not None:
            self._trust.needed = False

    def _look(self, hold: Hold) -> float:
        """Lose it if it is not sure any more; when to look again."""
        if hold.lost is None and not hold.held:
            self._lapse(hold, "this process cannot be sure of it: the database did not confirm that it lives")
        if hold.lost is None:
            return hold.sure_until
        if hold.cancelled_for >= _CANCEL_AGAIN:
            hold.cancel()
        return steady() + _CANCEL_AGAIN

    def _lapse(self, hold: Hold, why: str) -> None:
        hold.lost = why
        if hold.in_block:
            # The row, if it is still there, stays until the block has ended: cancelled is not stopped.
            hold.cancel()
        else:
            self._holds.pop(hold.token, None)
            self._chore(self._discard(hold.token, hold.name))
        self.emit(LockLapsed(hold.name, hold.fence, why))

    async def _check(self) -> None:
        holds = [hold for hold in self._holds.values() if hold.lost is None]
        sent = steady()
        try:
            if self._trust is None:
                there = await self._store.renew_locks([hold.token for hold in holds], LEASE) if holds else frozenset()
            else:
                there = await self._store.locks_of(self._replica_id()) if holds else frozenset()
            for hold in holds:
                if hold.token in there:
                    hold.renewed_until = sent + SURE
                elif not hold.ended and hold.lost is None:
                    self._lapse(hold, "somebody took it away")
            if self._litter and self._tidying is None:
                self._tidying = self._chore(self._tidy())
        except RotaError:
            return  # again at the next check; what is not confirmed in time lapses by itself
        finally:
            self._checking = False
            self._wake.set_here()

    async def _tidy(self) -> None:
        """Apart from renewing: there may be many, and they can wait."""
        try:
            for token, until in list(self._litter.items()):
                if await self._store.release_lock(token) or steady() > until:
                    self._litter.pop(token, None)
        except RotaError:
            return
        finally:
            self._tidying = None

    # -- the end -----------------------------------------------------------------------------------

    async def close(self) -> None:
        """Everything is let go. Blocks that are still open are cancelled, and get a moment."""
        if self.closed:
            return
        self.closed = True
        self.lines.close()
        for hold in list(self._holds.values()):
            if hold.task is asyncio.current_task():
                hold.in_block = False
            self._lapse(hold, "the app was closed")
        deadline = steady() + _GRACE
        while steady() < deadline and (self._chores or self._holds):
            await asyncio.sleep(0.01)
        stubborn = [asyncio.create_task(self._discard(token)) for token in self._holds]
        if stubborn:
            await asyncio.wait(stubborn, timeout=_GRACE)
        left = [*self._chores, *([self._keeping] if self._keeping is not None else [])]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _chore(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work, name="rota-keeper-chore")
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)
        return task


def new_token() -> int:
    return secrets.randbits(62) + 1
