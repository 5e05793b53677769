"""Scheduler: what is due becomes ready. Due schedules become ticks, delayed runs come up, waiting runs get free slots.

Every replica runs one, or (`scheduler="leader"`) one at a time does; the store's locks and keys make the work of any
number of them the work of one. It sleeps until the next thing is due; an edit by an operator or a freed slot wakes it
earlier. For a tick it may be awake a moment ahead, with places of the worker at hand.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rota.errors import StaleWrite
from rota.events import Event, ScheduleContended, ScheduleInvalid, TicksFired, WriteContended
from rota.offer import NOBODY, Hands
from rota.race import BEHIND, Race
from rota.service import Service
from rota.store import Agenda, Decide, Fired, Store

_BATCH = 1000
_LONGEST_SLEEP = 60.0
_BLOCKED = (0.05, 1.0)
_WAITING = 1.0
_ASK_EVERY = 0.1


@dataclass(slots=True)
class _Contention:
    since: float
    pause: float
    until: float


class Scheduler(Service):
    name = "scheduler"

    def __init__(
        self,
        store: Store,
        *,
        decide: Decide,
        jobs: Sequence[str],
        advisory: bool,
        made_ready: Callable[[int], None],
        emit: Callable[[Event], None],
        hands: Hands = NOBODY,
        may: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(emit)
        self._may, self._hands = may, hands
        self._store, self._decide, self._jobs, self._advisory = store, decide, jobs, advisory
        self._batch = min(_BATCH, store.most_locked) if advisory else _BATCH
        self._made_ready = made_ready
        self._contended: dict[int, _Contention] = {}
        self._blocked = 0.0
        self._agenda = Agenda(due=False, delayed=False, due_in=None, delayed_in=None, waiting=False)
        self._asked_at = 0.0
        self._more = False
        self.race = Race()
        self._tick_at: float | None = None
        """When the tick is due that is run for."""

    def look_within(self, seconds: float) -> None:
        """Something is due by then. Mostly it is known, and slept for already."""
        if self.rests_until > time.monotonic() + max(seconds, 0.0) + 2 * BEHIND:
            self.wake()

    async def step(self) -> float | None:
        if not self._may():
            return None  # another replica's turn; whoever wins the role is woken
        # As long as there is more than one transaction should do, it need not ask each time; but others wait too.
        if not self._more or time.monotonic() - self._asked_at > _ASK_EVERY:
            await self._ask()
        agenda, moved, wait = self._agenda, 0, self._agenda.waiting
        ahead, rest = self._ahead(agenda), None
        self._more = False
        if agenda.due or ahead is not None:
            fired = await self._fire(ahead or 0.0)
            if ahead is not None and not fired.schedules:
                agenda = await self._ask()  # it was made by somebody else; or this was too soon, by the store's clock
                if (rest := self._ahead(agenda)) is not None:
                    fired = await self._fire(rest)
            self._made_ready(fired.ready)
            moved, wait = fired.schedules, wait or fired.runs > fired.ready + len(fired.claims)
            self._more = fired.schedules == self._batch
        if self._tick_at is not None and (agenda.due or ahead is not None or time.monotonic() >= self._tick_at):
            self.race.ran(won=moved > 0)
            self._tick_at = None
        if agenda.delayed:
            promoted = await self._store.promote_due(_BATCH)
            self._made_ready(promoted)
            moved, wait = moved + promoted, wait or promoted > 0
        if wait:
            admitted = await self._store.admit_waiting()
            self._made_ready(admitted)
            moved += admitted
        if moved:
            self._blocked = 0.0
            return 0
        if ahead is not None and (agenda.due or rest is not None):
            return BEHIND  # somebody else was faster, and is at it
        sleep = self._until_next(agenda)
        if agenda.due or agenda.delayed:
            # Something is due that somebody else has locked: look again soon, and let nothing else be late for it.
            self._blocked = min(max(self._blocked * 2, _BLOCKED[0]), _BLOCKED[1])
            sleep = min(sleep, self._blocked)
        return min(sleep, _WAITING) if wait else sleep

    async def _ask(self) -> Agenda:
        self._asked_at, self._agenda = time.monotonic(), await self._store.agenda(self._jobs)
        return self._agenda

    def _ahead(self, agenda: Agenda) -> float | None:
        """Seconds until a tick that is close, where there is nothing else to be done meanwhile."""
        if agenda.due_in is None or agenda.due or agenda.delayed or agenda.waiting:
            return None
        if not self.race.is_close(agenda.due_in):
            return None
        if agenda.delayed_in is not None and agenda.delayed_in < agenda.due_in:
            return None
        # The store said so between the question and its answer. Whoever comes too soon finds nothing, and asks again.
        return max(agenda.due_in - (time.monotonic() - self._asked_at) / 2, 0.0)

    def _until_next(self, agenda: Agenda) -> float:
        """Seconds until the next look."""
        sleep = _LONGEST_SLEEP
        if agenda.due_in is not None:
            self._tick_at = time.monotonic() + agenda.due_in
            sleep = min(sleep, self.race.look_in(agenda.due_in))
        if agenda.delayed_in is not None:
            sleep = min(sleep, max(agenda.delayed_in, 0.0))
        return sleep

    async def _fire(self, ahead: float) -> Fired:
        """What is due, or will be in so many seconds: meanwhile the worker says what it has room for."""
        now = time.monotonic()
        leave = [schedule_id for schedule_id, held in self._contended.items() if held.until > now]
        offer = self._hands.offer(self._batch)
        try:
            fired = await self._store.fire_due(
                self._decide, jobs=self._jobs, limit=self._batch, advisory=self._advisory, leave=leave,
                start=offer.places, wait=ahead,
            )  # fmt: skip
        except StaleWrite as error:
            self._hands.fill(offer, ())
            self.emit(WriteContended(str(error)))
            return Fired()
        except BaseException:
            self._hands.fill(offer, None)
            raise
        self._hands.fill(offer, fired.claims)
        self._note_contention(fired.contended, set(leave))
        for schedule_id, reason in fired.invalid:
            self.emit(ScheduleInvalid(schedule_id, reason))
        if fired.runs or fired.skipped:
            self.emit(TicksFired(fired.schedules, fired.runs, fired.skipped, fired.lateness))
        return fired

    def _note_contention(self, contended: tuple[int, ...], left: set[int]) -> None:
        now = time.monotonic()
        for schedule_id in [known for known in self._contended if known not in left and known not in contended]:
            del self._contended[schedule_id]
        for schedule_id in contended:
            held = self._contended.setdefault(schedule_id, _Contention(now, 0.125, now))
            held.pause = min(held.pause * 2, 1.0)
            held.until = now + held.pause
            self.emit(ScheduleContended(schedule_id, now - held.since))
