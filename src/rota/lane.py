"""Lanes: where claimed runs execute. Async handlers share the event loop, plain functions have threads.

Workers of a lane live long: a task or a thread per run would cost more than most runs do.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from queue import SimpleQueue
from typing import Any

from rota.attempt import Attempt

_YIELD_EVERY = 200
_MOST_AHEAD = 2000
_AHEAD_SECONDS = 0.04


class Lane(ABC):
    """A number of places, and a queue before them that is as long as 20 ms of work."""

    def __init__(self, jobs: Sequence[str], places: int) -> None:
        self.jobs, self._places = list(jobs), places
        self.queue: deque[Attempt] = deque()
        self.active = 0
        self._ahead = 0
        self._done_since = 0
        self.more = False
        """The last look may have left something behind: claim again as soon as there is room."""

    def room(self) -> int:
        """How many runs to claim now: none while the queue is more than half full."""
        held = self.active + len(self.queue)
        most = self._places + self._ahead
        return most - held if held < self._places or held * 2 < most else 0

    def learn(self, seconds: float) -> None:
        """Claim ahead only what is gone in a moment, so that nobody else could have run it sooner."""
        done, self._done_since = self._done_since, 0
        self._ahead = min(_MOST_AHEAD, int(done / seconds * _AHEAD_SECONDS)) if self._places > 1 else 0

    def take_queued(self) -> list[Attempt]:
        """Give back what has not started."""
        taken = list(self.queue)
        self.queue.clear()
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
        self._idle: list[asyncio.Future[None]] = []
        self._workers: set[asyncio.Task[None]] = set()
        # Tasks inherit the context they are made in; each begins with the one that the lane was made in.
        self._context = contextvars.copy_context()

    def submit(self, attempts: Sequence[Attempt]) -> None:
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
        task.add_done_callback(self._workers.discard)

    async def _work(self) -> None:
        clean, since_yield = len(contextvars.copy_context()), 0
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
            self.active += 1
            try:
                await self._execute(attempt, task)
            finally:
                self.active -= 1
                self._done_since += 1
            if len(contextvars.copy_context()) != clean:
                # The handler left context variables behind; they must not reach the next run.
                self._hire()
                return
            since_yield += 1
            if since_yield >= _YIELD_EVERY:
                since_yield = 0
                await asyncio.sleep(0)

    async def close(self) -> None:
        workers = list(self._workers)
        for worker in workers:
            worker.cancel()
        if workers:
            await asyncio.wait(workers, timeout=1.0)


class ThreadLane(Lane):
    """Long-lived daemon threads, fed one by one, drained in batches."""

    def __init__(
        self,
        jobs: Sequence[str],
        places: int,
        execute: Callable[[Attempt], Any],
        settle: Callable[[Attempt, Any], None],
    ) -> None:
        super().__init__(jobs, places)
        self._execute, self._settle = execute, settle
        self._inbox: SimpleQueue[Attempt | None] = SimpleQueue()
        self._done: deque[tuple[Attempt, Any]] = deque()
        self._draining = threading.Lock()
        self._drain_due = False
        self._loop = asyncio.get_running_loop()
        self._threads: list[threading.Thread] = []

    def submit(self, attempts: Sequence[Attempt]) -> None:
        self.queue.extend(attempts)
        self._feed()

    def _feed(self) -> None:
        while self.queue and self.active < self._places:
            self.active += 1
            if len(self._threads) < self.active:
                thread = threading.Thread(target=self._work, name=f"rota-job-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._inbox.put(self.queue.popleft())

    def _work(self) -> None:
        while (attempt := self._inbox.get()) is not None:
            outcome = contextvars.Context().run(self._execute, attempt)
            self._done.append((attempt, outcome))
            with self._draining:
                due, self._drain_due = self._drain_due, True
            if not due:
                try:
                    self._loop.call_soon_threadsafe(self._drain)
                except RuntimeError:
                    return

    def _drain(self) -> None:
        with self._draining:
            self._drain_due = False
        while self._done:
            attempt, outcome = self._done.popleft()
            self.active -= 1
            self._done_since += 1
            self._settle(attempt, outcome)
        self._feed()

    async def close(self) -> None:
        for _ in self._threads:
            self._inbox.put(None)
