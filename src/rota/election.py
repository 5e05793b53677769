"""Election: one state machine for each role that this replica would lead.

States and what moves between them:

    follower --won, the term is stored--> leading --asked, replaced, not confirmed, cut off, stopping--> ending
    ending --the user's code has stopped, its hooks have run; the role is let go--> follower

Invariants:
1. A term is stored (durably, with a random nonce) before anybody is told of it: winning is a comparison with the term
   that was seen vacant, so of many who see it one wins.
2. A leader believes in its term until `trusted_until` and not longer, compared at the moment of use by a clock that
   does not stop: the last confirmed renewal's time of *sending* plus the lease, shorter than anybody else waits. Trust
   that lapsed does not come back. Nobody begins a term without it, which includes the session lock.
3. Nobody who is not trusted writes: every durable write of a leader compares term and nonce for equality, in its own
   transaction. So a frozen leader that wakes up is refused, whatever it believes.
4. Loss comes first, its cause is dealt with afterwards: the term is `lost` before a connection is closed, before the
   user's code is told, before the role is let go.
5. The role is let go last, after `on_lose_leadership`, wherever the store can still be reached. Letting go says so to
   the others; a crash does not, and is seen by the free session lock.

Failure rules: a look that fails changes nothing; the term lasts until it is not trusted any more. A reply to winning
that is lost is found again by its nonce, or ends like a crash: the seat is ours, and the next look takes it anew with a
new term. What raises while a term begins ends the term, and this replica abstains for a while so that another may try.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeVar

from rota.clock import steady
from rota.contract.roles import Candidate, Fence, Roles, Seat
from rota.elector import Elector
from rota.errors import LeadershipLost, RotaError, StoreUnavailable
from rota.events import Event, LeadershipEnded, LeadershipWon, ServiceFailed
from rota.service import Service
from rota.succession import Takeover, handover, is_next, may_take, vacant

T = TypeVar("T")

_CONFIRM_EVERY = 1.0
_BALANCE_EVERY = 2.0
_ABSTAIN, _SOUND = 5.0, 60.0
_RELEASE_WITHIN = 2.0


class Term:
    """A leadership, from winning a role to the end of it."""

    def __init__(self, fence: Fence, elector: Elector, lapsed: Callable[[], None] = lambda: None) -> None:
        self.fence, self._elector, self._tell = fence, elector, lapsed
        self._lapsed = False
        self.began_at = steady()
        self.over: str | None = None
        """Why it ends; None while it does not."""
        self.lost = False
        """It was not given up, but taken away: from then on it is not trusted. One that is given up is, until it is
        let go, so that hooks and bodies can store what they have."""
        self.let_go = False
        self.forced = False
        """An operator ended it."""
        self.meant_for: int | None = None

    @property
    def role(self) -> str:
        return self.fence.role

    @property
    def trusted(self) -> bool:
        """Once it is not, it never is again: whoever saw that has stopped, and a later beat must not undo it."""
        if not self._lapsed and steady() >= self.trusted_until:
            self._lapsed = True
            self._tell()
        return not (self.lost or self.let_go or self._lapsed)

    @property
    def trusted_until(self) -> float:
        return self._elector.trusted_until(self.fence)

    def check(self) -> None:
        """Raises `LeadershipLost` unless this leader may still believe in its term."""
        if not self.trusted:
            why = self.over or "it was not confirmed in time"
            raise LeadershipLost(f"term {self.fence.term} of {self.role!r} is over: {why}")


class Court(Protocol):
    """The side of the user's code. Called from the control thread."""

    def began(self, term: Term) -> None: ...

    def ended(self, term: Term) -> None:
        """Stop what runs under this term, run the hooks, then call `Elections.stopped`."""


