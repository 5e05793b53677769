"""One thread with one connection, fed by any event loop.

What was submitted always runs to its COMMIT or ROLLBACK, whether or not somebody still waits for the answer: a
cancelled caller leaves no transaction open. Writes that are queued together share one transaction, each in a savepoint
of its own, and are answered after the COMMIT: the disk is asked once for all of them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

import apsw

from rota.errors import NotOpen
from rota.stores.sqlite.session import Session

T = TypeVar("T")
_TOGETHER = 64


class Task(Generic[T]):
    """Something to do, and who waits for it."""

    __slots__ = ("error", "function", "future", "loop", "result", "unless", "writes")

    def __init__(
        self, function: Callable[[Session], T], writes: bool, unless: Callable[[Session], T | None] | None = None
    ) -> None:
        self.function, self.writes, self.unless = function, writes, unless
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self.loop.create_future()
        self.result: Any = None
        self.error: BaseException | None = None

    def attempt(self, function: Callable[[Session], Any], session: Session) -> bool:
        """Run it, and keep what it gave or raised."""
        try:
            self.result = function(session)
        except BaseException as error:
            self.error = error
        return self.error is None

    def needless(self, session: Session) -> bool:
        """A look without the write lock shows that there is nothing to write."""
        return self.unless is not None and not (self.attempt(self.unless, session) and self.result is None)

    def settle(self) -> None:
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class Worker:
    """A daemon thread; it connects when it is first asked for something."""

    def __init__(self, connect: Callable[[], apsw.Connection], name: str) -> None:
        self._connect, self._name = connect, name
        self._queue: SimpleQueue[Task[Any] | None] = SimpleQueue()
        self._next: Task[Any] | None = None
        self._gate = threading.Lock()
        self._started = self._stopped = False
        self._gone: Future[None] = Future()

    async def run(self, function: Callable[[Session], T]) -> T:
        """The function, outside of a transaction of ours."""
        return await self._submit(Task(function, writes=False))

    async def write(self, function: Callable[[Session], T], unless: Callable[[Session], T | None] | None = None) -> T:
        """The function in a write transaction, unless a look beforehand already gives the result."""
        return await self._submit(Task(function, writes=True, unless=unless))

    async def close(self) -> None:
        """After what was submitted so far."""
        self.stop()
        if self._started:
            # Not by another thread that waits: none can be started while the interpreter exits.
            await asyncio.shield(asyncio.wrap_future(self._gone))

    def stop(self) -> None:
        """Close the connection after what was submitted so far, without waiting for it."""
        with self._gate:
            if not self._stopped:
                self._stopped = True
                self._queue.put(None)

    async def _submit(self, task: Task[T]) -> T:
        with self._gate:
            if self._stopped:
                raise NotOpen
            self._queue.put(task)
            if not self._started:
                self._started = True
                threading.Thread(target=self._main, name=self._name, daemon=True).start()
        return await task.future

    def _main(self) -> None:
        session: Session | None = None
        while (task := self._next or self._queue.get()) is not None:
            self._next = None
            try:
                session = session or Session(self._connect())
            except BaseException as error:
                task.error = error
                _answer([task])
                continue
            if task.writes:
                self._write(session, [task, *self._more()])
            else:
                task.attempt(task.function, session)
                _answer([task])
            del task
        try:
            if session is not None:
                _end(session.connection)
        finally:
            self._gone.set_result(None)

    def _more(self) -> list[Task[Any]]:
        """The writes that are queued right now, up to something else."""
        found: list[Task[Any]] = []
        while len(found) < _TOGETHER:
            try:
                task = self._queue.get_nowait()
            except Empty:
                break
            if task is None:
                self._queue.put(None)
                break
            if not task.writes:
                self._next = task
                break
            found.append(task)
        return found

    def _write(self, session: Session, tasks: list[Task[Any]]) -> None:
        needed = [task for task in tasks if not task.needless(session)]
        if needed:
            try:
                session.execute("begin immediate")
                for task in needed:
                    _apart(session, task, alone=len(needed) == 1)
                session.execute("commit")
            except BaseException as error:
                _roll_back(session.connection)
                for task in needed:
                    task.error = task.error or error
        _answer(tasks)


def _roll_back(connection: apsw.Connection) -> None:
    with suppress(apsw.Error):  # the error that led here is the one to tell of
        if connection.in_transaction:
            connection.execute("rollback")


def _end(connection: apsw.Connection) -> None:
    """Also where a handler left a statement behind that it had not read to its end."""
    _roll_back(connection)
    connection.close(True)


def _apart(session: Session, task: Task[Any], *, alone: bool) -> None:
    """One of the writes of a transaction; if it fails, it alone is undone."""
    if not alone:
        session.execute("savepoint task")
    if task.attempt(task.function, session):
        if not alone:
            session.execute("release task")
        return
    assert task.error is not None
    # A full disk, for one, ends the whole transaction.
    if alone or not session.connection.in_transaction:
        raise task.error
    session.execute("rollback to task")
    session.execute("release task")


def _answer(tasks: list[Task[Any]]) -> None:
    """Wake each waiting loop once."""
    for loop in {task.loop for task in tasks}:
        mine = [task for task in tasks if task.loop is loop]
        try:
            loop.call_soon_threadsafe(_settle, mine)
        except RuntimeError:
            continue  # The loop was closed; nobody waits.


def _settle(tasks: list[Task[Any]]) -> None:
    for task in tasks:
        task.settle()
