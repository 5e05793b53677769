"""Worker: ready runs become outcomes.

It claims ahead, async handlers and plain functions apart, while it finishes on another connection, all in batches.
Places that are free it offers to the scheduler of the same replica, whose ticks then start as they are made. Nothing is
claimed while this replica does not trust itself. A claim whose reply was lost is asked about by its token; an outcome
is sent until the store has answered. Stopping: claim no more, give back what has not started, wait, cancel, record,
then leave.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from rota.attempt import Attempt, StopReason
from rota.claimer import Claimer, Standing
from rota.context import Member
from rota.contract.places import Places
from rota.deadlines import Deadlines
from rota.errors import RotaError
from rota.events import AttemptFailed, Event, RunFinished, ServiceFailed, ThreadAbandoned
from rota.execution import Execution, Span
from rota.job import Job
from rota.lane import AsyncLane, Lane, ThreadLane
from rota.offer import Offer
from rota.outbox import Outbox
from rota.reserve import Reserve
from rota.settings import Settings
from rota.store import Claim, Outcome, Store

_MANY = 200
_GRACE = 5.0


class Worker:
    """Runs on the event loop of the handlers."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        jobs: Mapping[str, Job[..., Any]],
        *,
        standing: Callable[[], int],
        slot_freed: Callable[[], None],
        finished: Callable[[], None],
        tell: Callable[[], None],
        emit: Callable[[Event], None],
        wanted: Callable[[type[Event]], bool],
        span: Span | None = None,
    ) -> None:
        self._settings, self._jobs = settings, jobs
        self._standing = Standing(store, standing, emit)
        self._slot_freed, self._finished, self._tell, self._emit = slot_freed, finished, tell, emit
        self._wanted, self._verbose = wanted, False
        self._loop = asyncio.get_running_loop()
        self._attempts: dict[int, Attempt] = {}
        self._open_claims: Counter[int] = Counter()
        self._outbox = Outbox(
            store, emit, slot_freed=slot_freed, sent=self._sent, looked=self.learn, followed=self._followed
        )
        self._deadlines = Deadlines(self._time_out)
        self._idle = asyncio.Event()
        names = {
            True: [n for n, j in jobs.items() if j.is_async],
            False: [n for n, j in jobs.items() if not j.is_async],
        }
        self._execution = Execution(
            store, max_losses=settings.max_losses, span=span, deadline=self._deadlines.set, settle=self._settle
        )
        self.lanes: list[Lane] = [
            AsyncLane(names[True], settings.concurrency, self._execution.on_task),
            ThreadLane(
                names[False],
                settings.threads,
                self._execution.on_thread,
                self._settle,
                lambda error: emit(ServiceFailed("threads", error)),
            ),
        ]
        self._lane_of = {job: lane for lane in self.lanes for job in lane.jobs}
        self._claimers = [Claimer(lane, self._standing, self) for lane in self.lanes if lane.jobs]
        for each, then in pairwise(self._claimers):
            each.then = then
        self._reserve = Reserve(self.lanes, self._look_again)
        self._tasks: list[asyncio.Task[None]] = []
        self._filling: set[asyncio.Task[None]] = set()
        self._learnt_at = time.monotonic()

    @property
    def full(self) -> bool:
        return self._outbox.full

    # -- what others ask of it; from any thread ----------------------------------------------------

    @property
    def holding(self) -> bool:
        return bool(self._attempts)

    def wake(self) -> None:
        if self._claimers:
            self._claimers[0].wake()

    def finished_somewhere(self) -> None:
        self._call(self._finished)

    def room(self) -> int:
        """So many runs have a place here, of whatever kind they are."""
        return min((lane.room() for lane in self.lanes if lane.jobs), default=0)

    def running(self) -> tuple[tuple[int, str], ...]:
        return tuple((a.claim.id, a.claim.job_id) for a in list(self._attempts.values()))

    def cancel_runs(self, run_ids: Sequence[int]) -> None:
        self._call(lambda: self._stop([a for i in run_ids if (a := self._attempts.get(i))], "cancelled"))

    def drop_runs(self) -> tuple[int, ...]:
        """This replica was deposed: whatever it held is somebody else's now."""
        held = list(self._attempts.values())
        self._call(lambda: self._stop(held, "lost"))
        return tuple(attempt.claim.id for attempt in held)

    def offer(self, most: int) -> Offer:
        """Places for ticks that are about to be made."""
        offer = Offer(most)
        self._call(lambda: self._make(offer))
        return offer

    def fill(self, offer: Offer, claims: Sequence[Claim] | None) -> None:
        offer.close()
        self._call(lambda: self._fill(offer, claims))

    @staticmethod
    def _stop(attempts: Sequence[Attempt], reason: StopReason) -> None:
        for attempt in attempts:
            attempt.stop(reason)

    def _call(self, what: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(what)

    # -- life --------------------------------------------------------------------------------------

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._outbox.run(), name="rota-worker-outbox"),
            asyncio.create_task(self._deadlines.run(), name="rota-worker-deadlines"),
            *self._claiming(),
        ]

    def _claiming(self) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(claimer.run(), name="rota-worker-claim") for claimer in self._claimers]

    async def stop(self) -> None:
        if not self._tasks:
            return
        flusher, watcher, *claiming = self._tasks
        # A claim that is under way comes to its end: cut off, its runs would be nobody's, and count an attempt.
        self._standing.ending = True
        for claimer in self._claimers:
            claimer.look()
        if claiming:
            await asyncio.wait(claiming, timeout=_GRACE)
        for task in claiming:
            task.cancel()
        await self._wait_until(lambda: not self._reserve and not self._filling, _GRACE)
        for lane in self.lanes:
            for attempt in lane.take_queued():
                self._settle(attempt, attempt.given_back())
        await self._wait_idle(self._settings.shutdown_timeout)
        for attempt in list(self._attempts.values()):
            attempt.stop("shutdown")
        await self._wait_idle(_GRACE)
        watcher.cancel()
        flusher.cancel()
        await asyncio.wait([watcher, flusher], timeout=_GRACE)
        with contextlib.suppress(RotaError, TimeoutError):
            async with asyncio.timeout(_GRACE):
                await self._outbox.empty()
        for lane in self.lanes:
            await lane.close()

    async def _wait_idle(self, seconds: float) -> None:
        await self._wait_until(lambda: not self._attempts, seconds)

    async def _wait_until(self, over: Callable[[], bool], seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not over():
                    self._idle.clear()
                    await self._idle.wait()

    # -- beginning ---------------------------------------------------------------------------------

    def submit(self, replica_id: int, token: int, claims: Sequence[Claim]) -> None:
        self._verbose, self._open_claims[token] = self._wanted(RunFinished), len(claims)
        attempts = Attempt.begun(claims, self._jobs, Member(replica_id, self._settings.replica), self._outbox.report)
        self._attempts.update(zip([claim.id for claim in claims], attempts, strict=True))
        for lane in self.lanes:
            mine = [attempt for attempt in attempts if self._lane_of[attempt.claim.job_id] is lane]
            if mine and not self._standing.ending:
                lane.submit(mine)
                continue
            for attempt in mine:
                self._settle(attempt, attempt.given_back())

    # -- offering ----------------------------------------------------------------------------------

    def _make(self, offer: Offer) -> None:
        if (replica_id := self._standing.number()) and not (self._standing.ending or self.full):
            self._reserve.make(offer, replica_id)

    def _fill(self, offer: Offer, claims: Sequence[Claim] | None) -> None:
        places = self._reserve.close(offer)
        if claims is None and not offer.taken_up:
            claims = ()
        if places is not None and claims and self._standing.number() == places.replica_id:
            self.submit(places.replica_id, places.token, claims)
        elif places is not None and (claims or claims is None) and not self._standing.ending:
            task = asyncio.create_task(self._fill_late(places, claims), name="rota-worker-fill")
            self._filling.add(task)
            task.add_done_callback(self._filled)
        self._idle.set()

    async def _fill_late(self, places: Places, claims: Sequence[Claim] | None) -> None:
        number, token = places.replica_id, places.token
        if claims is None:
            claims = await self._standing.reclaim(number, token)
        if claims and await self._standing.still(number):
            self.submit(number, token, claims)

    def _filled(self, task: asyncio.Task[None]) -> None:
        self._filling.discard(task)
        self._idle.set()

    def _look_again(self) -> None:
        for claimer in self._claimers:
            if claimer.starved:
                claimer.look()

    # -- settling ----------------------------------------------------------------------------------

    def _settle(self, attempt: Attempt, outcome: Outcome | None) -> None:
        """Take the outcome down, once; on the loop."""
        if attempt.settled:
            self._look_again()  # a thread that was left alone has come back: its place is free
            return
        attempt.settled = True
        claim = attempt.claim
        if self._attempts.get(claim.id) is attempt:
            del self._attempts[claim.id]
        attempt.context._leave()
        if attempt.stop_reason == "lost":
            outcome = None
        if outcome is None and claim.slot:
            self._slot_freed()
        used_up = None
        self._open_claims[claim.token] -= 1
        if not self._open_claims[claim.token]:
            del self._open_claims[claim.token]
            # One claimed under a number that was struck off is all that is left to find its runs by.
            if attempt.stop_reason != "lost":
                used_up = claim.token
        self._outbox.put(outcome, used_up)
        if self._verbose:
            state = outcome.state if outcome else "succeeded" if attempt.stop_reason != "lost" else "lost"
            seconds = time.monotonic() - attempt.started
            error = outcome.error if outcome else None
            self._emit(RunFinished(claim.id, claim.job_id, state, claim.attempt, seconds, error))
        if outcome is not None and outcome.error is not None and outcome.state != "cancelled":
            pause = outcome.delay if outcome.state == "queued" else None
            self._emit(AttemptFailed(claim.id, claim.job_id, claim.attempt, outcome.error, pause))
        self._look_again()
        if not self._attempts:
            self._idle.set()

    def _sent(self) -> None:
        self._finished()
        self.learn()
        self._look_again()

    def _followed(self, count: int) -> None:
        """Outcomes made so many runs ready."""
        self.wake()
        if self.room() < count:
            self._tell()

    def learn(self) -> None:
        """How much the lanes do in a while, even if it is nothing."""
        now = time.monotonic()
        passed = now - self._learnt_at
        # Many runs tell sooner how long they take: a backlog is not taken in small bites for long.
        if passed > 0.1 or (passed > 0.01 and any(lane.done >= _MANY for lane in self.lanes)):
            for lane in self.lanes:
                lane.learn()
            self._learnt_at = now

    def _time_out(self, attempt: Attempt) -> None:
        attempt.stop("timeout")
        if not attempt.job.is_async:
            # A thread cannot be stopped. The run is settled now; what the function returns later goes nowhere.
            self._emit(ThreadAbandoned(attempt.claim.id, attempt.claim.job_id))
            self._settle(attempt, attempt.stopped())
