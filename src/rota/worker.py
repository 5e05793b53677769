"""Worker: ready runs become outcomes.

It claims ahead on one connection while it finishes on another, both in batches; places that are free it offers to the
scheduler of the same replica, whose ticks then start as they are made. Nothing is claimed while this replica does not
trust itself. A claim whose reply was lost is asked about by its token; an outcome is sent until the store
has answered. Stopping: claim no more, give back what has not started, wait, cancel, record, then leave.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rota.attempt import Attempt, StopReason
from rota.context import Member
from rota.contract.places import Places
from rota.deadlines import Deadlines
from rota.errors import RotaError
from rota.events import AttemptFailed, Event, RunFinished, ServiceFailed, ThreadAbandoned
from rota.execution import Execution, Span
from rota.job import Job
from rota.lane import BUSY, AsyncLane, Lane, ThreadLane
from rota.offer import Offer
from rota.outbox import Outbox
from rota.reserve import Reserve
from rota.service import Wake
from rota.settings import Settings
from rota.store import Claim, Claimed, Outcome, Store

_BATCH, _MANY = 1000, 200
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
        emit: Callable[[Event], None],
        wanted: Callable[[type[Event]], bool],
        span: Span | None = None,
    ) -> None:
        self._store, self._settings, self._jobs = store, settings, jobs
        self._standing = standing
        """This replica's number while it trusts itself, else 0."""
        self._slot_freed, self._finished, self._emit = slot_freed, finished, emit
        self._wanted, self._verbose = wanted, False
        self._loop = asyncio.get_running_loop()
        self._attempts: dict[int, Attempt] = {}
        self._open_claims: Counter[int] = Counter()
        self._outbox = Outbox(store, emit, slot_freed=slot_freed, sent=self._sent, looked=self._learn)
        self._deadlines = Deadlines(self._time_out)
        self._stopping = False
        self._hungry, self._idle = Wake(), asyncio.Event()
        self._news = True
        """Somebody says that there may be something to claim."""
        self._starved = False
        """There is, but no room for it."""
        self._soon: asyncio.TimerHandle | None = None
        """Somebody looks at what others have hold of, in a moment."""
        names = {
            True: [n for n, j in jobs.items() if j.is_async],
            False: [n for n, j in jobs.items() if not j.is_async],
        }
        self._execution = Execution(
            store, max_losses=settings.max_losses, span=span, deadline=self._deadlines.set, settle=self._settle
        )
        self.lanes: list[Lane] = [
            AsyncLane(names[True], settings.concurrency, self._execution.on_task),
            ThreadLane(names[False], settings.threads, self._execution.on_thread, self._settle),
        ]
        self._lane_of = {job: lane for lane in self.lanes for job in lane.jobs}
        self._reserve = Reserve(self.lanes, self._look_again)
        self._tasks: list[asyncio.Task[None]] = []
        self._filling: set[asyncio.Task[None]] = set()
        self._learnt_at = time.monotonic()

    # -- what others ask of it; from any thread ----------------------------------------------------

    @property
    def holding(self) -> bool:
        return bool(self._attempts)

    def wake(self) -> None:
        self._news = True
        self._hungry.set()

    def finished_somewhere(self) -> None:
        self._call(self._finished)

    def room(self) -> int:
        return sum(lane.room() for lane in self.lanes)

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
        loops = {"claim": self._claim_loop, "outbox": self._outbox.run, "deadlines": self._deadlines.run}
        self._tasks = [asyncio.create_task(loop(), name=f"rota-worker-{name}") for name, loop in loops.items()]

    async def stop(self) -> None:
        if not self._tasks:
            return
        claimer, flusher, watcher = self._tasks
        # A claim that is under way comes to its end: cut off, its runs would be nobody's, and count an attempt.
        self._stopping = True
        self._hungry.set_here()
        await asyncio.wait([claimer], timeout=_GRACE)
        claimer.cancel()
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

    # -- claiming ----------------------------------------------------------------------------------

    async def _claim_loop(self) -> None:
        while not self._stopping:
            again = False
            if self._news:
                self._news = False
                for lane in self.lanes:
                    lane.more = bool(lane.jobs)
            self._learn()
            for lane in self.lanes:
                room, replica_id = min(lane.room_beside(lane.kept), _BATCH), self._standing()
                if lane.more and room and replica_id and not (self._stopping or self._outbox.full):
                    lane.asked = room
                    lane.more = (await self._claim(lane, replica_id, room)).more
                    lane.asked = 0
                    again = again or lane.more
                    if not lane.more:
                        await asyncio.sleep(0)  # what was taken starts before the next lane's claim is sent
            if not again:
                self._starved = any(lane.more for lane in self.lanes)
                await self._hungry.wait()

    async def _claim(self, lane: Lane, replica_id: int, room: int) -> Claimed:
        """What was claimed, and is submitted."""
        token = secrets.randbits(63)
        try:
            claimed = await self._store.claim_runs(replica_id, token, lane.jobs, room)
        except Exception as error:
            self._emit(ServiceFailed("claimer", error))
            claims = await self._reclaim(replica_id, token)
            claimed = Claimed(claims=claims, more=len(claims) == room)
        self._look_soon(lane, busy=claimed.busy)
        if claimed.claims and not await self._still(replica_id):
            return Claimed(claims=[])
        if claimed.claims:
            self._submit(replica_id, token, claimed.claims)
        return claimed

    def _look_soon(self, lane: Lane, *, busy: bool) -> None:
        """What others leave, they tell nobody of."""
        if busy and self._soon is None:
            self._soon = self._loop.call_later(lane.pause, self._look_now)
        lane.pause = min(2 * lane.pause, BUSY[1]) if busy else BUSY[0]

    def _look_now(self) -> None:
        self._soon = None
        self.wake()

    async def _reclaim(self, replica_id: int, token: int) -> list[Claim]:
        """Whatever goes wrong, ask what was claimed under this token, as long as this is the same replica."""
        pause = 0.05
        while True:
            try:
                return await self._store.reclaim(replica_id, token)
            except Exception as error:
                self._emit(ServiceFailed("claimer", error))
                await asyncio.sleep(pause)
                pause = min(pause * 2, 2.0)
                if not await self._still(replica_id) or self._stopping:
                    return []  # what this incarnation may have claimed is freed with it

    async def _still(self, replica_id: int) -> bool:
        """Whether this is still the replica that it was: a reply may have waited for us while we were frozen."""
        while not (standing := self._standing()) and not self._stopping:
            await asyncio.sleep(0.1)
        return standing == replica_id

    def _submit(self, replica_id: int, token: int, claims: Sequence[Claim]) -> None:
        self._verbose, self._open_claims[token] = self._wanted(RunFinished), len(claims)
        attempts = Attempt.begun(claims, self._jobs, Member(replica_id, self._settings.replica), self._outbox.report)
        self._attempts.update(zip([claim.id for claim in claims], attempts, strict=True))
        for lane in self.lanes:
            mine = [attempt for attempt in attempts if self._lane_of[attempt.claim.job_id] is lane]
            if mine and not self._stopping:
                lane.submit(mine)
                continue
            for attempt in mine:
                self._settle(attempt, attempt.given_back())

    # -- offering ----------------------------------------------------------------------------------

    def _make(self, offer: Offer) -> None:
        if (replica_id := self._standing()) and not (self._stopping or self._outbox.full):
            self._reserve.make(offer, replica_id)

    def _fill(self, offer: Offer, claims: Sequence[Claim] | None) -> None:
        places = self._reserve.close(offer)
        if claims is None and not offer.taken_up:
            claims = ()
        if places is not None and claims and self._standing() == places.replica_id:
            self._submit(places.replica_id, places.token, claims)
        elif places is not None and (claims or claims is None) and not self._stopping:
            task = asyncio.create_task(self._fill_late(places, claims), name="rota-worker-fill")
            self._filling.add(task)
            task.add_done_callback(self._filled)
        self._idle.set()

    async def _fill_late(self, places: Places, claims: Sequence[Claim] | None) -> None:
        number, token = places.replica_id, places.token
        if claims is None:
            claims = await self._reclaim(number, token)
        if claims and await self._still(number):
            self._submit(number, token, claims)

    def _filled(self, task: asyncio.Task[None]) -> None:
        self._filling.discard(task)
        self._idle.set()

    def _look_again(self) -> None:
        if self._starved:
            self._hungry.set_here()

    # -- settling ----------------------------------------------------------------------------------

    def _settle(self, attempt: Attempt, outcome: Outcome | None) -> None:
        """Take the outcome down, once; on the loop."""
        if attempt.settled:
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
        self._learn()
        self._look_again()

    def _learn(self) -> None:
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
