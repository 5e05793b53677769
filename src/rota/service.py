"""One loop shape for everything that goes on in the background: `async step() -> seconds until the next one`.

A step that fails is reported and tried again, later each time. A wake-up is a hint: it is never lost between two waits,
may come from any thread, and is never needed.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rota.errors import StoreUnavailable, StoreUnfit
from rota.events import Event, ServiceFailed

T = TypeVar("T")


class Wake:
    """A flag that survives until somebody waits for it. Belongs to the loop it is first awaited on."""

    def __init__(self) -> None:
        self._flag = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def set(self) -> None:
        """From any thread."""
        loop = self._loop
        if loop is None:
            self._flag.set()
            return
        try:
            loop.call_soon_threadsafe(self._flag.set)
        except RuntimeError:  # the loop has ended, and with it whoever could have waited
            return

    def set_here(self) -> None:
        """From the loop's own thread, without the detour."""
        self._flag.set()

    async def wait(self, seconds: float | None = None) -> None:
        """Until woken, or for so long at most. Forgets the wake-up that ended it."""
        self._loop = asyncio.get_running_loop()
        try:
            if not self._flag.is_set():
                async with asyncio.timeout(seconds):
                    await self._flag.wait()
        except TimeoutError:
            pass
        self._flag.clear()


async def until_reached(ask: Callable[[], Awaitable[T]], seconds: float) -> T:
    """Its answer; a store that cannot be reached is asked again for so long."""
    deadline, pause = time.monotonic() + seconds, 0.1
    while True:
        try:
            return await ask()
        except StoreUnfit:
            raise
        except StoreUnavailable as error:
            if time.monotonic() + pause > deadline:
                raise StoreUnavailable(f"{error} (tried for {seconds:g} s)") from error
        await asyncio.sleep(pause)
        pause = min(pause * 2, 2.0)


def end_if_cancelled() -> None:
    """Whoever goes on after any error asks this first: what a cancellation had to clean up may have failed, and that
    error is raised in its place."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class Service(ABC):
    """Something that goes on in the background."""

    name: str
    longest_pause = 5.0
    """Seconds between two tries at most while steps fail."""

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self.emit = emit
        self._wake = Wake()
        self._failures = 0
        self.rests_until = 0.0
        """When the next step comes, unless it is woken; by the clock of timers, which stops while the machine does."""

    @abstractmethod
    async def step(self) -> float | None:
        """Do what is to be done now; seconds until it should be looked at again, None for: when woken."""

    def wake(self) -> None:
        """Step soon. From any thread."""
        self._wake.set()

    async def run(self) -> None:
        """Step for ever."""
        while True:
            try:
                pause = await self.step()
                self._failures = 0
            except Exception as error:
                end_if_cancelled()
                self.emit(ServiceFailed(self.name, error))
                self._failures += 1
                # Jittered, so that replicas that lost the same database do not come back in step.
                longest = min(self.longest_pause, 0.05 * 2.0 ** min(self._failures, 10))
                await asyncio.sleep(longest * random.uniform(0.5, 1.0))
                continue
            if pause is None or pause > 0:
                self.rests_until = math.inf if pause is None else time.monotonic() + pause
                await self._wake.wait(pause)
                self.rests_until = 0.0
            else:
                await asyncio.sleep(0)
