"""Pure decisions: which ticks run, when to try again. Nothing here reads a clock, a database or a task.

The invariant of the ledger: for every schedule, runs + skipped ticks + `missed_count` of the summarized ones is what an
independent enumeration of its expression gives, from the first `next_run_at` up to the present one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Literal

from rota.errors import BadInput
from rota.store import Decision, DueSchedule, Tick, tick_key
from rota.timetable import Timetable, timetable

Overlap = Literal["skip", "queue", "queue_one", "cancel"]
CatchUp = Literal["latest", "all", "skip"]
OVERLAPS: tuple[Overlap, ...] = ("skip", "queue", "queue_one", "cancel")
CATCH_UPS: tuple[CatchUp, ...] = ("latest", "all", "skip")

_INSTANT = timedelta(microseconds=1)
_MOST_TICKS = 10_000
_YEAR = 366 * 86400.0


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a failed run is tried again, and after what pause: drawn from 0 to base * 2^n, at most `longest`."""

    attempts: int = 3
    base: float = 1.0
    longest: float = 3600.0
    jitter: bool = True
    on: tuple[type[BaseException], ...] = (Exception,)
    give_up_on: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.attempts, int):
            raise BadInput(f"retry must have a whole number of attempts: {self}")
        for number in (self.attempts, self.base, self.longest):
            if not isinstance(number, int | float) or not number >= 0:  # not even what is no number
                raise BadInput(f"retry needs numbers, and none below 0: {self}")
        for kinds in (self.on, self.give_up_on):
            if not isinstance(kinds, tuple) or not all(
                isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds
            ):
                raise BadInput(f"on and give_up_on must be tuples of exception classes, like (OSError,): {self}")

    def pause(self, attempt: int, error: BaseException) -> float | None:
        """Seconds until the next attempt after attempt number `attempt` failed; None when there is none."""
        if attempt > self.attempts or isinstance(error, self.give_up_on) or not isinstance(error, self.on):
            return None
        # A store does not keep every time that there is; after a year nobody waits for it any more.
        ceiling = min(self.longest, _YEAR, self.base * 2.0 ** min(attempt - 1, 60))
        return random.uniform(0, ceiling) if self.jitter else ceiling


@dataclass(frozen=True, slots=True)
class Breaker:
    """Opens after `failures` failures in a row in the whole cluster; after `pause` seconds one probe goes through."""

    failures: int = 5
    pause: float = 60.0

    def __post_init__(self) -> None:
        if self.failures < 1 or not 0 < self.pause <= _YEAR:
            raise BadInput(f"a breaker needs at least 1 failure, and a pause above 0 and of a year at most: {self}")


@dataclass(slots=True)
class _Books:
    """What one schedule has while its due ticks are decided, one after the other."""

    schedule: DueSchedule
    ticks: list[Tick] = field(default_factory=list)
    held: int = 0
    waiting: int = 0
    stop_running: bool = False
    probe: bool = False

    def run(self, due_at: datetime, place: Literal["ready", "waiting"]) -> None:
        self.probe = self.probe or self.schedule.breaker != "closed"
        if self.schedule.job_limited:
            place = "waiting"
        if place == "ready":
            self.held += 1
        else:
            self.waiting += 1
        self.ticks.append(Tick(due_at=due_at, key=tick_key(due_at), place=place))

    def skip(self, due_at: datetime, reason: str) -> None:
        self.ticks.append(Tick(due_at=due_at, key=tick_key(due_at), place="none", reason=reason))

    def miss(self, table: Timetable, first: datetime, last: datetime, reason: str) -> None:
        """All ticks from `first` to `last`, both included, did not run: one row for them."""
        if first == last:
            self.skip(first, reason)
            return
        count = table.count(first - _INSTANT, last)
        self.ticks.append(
            Tick(
                due_at=first, key=f"{tick_key(first)}-{tick_key(last).removeprefix('schedule:')}", place="none",
                reason=reason, missed_from=first, missed_to=last, missed_count=count,
            )
        )  # fmt: skip


