"""Background: something is held open on a thread of its own, for programs without an event loop.

    with app: ...                    as long as the block
    with app.client(): ...
    app.open_until_exit()            where a server leaves no place for a block

What `async with` would raise, at either end, is raised where `with` stands. The thread is a daemon: an exit never waits
for it longer than what is open needs to close.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, suppress
from types import TracebackType
from typing import Generic, TypeVar

from rota.errors import BadInput
from rota.portal import running_loop

A = TypeVar("A")


class Background(Generic[A]):
    """One async context manager, entered and left on a thread with an event loop of its own."""

    def __init__(self, what: AbstractAsyncContextManager[A]) -> None:
        self._what = what
        self._pid = os.getpid()
        self._opened: Future[A] = Future()
        self._failure: BaseException | None = None
        self._over = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._thread = threading.Thread(target=self._main, name="rota-background", daemon=True)

    def open(self) -> A:
        if running_loop() is not None:
            raise BadInput("`with` would hold up the event loop of this thread: use `async with`")
        self._loop = asyncio.new_event_loop()
        self._thread.start()
        try:
            return self._opened.result()
        except BaseException:  # it could not be opened; or Ctrl-C, while it still tries
            self._stop()
            self._thread.join()
            raise

    def close(self, patience: float | None = None) -> None:
        """Wait until it is closed, for ever or so many seconds. In a forked child: nothing, it is the parent's."""
        if os.getpid() != self._pid:
            return
        self._stop()
        self._thread.join(patience)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def open_until_exit(self, patience: float) -> A:
        if sys.version_info[:2] == (3, 12):
            self._executor = _started()
        opened = self.open()
        _before_exit(lambda: self.close(patience))
        return opened

    def _stop(self) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended by itself
                self._loop.call_soon_threadsafe(self._end)

    # -- on the thread -----------------------------------------------------------------------------

    def _end(self) -> None:
        self._over.set()
        if self._task is not None and not self._opened.done():
            self._task.cancel()

    def _main(self) -> None:
        lived = False
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop or asyncio.new_event_loop()) as runner:
                runner.run(self._live())
                lived = True
        except BaseException as error:
            if not self._opened.done():
                self._opened.set_exception(error)
            elif not lived:
                self._failure = error
            # Else all is closed; while the interpreter exits, no thread can be started to tidy up the loop's own.

    async def _live(self) -> None:
        self._task = asyncio.current_task()
        if self._executor is not None:
            asyncio.get_running_loop().set_default_executor(self._executor)
        if self._over.is_set():
            raise asyncio.CancelledError
        async with self._what as opened:
            self._opened.set_result(opened)
            await self._over.wait()


def _before_exit(call: Callable[[], None]) -> None:
    """When the main thread ends, and before the interpreter shuts down the executors of all others: what is still at
    work is to finish, and may need them, for `asyncio.to_thread` or to look up a host."""

    def reported() -> None:
        try:
            call()
        except BaseException:
            sys.excepthook(*sys.exc_info())  # not raised: others have something to do at the exit too

    # The executors' own was registered when they were imported; the last one registered is called first.
    register = getattr(threading, "_register_atexit", atexit.register)
    register(reported)


def _started() -> ThreadPoolExecutor:
    """An executor that has its threads: once its main thread has ended, Python 3.12 starts none."""
    size = min(32, (os.cpu_count() or 1) + 4)
    executor, together = ThreadPoolExecutor(size, "rota-background"), threading.Barrier(size)
    for _ in range(size):
        executor.submit(together.wait)
    return executor


class Opening(Generic[A]):
    """One way to open an app: `async with` in an event loop, `with` where there is none."""

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[A]], patience: float) -> None:
        self._make, self._patience = make, patience
        self._entered: AbstractAsyncContextManager[A] | None = None
        self._background: Background[A] | None = None

    async def __aenter__(self) -> A:
        entered = self._make()
        opened = await entered.__aenter__()
        self._entered = entered
        return opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trail: TracebackType | None
    ) -> None:
        entered, self._entered = self._entered, None
        if entered is not None:
            await entered.__aexit__(kind, error, trail)

    def __enter__(self) -> A:
        background = Background(self._make())
        opened = background.open()
        self._background = background
        return opened

    def __exit__(self, *_: object) -> None:
        background, self._background = self._background, None
        if background is not None:
            background.close()

    def open_until_exit(self) -> A:
        """Open it now, in the background, and close it when the process exits: when its main thread has ended."""
        return Background(self._make()).open_until_exit(self._patience)
