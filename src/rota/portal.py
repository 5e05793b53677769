"""Portal: the way into the event loop in which an app is open, for threads that have none.

Whoever waits is never left waiting: what has not ended when the app closes is cancelled, and said to be so. A portal
belongs to the process that made it. A forked child has neither the loop's thread nor connections that it may use.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from math import inf
from typing import Any, Generic, TypeVar

from rota.clock import steady
from rota.errors import BadInput, Forked, NotOpen, Timeout

T = TypeVar("T")
_SLICE = 0.5


class _Call(Generic[T]):
    """A coroutine on its way into the loop, and how to stop it wherever it is."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine, self.whole = coroutine, self._run()
        self._task: asyncio.Task[Any] | None = None
        self._dropped = False

    async def _run(self) -> T:
        self._task = asyncio.current_task()
        if self._dropped:
            self._coroutine.close()
            raise asyncio.CancelledError
        return await self._coroutine

    def refuse(self) -> None:
        """It never got as far as the loop."""
        self.whole.close()
        self._coroutine.close()

    def drop(self, loop: asyncio.AbstractEventLoop) -> None:
        """By whoever waited for it, and may have been interrupted before it was handed over, or after."""
        self._dropped = True
        with suppress(RuntimeError):  # the loop has ended, and the task with it
            loop.call_soon_threadsafe(self._stop, loop)

    def _stop(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._task is not None:
            self._task.cancel()
        else:
            loop.call_soon(self._give_up)  # behind its first step, if it was handed over

    def _give_up(self) -> None:
        if self._task is None:
            self.refuse()


class Portal:
    """Made in the loop that it leads into."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._gate = threading.Lock()
        self._waited_for: set[Future[Any]] = set()
        self._closed = False

    def check_process(self) -> None:
        if os.getpid() != self._pid:
            raise Forked(self._pid)

    def check_caller(self, control: asyncio.AbstractEventLoop | None) -> None:
        """What is awaited elsewhere than in this loop would tangle both; the control thread's is rota's own."""
        self.check_process()
        running = running_loop()
        if running is not None and running is not self._loop and running is not control:
            raise BadInput(
                "this Rota is open in another event loop than this one: `await asyncio.to_thread(app.wait, ...)`, "
                "or open it here with `async with`"
            )

    def wait(self, coroutine: Coroutine[Any, Any, T], timeout: float | None) -> T:
        """Run it in the loop and wait for it here, in the caller's context; cancel it if the wait does not last."""
        call = _Call(coroutine)
        try:
            self.check_process()
            self._check_thread()
            future = self._submit(call)
        except Exception:
            call.refuse()
            raise
        except BaseException:  # Ctrl-C: it may have been handed over already
            call.drop(self._loop)
            raise
        try:
            return self._result(future, timeout)
        except CancelledError:
            if self._closed:
                raise NotOpen from None
            raise
        except BaseException:
            call.drop(self._loop)
            raise

    @staticmethod
    def _result(future: Future[T], timeout: float | None) -> T:
        deadline = inf if timeout is None else steady() + timeout
        while True:
            try:
                # In slices: a signal that arrives just before the wait begins is seen only when it ends.
                return future.result(min(_SLICE, max(deadline - steady(), 0.0)))
            except TimeoutError:
                if future.done():
                    return future.result()  # the error is its own, or it ended at the last moment
                if steady() >= deadline and future.cancel():
                    raise Timeout(f"it has not ended within {timeout} s, and is cancelled") from None

    def close(self) -> None:
        """On the loop, before what the coroutines need is closed."""
        with self._gate:
            self._closed = True
        for future in list(self._waited_for):
            future.cancel()

    def _submit(self, call: _Call[T]) -> Future[T]:
        # Under the gate: what is submitted is either refused here or seen by `close`.
        with self._gate:
            if self._closed or self._loop.is_closed():
                raise NotOpen
            future = asyncio.run_coroutine_threadsafe(call.whole, self._loop)
            self._waited_for.add(future)
        future.add_done_callback(self._waited_for.discard)
        return future

    def _check_thread(self) -> None:
        running = running_loop()
        if running is self._loop:
            raise BadInput(
                "app.wait() would wait for itself: this is the event loop in which the app is open; await it"
            )
        if running is not None:
            raise BadInput(
                "app.wait() would hold up the event loop of this thread: `await asyncio.to_thread(app.wait, ...)`"
            )


def running_loop() -> asyncio.AbstractEventLoop | None:
    """That of this thread, if it runs one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
