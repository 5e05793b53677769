"""Worker: ready runs become outcomes.

It claims ahead on one connection while it finishes on another, both in batches; places that are free it offers to the
scheduler of the same replica, whose ticks then start as they are made. Nothing is claimed while this replica does not
trust itself. A claim whose reply was lost is asked for again under the same token; an outcome is sent until the store
has answered. Stopping: claim no more, give back what has not started, wait, cancel, record, then leave.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeAlias

from rota.attempt import Attempt, StopReason
from rota.context import Context, Member, _current
from rota.contract.places import Places
from rota.errors import BadInput, Permanent, RotaError, RunLost, StoreUnavailable
from rota.events import AttemptFailed, Event, RunFinished, RunTakenOver, ServiceFailed, ThreadAbandoned
from rota.job import Job
from rota.lane import AsyncLane, Lane, ThreadLane
from rota.offer import Offer
from rota.reserve import Reserve
from rota.service import Wake
from rota.settings import Settings
from rota.store import Claim, Finished, Outcome, Store

Span: TypeAlias = Callable[[Context], AbstractContextManager[object]]
"""What is put around each attempt, by whoever traces."""

_BATCH = 1000
_PROGRESS_EVERY = 0.5
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
        # Chosen once: who does not trace pays nothing for it.
        self._invoke: Callable[[Attempt], Any] = _invoke if span is None else partial(_invoke_in_span, span)
        self._loop = asyncio.get_running_loop()
        self._attempts: dict[int, Attempt] = {}
        self._open_claims: Counter[int] = Counter()
        self._outbox: list[Outcome] = []
        self._used_up: list[int] = []
        self._progress: dict[int, tuple[int, int, str]] = {}
        self._deadlines: list[tuple[float, int, Attempt]] = []
        self._stopping = False
        self._hungry, self._to_flush, self._deadline_set, self._idle = Wake(), Wake(), Wake(), asyncio.Event()
        self._news = True
        """Somebody says that there may be something to claim."""
        self._starved = False
        """There is, but no room for it."""
        names = {
            True: [n for n, j in jobs.items() if j.is_async],
            False: [n for n, j in jobs.items() if not j.is_async],
        }
        self.lanes: list[Lane] = [
            AsyncLane(names[True], settings.concurrency, self._execute_async),
            ThreadLane(names[False], settings.threads, self._execute_plain, self._settle),
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
        loops = (self._claim_loop, self._flush_loop, self._watch_loop)
        self._tasks = [asyncio.create_task(loop(), name=f"rota-worker-{loop.__name__}") for loop in loops]

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
                while self._outbox or self._used_up:
                    await self._flush()
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
            for lane in self.lanes:
                room, replica_id = min(lane.room_beside(lane.kept), _BATCH), self._standing()
                if lane.more and room and replica_id and not self._stopping:
                    lane.asked = room
                    lane.more = await self._claim(lane, replica_id, room) == room
                    lane.asked = 0
                    again = again or lane.more
                    if not lane.more:
                        await asyncio.sleep(0)  # what was taken starts before the next lane's claim is sent
            if not again:
                self._starved = any(lane.more for lane in self.lanes)
                await self._hungry.wait()

    async def _claim(self, lane: Lane, replica_id: int, room: int) -> int:
        token = secrets.randbits(63)
        claims = await self._insist(replica_id, lambda: self._store.claim_runs(replica_id, token, lane.jobs, room))
        if not claims or not await self._still(replica_id):
            return 0
        self._submit(replica_id, token, claims)
        return len(claims)

    async def _insist(self, replica_id: int, ask: Callable[[], Awaitable[list[Claim]]]) -> list[Claim]:
        """Whatever goes wrong, this replica goes on asking under the same token, as long as it is the same one."""
        pause = 0.05
        while True:
            try:
                return await ask()
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
        member, attempts = Member(replica_id, self._settings.replica), dict[Lane, list[Attempt]]()
        for claim in claims:
            attempt = Attempt(claim, self._jobs[claim.job_id], member, self._take_progress)
            self._attempts[claim.id] = attempt
            attempts.setdefault(self._lane_of[claim.job_id], []).append(attempt)
        for lane, mine in attempts.items():
            if not self._stopping:
                lane.submit(mine)
                continue
            for attempt in mine:
                self._settle(attempt, attempt.given_back())

    # -- offering ----------------------------------------------------------------------------------

    def _make(self, offer: Offer) -> None:
        if (replica_id := self._standing()) and not self._stopping:
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
            claims = await self._insist(number, lambda: self._store.reclaim(number, token))
        if claims and await self._still(number):
            self._submit(number, token, claims)

    def _filled(self, task: asyncio.Task[None]) -> None:
        self._filling.discard(task)
        self._idle.set()

    def _look_again(self) -> None:
        if self._starved:
            self._hungry.set_here()

    # -- executing ---------------------------------------------------------------------------------

    async def _execute_async(self, attempt: Attempt, task: asyncio.Task[None]) -> None:
        attempt.task = task
        token = _current.set(attempt.context)
        outcome: Outcome | None
        try:
            if attempt.stop_reason is not None:
                outcome = attempt.stopped()
            else:
                policies = attempt.job.policies
                if attempt.claim.losses >= self._settings.max_losses:
                    raise _lost_too_often(attempt.claim)
                if policies.timeout is not None:
                    self._set_deadline(attempt, policies.timeout)
                if policies.transactional:
                    outcome = await self._run_in_transaction(attempt)
                else:
                    outcome = attempt.succeeded(await self._invoke(attempt))
        except asyncio.CancelledError as error:
            if attempt.stop_reason is None and task.cancelling():
                raise
            outcome = self._ended_by(attempt, error)
        except (Exception, SystemExit) as error:
            outcome = self._ended_by(attempt, error)
        finally:
            attempt.task = None
            _current.reset(token)
            # A cancellation that the handler swallowed, or that came too late, is not meant for the next run.
            while attempt.stop_reason is not None and task.cancelling():
                task.uncancel()
        self._settle(attempt, outcome)

    @staticmethod
    def _ended_by(attempt: Attempt, error: BaseException) -> Outcome | None:
        """One that was asked to stop has stopped, whatever it made of that."""
        if attempt.stop_reason is None or (attempt.stop_reason == "timeout" and isinstance(error, Exception)):
            return attempt.failed(error)
        return attempt.stopped()

    def _set_deadline(self, attempt: Attempt, timeout: float) -> None:
        if attempt.settled:
            return
        if len(self._deadlines) > 2 * len(self._attempts) + 100:
            self._deadlines = [entry for entry in self._deadlines if not entry[2].settled]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (time.monotonic() + timeout, attempt.claim.id, attempt))
        if self._deadlines[0][2] is attempt:
            self._deadline_set.set()

    async def _run_in_transaction(self, attempt: Attempt) -> Outcome | None:
        """The handler's writes and the completion commit together, or not at all."""
        own: BaseException | None = None
        try:
            async with self._store.transaction(attempt.claim) as (connection, finish):
                attempt.context.connection = connection
                try:
                    outcome = attempt.succeeded(await self._invoke(attempt))
                except BaseException as error:
                    own = error
                    raise
                if outcome.state != "succeeded":
                    raise Permanent(outcome.error or "the result could not be stored")
                await finish(outcome)
        except RunLost:
            attempt.stop_reason = "lost"
        except StoreUnavailable as error:
            if error is own:
                raise
            # The transaction broke, not the handler. If it was committed all the same, this is refused as already done;
            # if not, nothing of it remains, and it is started again.
            return attempt.given_back()
        return None

    def _execute_plain(self, attempt: Attempt) -> Outcome | None:
        """On a thread of the lane, in a context of its own."""
        _current.set(attempt.context)
        try:
            if attempt.stop_reason is not None:
                return attempt.stopped()
            if attempt.claim.losses >= self._settings.max_losses:
                raise _lost_too_often(attempt.claim)
            if (timeout := attempt.job.policies.timeout) is not None:
                self._call(partial(self._set_deadline, attempt, timeout))
            return attempt.succeeded(self._invoke(attempt))
        except BaseException as error:  # also SystemExit: the thread is the lane's, not the function's
            return self._ended_by(attempt, error)

    # -- settling ----------------------------------------------------------------------------------

    def _settle(self, attempt: Attempt, outcome: Outcome | None) -> None:
        """Take the outcome down, once; on the loop."""
        if attempt.settled:
            return
        attempt.settled = True
        claim = attempt.claim
        if self._attempts.get(claim.id) is attempt:
            del self._attempts[claim.id]
        if attempt.stop_reason == "lost":
            outcome = None
        if outcome is not None:
            self._outbox.append(outcome)
        elif claim.slot:
            self._slot_freed()
        self._open_claims[claim.token] -= 1
        if not self._open_claims[claim.token]:
            del self._open_claims[claim.token]
            # One claimed under a number that was struck off is all that is left to find its runs by.
            if attempt.stop_reason != "lost":
                self._used_up.append(claim.token)
        if self._verbose:
            state = outcome.state if outcome else "succeeded" if attempt.stop_reason != "lost" else "lost"
            seconds = time.monotonic() - attempt.started
            error = outcome.error if outcome else None
            self._emit(RunFinished(claim.id, claim.job_id, state, claim.attempt, seconds, error))
        if outcome is not None and outcome.error is not None and outcome.state != "cancelled":
            pause = outcome.delay if outcome.state == "queued" else None
            self._emit(AttemptFailed(claim.id, claim.job_id, claim.attempt, outcome.error, pause))
        if outcome is None or len(self._outbox) == 1:  # what comes behind others goes with them
            self._to_flush.set_here()
        self._look_again()
        if not self._attempts:
            self._idle.set()

    async def _flush_loop(self) -> None:
        pause = 0.05
        while True:
            await self._to_flush.wait(1.0 if not self._progress else _PROGRESS_EVERY)
            try:
                await self._flush()
                pause = 0.05
            except Exception as error:  # an outcome is never given up
                self._emit(ServiceFailed("flusher", error))
                await asyncio.sleep(pause)
                pause = min(pause * 2, 2.0)
                self._to_flush.set_here()
            self._learn()  # also that nothing was done

    async def _flush(self) -> None:
        """Send what is in the outbox; it leaves it only when the store has answered."""
        while self._outbox or self._used_up:
            batch, used_up = self._outbox[:_BATCH], self._used_up[:]
            if len(self._outbox) > _BATCH:
                used_up = []
            finished = await self._send(batch, used_up)
            del self._outbox[: len(batch)], self._used_up[: len(used_up)]
            for run_id in finished.lost:
                self._emit(RunTakenOver(run_id))
            if finished.freed or any(o.state == "queued" or o.then for o in batch):
                self._slot_freed()
            self._finished()
            self._learn()
        if self._progress:
            reports, self._progress = list(self._progress.values()), {}
            await self._store.report_progress(reports)

    def _learn(self) -> None:
        now = time.monotonic()
        passed = now - self._learnt_at
        # Many runs tell sooner how long they take: a backlog is not taken in small bites for long.
        if passed > 0.1 or (passed > 0.01 and any(lane.done >= _BATCH for lane in self.lanes)):
            for lane in self.lanes:
                lane.learn()
            self._learnt_at = now

    async def _send(self, batch: list[Outcome], used_up: list[int]) -> Finished:
        try:
            return await self._store.finish_runs(batch, used_up)
        except BadInput as error:
            # One of them cannot be stored. It must not keep the others: it fails, with the reason.
            if len(batch) == 1:
                replaced = Outcome(id=batch[0].id, token=batch[0].token, slot=batch[0].slot, state="failed",
                                   error=f"the outcome could not be stored: {error!a}")  # fmt: skip
                return await self._store.finish_runs([replaced], used_up)
        parts = [await self._send([outcome], []) for outcome in batch]
        await self._store.finish_runs([], used_up)
        return Finished(
            accepted=frozenset().union(*(part.accepted for part in parts)),
            lost=tuple(run_id for part in parts for run_id in part.lost),
            freed=any(part.freed for part in parts),
        )

    def _take_progress(self, claim: Claim, report: str) -> None:
        self._progress[claim.id] = (claim.id, claim.token, report)

    # -- deadlines ---------------------------------------------------------------------------------

    async def _watch_loop(self) -> None:
        """One sweeper for all deadlines; a timer per run would cost more than most runs do."""
        while True:
            now = time.monotonic()
            while self._deadlines and self._deadlines[0][0] <= now:
                attempt = heapq.heappop(self._deadlines)[2]
                if not attempt.settled:
                    self._time_out(attempt)
            await self._deadline_set.wait(self._deadlines[0][0] - now if self._deadlines else None)

    def _time_out(self, attempt: Attempt) -> None:
        attempt.stop("timeout")
        if not attempt.job.is_async:
            # A thread cannot be stopped. The run is settled now; what the function returns later goes nowhere.
            self._emit(ThreadAbandoned(attempt.claim.id, attempt.claim.job_id))
            self._settle(attempt, attempt.stopped())


def _invoke(attempt: Attempt) -> Any:
    arguments = attempt.job.arguments
    values = arguments.decode(attempt.claim.parameters)
    return attempt.job.fn(attempt.context, **values) if arguments.wants_context else attempt.job.fn(**values)


def _invoke_in_span(span: Span, attempt: Attempt) -> Any:
    if attempt.job.is_async:
        return _await_in_span(span, attempt)
    with span(attempt.context):
        return _invoke(attempt)


async def _await_in_span(span: Span, attempt: Attempt) -> Any:
    with span(attempt.context):
        return await _invoke(attempt)


def _lost_too_often(claim: Claim) -> Permanent:
    return Permanent(f"run {claim.id} was lost with its replica {claim.losses} times; it is not tried again")