class Elections(Service):
    """Looks at the seats, takes what is vacant, gives up what is lost. Lives on the control thread."""

    name = "elections"
    longest_pause = 0.5

    def __init__(
        self, store: Roles, elector: Elector, roles: Mapping[str, Takeover], *, replica_id: Callable[[], int],
        strict_after: float, court: Court, emit: Callable[[Event], None],
    ) -> None:  # fmt: skip
        super().__init__(emit)
        self._store, self._elector, self._roles, self._replica_id = store, elector, roles, replica_id
        self._strict_after, self._court = strict_after, court
        self._terms: dict[str, Term] = {}
        self._vacant_since: dict[str, float] = {}
        self._abstains_until: dict[str, float] = {}
        self._stood: tuple[int, tuple[str, ...]] | None = None
        self._failed_starts: dict[str, int] = {}
        self._confirmed_at = self._balanced_at = 0.0
        self._closing = False
        self._taking = asyncio.Lock()
        self.vigil = Vigil(self, emit)

    # -- what others see ---------------------------------------------------------------------------

    def term(self, role: str) -> Term | None:
        """The term of a role that this replica leads."""
        term = self._terms.get(role)
        return term if term is not None and term.over is None else None

    @property
    def terms(self) -> list[Term]:
        """Those that have not ended."""
        return [term for term in list(self._terms.values()) if term.over is None]

    @property
    def ending(self) -> list[Term]:
        """Those whose code has not stopped yet."""
        return [term for term in list(self._terms.values()) if term.over is not None]

    # -- steps -------------------------------------------------------------------------------------

    async def step(self) -> float | None:
        await self._confirm()
        if self._closing:
            return _CONFIRM_EVERY if self._terms else None
        stands = (self._replica_id(), tuple(role for role in self._roles if not self._is_broken(role)))
        if self._stood != stands:
            await self._answered(self._store.stand(stands[0], stands[1]))
            self._stood = stands
        seats, candidates = await self._answered(self._elector.look(list(self._roles)))
        mine = [seat for seat in seats if seat.role in self._roles]
        for seat in mine:
            self._review(seat)
        for seat in mine:
            if self._wants(seat, seats, candidates):
                await self._take(seat)
                seats = [_led_by(s, self._replica_id()) if s.role in self._terms else s for s in seats]
        self._balance(seats, candidates)
        follows = any(role not in self._terms for role in self._roles)
        soon = follows and is_next(self._replica_id(), seats, candidates)
        return (self._elector.pause if soon else _CONFIRM_EVERY) * random.uniform(0.8, 1.2)

    async def _confirm(self) -> None:
        if steady() - self._confirmed_at < _CONFIRM_EVERY * 0.9:
            return
        held = [term for term in self._terms.values() if not (term.lost or term.let_go)]
        await asyncio.gather(*(self._confirm_one(term) for term in held))
        self._confirmed_at = steady()

    async def _confirm_one(self, term: Term) -> None:
        try:
            await self._answered(self._elector.confirm(term.fence))
        except LeadershipLost as error:
            self._end(term, str(error), lost=True)
        except RotaError as error:
            self.emit(ServiceFailed(self.name, error))  # it lasts as long as it is trusted

    def _review(self, seat: Seat) -> None:
        """What a look says about a role that we lead, or that nobody does."""
        term = self.term(seat.role)
        if seat.alive:
            self._vacant_since.pop(seat.role, None)
        else:
            self._vacant_since.setdefault(seat.role, steady())
        if term is None:
            return
        if (seat.term, seat.nonce) != (term.fence.term, term.fence.nonce):
            newer = f"{seat.holder or 'somebody else'} leads in term {seat.term}"
            term.forced = seat.term == term.fence.term
            self._end(term, "somebody ended it" if term.forced else newer, lost=True)
        elif seat.step_down:
            term.meant_for = seat.meant_for
            self._end(term, "it was asked to step down")

    def _wants(self, seat: Seat, seats: list[Seat], candidates: list[Candidate]) -> bool:
        now = steady()
        if seat.role in self._terms or self._closing:
            return False
        if now < self._abstains_until.get(seat.role, 0.0) and (
            seat.meant_for != self._replica_id() or self._is_broken(seat.role)
        ):
            return False
        mine_already = seat.replica_id == self._replica_id()  # a reply that was lost
        since = self._vacant_since.get(seat.role, now)
        return mine_already or (
            vacant(seat, self._roles[seat.role], self._strict_after)
            and may_take(seat, self._replica_id(), seats, candidates, now - since)
        )

    async def _take(self, seat: Seat) -> None:
        async with self._taking:
            fence = None if self._closing else await self._answered(self._elector.win(seat))
            if fence is None:
                return
            if self._closing:  # meanwhile; nobody would end it
                await self._answered(self._elector.resign(fence))
                return
            term = self._terms[seat.role] = Term(fence, self._elector, self.vigil.wake)
            self._vacant_since.pop(seat.role, None)
            self.emit(LeadershipWon(fence.role, fence.term, self._elector.name))
            self._court.began(term)
            self.vigil.wake()

    async def _answered(self, asking: Awaitable[T]) -> T:
        """A connection may be dead without anybody being told: it is not waited for as long as a statement may take."""
        within = self._elector.answer_within
        try:
            async with asyncio.timeout(None if within == math.inf else within):
                return await asking
        except TimeoutError as error:
            raise StoreUnavailable(f"no answer within {within:g} s") from error

    def _is_broken(self, role: str) -> bool:
        """Its terms could not begin here lately: the others are not to count on this replica."""
        return role in self._failed_starts and steady() < self._abstains_until.get(role, 0.0)

    def _balance(self, seats: list[Seat], candidates: list[Candidate]) -> None:
        now = steady()
        if now - self._balanced_at < _BALANCE_EVERY:
            return
        self._balanced_at = now
        ages = {term.role: now - term.began_at for term in self.terms}
        found = handover(self._replica_id(), seats, candidates, ages)
        if found is not None:
            term = self._terms[found[0]]
            term.meant_for = found[1]
            self._end(term, f"replica {found[1]} leads less")

    # -- the end of a term -------------------------------------------------------------------------

    def _end(self, term: Term, why: str, *, lost: bool = False) -> None:
        """From here on it is not trusted; everything else follows."""
        term.lost = term.lost or lost
        if term.over is not None:
            return
        term.over = why
        self.emit(LeadershipEnded(term.role, term.fence.term, why, lost))
        self._court.ended(term)

    def cut_off(self, why: str) -> None:
        """The connection that carried the session lock is gone, or the replica was deposed."""
        if self._elector.by_lifeline:
            self._end_all(why, lost=True)

    def end_untrusted(self) -> float | None:
        """Ends what is not trusted any more; seconds until there may be something to end again."""
        for term in self.terms:
            if not term.trusted:
                self._end(term, "it was not confirmed in time", lost=True)
        return min((term.trusted_until - steady() for term in self.terms), default=None)

    async def stopped(self, term: Term, *, failed: bool = False) -> None:
        """The user's code of this term has stopped: let the role go. On the control thread."""
        self._end(term, "it could not begin" if failed else "its code has ended")
        if failed:
            self._failed_starts[term.role] = min(self._failed_starts.get(term.role, -1) + 1, 6)
        elif steady() - term.began_at > _SOUND:
            self._failed_starts.pop(term.role, None)
        if failed or not term.lost:
            self._abstains_until[term.role] = steady() + _ABSTAIN * 2 ** self._failed_starts.get(term.role, 0)
        await self.let_go(term)
        if self._terms.get(term.role) is term:
            del self._terms[term.role]
        self.wake()

    async def let_go(self, term: Term) -> None:
        """Others may lead; once. Where code of a lost term does not stop, this comes before `stopped`, and the role is
        not led here before that."""
        if term.let_go:
            return
        term.let_go = True
        try:
            async with asyncio.timeout(_RELEASE_WITHIN):
                await self._elector.resign(term.fence, term.meant_for)
        except (RotaError, TimeoutError) as error:
            self.emit(ServiceFailed(self.name, error))  # others see that it is vacant when this replica is dead

    async def close(self) -> None:
        """Take nothing more, and end what is led. The others need not wait for this one any more."""
        self._closing = True
        self._end_all("this replica stops")
        with contextlib.suppress(RotaError, TimeoutError):
            async with asyncio.timeout(_RELEASE_WITHIN), self._taking:
                await self._store.stand(self._replica_id(), [])
        self._end_all("this replica stops")  # also what was being won

    def _end_all(self, why: str, *, lost: bool = False) -> None:
        for term in list(self._terms.values()):
            self._end(term, why, lost=lost)


class Vigil(Service):
    """Ends terms that are not trusted any more, whatever a look may be waiting for."""

    name = "vigil"

    def __init__(self, elections: Elections, emit: Callable[[Event], None]) -> None:
        super().__init__(emit)
        self._elections = elections

    async def step(self) -> float | None:
        return self._elections.end_untrusted()


def _led_by(seat: Seat, replica_id: int) -> Seat:
    return Seat(role=seat.role, term=seat.term, replica_id=replica_id, alive=True)