class Decider:
    """Decides for a batch of due schedules; `check` says what is wrong with a job's parameters, or None."""

    def __init__(self, *, late_after: float, check: Callable[[str, str], str | None]) -> None:
        self._late_after = timedelta(seconds=late_after)
        self._check = lru_cache(maxsize=256)(check)  # many schedules of a job have the same parameters, or none
        self._ready: tuple[Tick, ...] = ()
        """What was made last: schedules that are due at the same instant have the same tick."""

    def __call__(self, now: datetime, due: Sequence[DueSchedule]) -> list[Decision]:
        probing: set[str] = set()
        decisions, ticks = [], 0
        for schedule in due:
            try:
                decision = self._decide(now, schedule, probing)
                if decision is None:
                    continue
            except (BadInput, OverflowError, ValueError) as error:
                # One odd row must not stop the others.
                decision = Decision(schedule=schedule, next_run_at=schedule.next_run_at, invalid_reason=str(error))
            decisions.append(decision)
            ticks += len(decision.ticks)
            if ticks >= _MOST_TICKS:
                break  # the rest is still due, and comes in the next transaction
        return decisions

    def _decide(self, now: datetime, schedule: DueSchedule, probing: set[str]) -> Decision | None:
        try:
            table = timetable(schedule.cron, schedule.timezone)
        except BadInput as error:
            return Decision(schedule=schedule, next_run_at=None, invalid_reason=str(error))
        if wrong := self._check(schedule.job_id, schedule.parameters):
            if schedule.as_declared:
                return None  # declared by code of another version than ours: it is for them to run
            return Decision(schedule=schedule, next_run_at=schedule.next_run_at, invalid_reason=wrong)
        if schedule.next_run_at is None:
            return Decision(schedule=schedule, next_run_at=table.next(now))
        following = table.next(schedule.next_run_at)
        if following > now and self._undisputed(schedule, schedule.next_run_at, now):
            ready = self._just(schedule.next_run_at)
            return Decision(schedule=schedule, next_run_at=following, ticks=ready, plain=True)
        books = _Books(schedule, held=schedule.held, waiting=schedule.waiting)
        first: datetime | None = schedule.next_run_at
        newest = schedule.next_run_at if following > now else table.latest(now)
        first = self._settle_pause(books, table, first, now)
        first = self._settle_stale(books, table, first, now)
        if first is not None:
            self._settle_missed(books, table, first, max(newest or first, first), now, probing)
        if books.probe:
            probing.add(schedule.job_id)
        return Decision(
            schedule=schedule,
            next_run_at=following if following > now else table.next(now),
            ticks=tuple(books.ticks),
            cancel_running=books.stop_running,
            probe=books.probe,
        )

    def _undisputed(self, schedule: DueSchedule, due_at: datetime, now: datetime) -> bool:
        """Whether the one tick that is due runs, whatever the schedule's policies are. Nearly always."""
        late = now - due_at
        return (
            late < self._late_after
            and late.total_seconds() <= schedule.skip_if_older_than_seconds
            and (schedule.paused_at is None or schedule.resumed_at is None)
            and (schedule.concurrency_limit == 0 or schedule.held + schedule.waiting < schedule.concurrency_limit)
            and not schedule.job_limited
            and schedule.breaker == "closed"
        )

    def _just(self, due_at: datetime) -> tuple[Tick, ...]:
        if not self._ready or self._ready[0].due_at != due_at:
            self._ready = (Tick(due_at=due_at, key=tick_key(due_at), place="ready"),)
        return self._ready

    def _settle_pause(self, books: _Books, table: Timetable, first: datetime | None, now: datetime) -> datetime | None:
        """Ticks that fell into a pause never run. Returns the first one after it that is due."""
        paused, resumed = books.schedule.paused_at, books.schedule.resumed_at
        if first is None or paused is None or resumed is None:
            return first
        start = first if first >= paused else _between(table, paused - _INSTANT, resumed - _INSTANT)
        last = table.latest(resumed - _INSTANT)
        if start is None or last is None or start > last:
            return first
        if first < start:
            # Overdue before the pause began: too late for those, whatever `catch_up` says.
            books.miss(table, first, _last_before(table, start, first), "catch_up")
        books.miss(table, start, last, "paused")
        return _between(table, last, now)

    def _settle_stale(self, books: _Books, table: Timetable, first: datetime | None, now: datetime) -> datetime | None:
        horizon = now - timedelta(seconds=books.schedule.skip_if_older_than_seconds)
        if first is None or first >= horizon:
            return first
        last = table.latest(horizon - _INSTANT)
        if last is None or last < first:
            last = first
        books.miss(table, first, last, "stale")
        return _between(table, last, now)

    def _settle_missed(
        self, books: _Books, table: Timetable, first: datetime, newest: datetime, now: datetime, probing: set[str]
    ) -> None:
        catch_up = books.schedule.catch_up
        if catch_up == "all":
            self._run_all(books, table, first, newest, now, probing)
            return
        if first < newest:
            books.miss(table, first, _last_before(table, newest, first), "catch_up")
        if catch_up == "skip" and now - newest >= self._late_after:
            books.skip(newest, "catch_up")
        else:
            self._run(books, newest, now, probing, in_turn=False)

    def _run_all(
        self,
        books: _Books,
        table: Timetable,
        first: datetime,
        newest: datetime,
        now: datetime,
        probing: set[str],
    ) -> None:
        """Each missed tick, oldest first; of more than `catch_up_limit` the newest."""
        limit = books.schedule.catch_up_limit
        kept = [newest]
        while len(kept) < limit and kept[-1] > first:
            before = table.latest(kept[-1] - _INSTANT)
            if before is None or before < first:
                break
            kept.append(before)
        kept.reverse()
        if kept[0] > first:
            books.miss(table, first, _last_before(table, kept[0], first), "catch_up")
        for due_at in kept:
            self._run(books, due_at, now, probing, in_turn=len(kept) > 1)

    def _run(self, books: _Books, due_at: datetime, now: datetime, probing: set[str], *, in_turn: bool) -> None:
        """One tick that should run: unless the breaker is open, or the schedule has its hands full."""
        schedule = books.schedule
        if schedule.breaker != "closed":
            retry_at = schedule.breaker_retry_at
            if schedule.job_id in probing or books.probe or (retry_at is not None and now < retry_at):
                books.skip(due_at, "circuit_open")
                return
        limit, taken = schedule.concurrency_limit, books.held + books.waiting
        if limit == 0 or taken < limit:
            books.run(due_at, "ready")
        elif in_turn or schedule.overlap == "queue":
            books.run(due_at, "waiting")
        elif schedule.overlap == "skip" or books.waiting > 0:
            books.skip(due_at, "overlap")
        else:
            books.stop_running = schedule.overlap == "cancel"
            books.run(due_at, "waiting")


def _between(table: Timetable, after: datetime, until: datetime) -> datetime | None:
    """The first tick in (after, until]."""
    tick = table.next(after)
    return tick if tick <= until else None


def _last_before(table: Timetable, before: datetime, first: datetime) -> datetime:
    """The newest tick before `before`, not before `first` (which an operator may have set off the timetable)."""
    return max(table.latest(before - _INSTANT) or first, first)
