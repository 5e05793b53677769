"""Lanes: where claimed runs execute. Async handlers share the event loop, plain functions have threads.

Workers of a lane live long: a task or a thread per run would cost more than most runs do.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from rota.attempt import Attempt

_YIELD_EVERY = 200
_MOST_AHEAD = 2000
_AHEAD_SECONDS = 0.04
_HIRE_AGAIN = 1.0


class Lane(ABC):
    """A number of places, and a queue before them that is as long as 40 ms of work."""

    def __init__(self, jobs: Sequence[str], places: int) -> None:
        self.jobs, self._places = list(jobs), places
        self.queue: deque[Attempt] = deque()
        self.held = 0
        """Runs that were submitted and have not come back."""
        self.done = 0
        """Runs that came back since it last learnt."""
        self._ahead = 0
        self._busy, self._since = 0.0, 0.0
        self.asked = 0
        """So many are being claimed,"""
        self.kept = 0
        """and so many places are kept for ticks that are about to be made."""

    def room(self) -> int:
        """How many runs to claim now: none while the queue is more than half full."""
        most = self._places + self._ahead
        return most - self.held if self.held < self._places or self.held * 2 < most else 0

    def room_beside(self, others: int) -> int:
        """The same while so many may still come from elsewhere. What is gone in a moment may come from both sides."""
        room = self.room()
        return max(room - others, min(room, self._ahead))

    def learn(self) -> None:
        """Claim ahead only what is gone in a moment, so that nobody else could have run it sooner.

        By what was done while there was something to do; but a few quick ones say little of the next.
        """
        now = time.monotonic()
        if self.held:
            self._busy, self._since = self._busy + now - self._since, now
        done, busy = self.done, max(self._busy, 1e-6)
        self.done, self._busy = 0, 0.0
        self._ahead = min(_MOST_AHEAD, int(done / busy * _AHEAD_SECONDS), 2 * done) if self._places > 1 else 0

    def _entered(self, count: int) -> None:
        if not self.held:
            self._since = time.monotonic()
        self.held += count

    def _left(self, count: int) -> None:
        self.held -= count
        if count and not self.held:
            self._busy += time.monotonic() - self._since

    def take_queued(self) -> list[Attempt]:
        """Give back what has not started."""
        taken = []
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self.queue.popleft())
        self._left(len(taken))
        return taken

    @abstractmethod
    def submit(self, attempts: Sequence[Attempt]) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...


class AsyncLane(Lane):
    """Long-lived tasks on the running loop."""

    def __init__(
        self, jobs: Sequence[str], places: int, execute: Callable[[Attempt, asyncio.Task[None]], Awaitable[None]]
    ) -> None:
        super().__init__(jobs, places)
        self._execute = execute
        self._closed = False
        self._idle: list[asyncio.Future[None]] = []
        self._workers: set[asyncio.Task[None]] = set()
        # Tasks inherit the context they are made in; each begins with the one that the lane was made in.
        self._context = contextvars.copy_context()

    def submit(self, attempts: Sequence[Attempt]) -> None:
        self._entered(len(attempts))
        self.queue.extend(attempts)
        for _ in attempts:
            while self._idle:
                waiter = self._idle.pop()
                if not waiter.done():
                    waiter.set_result(None)
                    break
            else:
                if len(self._workers) >= self._places:
                    return
                self._hire()

    def _hire(self) -> None:
        task = asyncio.get_running_loop().create_task(self._work(), context=self._context.copy())
        self._workers.add(task)
        task.add_done_callback(self._gone)

    def _gone(self, task: asyncio.Task[None]) -> None:
        self._workers.discard(task)
        # A handler may have cancelled the task that it ran on; what waits behind it has another one.
        if self.queue and not self._closed and len(self._workers) < self._places:
            self._hire()

    async def _work(self) -> None:
        clean, since_yield = contextvars.copy_context(), 0
        task = asyncio.current_task()
        assert task is not None
        while True:
            if not self.queue:
                waiter = asyncio.get_running_loop().create_future()
                self._idle.append(waiter)
                await waiter
                since_yield = 0
                continue
            attempt = self.queue.popleft()
            try:
                await self._execute(attempt, task)
            finally:
                self._left(1)
                self.done += 1
            try:
                left = contextvars.copy_context() != clean
            except Exception:  # of values that are not the same, and cannot be compared
                left = True
            if left:
                # The handler left context variables behind; they must not reach the next run.
                self._hire()
                return
            since_yield += 1
            if since_yield >= _YIELD_EVERY:
                since_yield = 0
                await asyncio.sleep(0)

    async def close(self) -> None:
        self._closed = True
        workers = list(self._workers)
        for worker in workers:
            worker.cancel()
        if workers:
            await asyncio.wait(workers, timeout=1.0)


class ThreadLane(Lane):
    """Long-lived daemon threads that help themselves from the queue; what they have done is taken in batches."""

    def __init__(
        self,
        jobs: Sequence[str],
        places: int,
        execute: Callable[[Attempt], Any],
        settle: Callable[[Attempt, Any], None],
        failed: Callable[[Exception], None],
    ) -> None:
        super().__init__(jobs, places)
        self._execute, self._settle, self._failed = execute, settle, failed
        self._work_there = threading.Condition()
        self._parked = 0
        self._refused = False
        """The system had no thread for us just now; runs that end meanwhile do not ask for one each."""
        self._closed = False
        self._done: deque[tuple[Attempt, Any]] = deque()
        self._drain_due = False
        self._loop = asyncio.get_running_loop()
        self._threads: list[threading.Thread] = []

    def submit(self, attempts: Sequence[Attempt]) -> None:
        self._entered(len(attempts))
        with self._work_there:
            self.queue.extend(attempts)
            self._work_there.notify(len(attempts))
        self._hire()

    def _hire(self) -> None:
        """One more thread, if there is work for it. It sees to the next one itself: where others compute, to start many
        takes long, and nobody else should wait for it."""
        with self._work_there:
            if self._closed or self._refused or len(self.queue) <= self._parked or len(self._threads) >= self._places:
                return
            thread = threading.Thread(target=self._work, name=f"rota-job-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
        try:
            thread.start()
        except RuntimeError as error:  # the system has no more of them, for now
            self._threads.remove(thread)
            self._refused = True
            self._failed(error)
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._loop.call_later, _HIRE_AGAIN, self._hire_again)

    def _hire_again(self) -> None:
        self._refused = False
        self._hire()

    def _next(self) -> Attempt | None:
        """The next one to run; waits for it. None when the lane is closed."""
        while not self._closed:
            try:
                return self.queue.popleft()
            except IndexError:
                with self._work_there:
                    self._parked += 1
                    while not self.queue and not self._closed:
                        self._work_there.wait()
                    self._parked -= 1
        return None

    def _work(self) -> None:
        while (attempt := self._next()) is not None:
            if self.queue and len(self._threads) < self._places:
                self._hire()
            outcome = contextvars.Context().run(self._execute, attempt)
            self._done.append((attempt, outcome))
            if not self._drain_due:
                # Two threads may both come here; the second call finds nothing to do.
                self._drain_due = True
                try:
                    self._loop.call_soon_threadsafe(self._drain)
                except RuntimeError:
                    return

    def _drain(self) -> None:
        # First the flag, then the queue: what is added from now on asks for another call.
        self._drain_due = False
        while self._done:
            attempt, outcome = self._done.popleft()
            self._left(1)
            self.done += 1
            self._settle(attempt, outcome)

    async def close(self) -> None:
        with self._work_there:
            self._closed = True
            self._work_there.notify_all()
