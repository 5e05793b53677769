"""Gate: what stands between one replica of a test and the rest of the world.

A replica that is frozen, cut off or killed differs from a sound one in what gets through: to the store, and to its own
handlers. So each has one gate; its stores lead through it, and its async handlers take every step behind it.

- `frozen`: nothing gets through, and everybody waits. Handlers stop at their next `await`.
- `cut`: the store cannot be reached; handlers go on. An answer that was under way is lost with the connection.
- `dead`: nothing gets through any more. Handlers are left where they were.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeVar, cast

import msgspec

from rota.errors import StoreUnavailable
from rota.store import Claim, Lifeline, Outcome, Pulse, Store

T = TypeVar("T")
Passage = Literal["open", "frozen", "cut", "dead"]
_FREE = ("open", "close")
"""What a process does with its own end of a connection."""


class Gate:
    """May be set on one thread and passed on others. `given_up`: the replicas that were silent for too long."""

    def __init__(self, given_up: set[int]) -> None:
        self.passage: Passage = "open"
        self.given_up = given_up
        self._moved: Future[None] = Future()
        self._left: list[Coroutine[Any, Any, Any]] = []
        self.stranded: list[Lifeline] = []
        """Connections that their owner gave up while the network kept them."""

    def set(self, passage: Passage) -> None:
        self.passage = passage
        moved, self._moved = self._moved, Future()
        moved.set_result(None)

    async def thawed(self) -> None:
        while self.passage == "frozen":
            await asyncio.shield(asyncio.wrap_future(self._moved))

    async def passed(self) -> None:
        """Through; or `StoreUnavailable`."""
        await self.thawed()
        if self.passage == "cut":
            raise StoreUnavailable("the test has cut this replica off from the store")
        if self.passage == "dead":
            raise StoreUnavailable("the test has killed this replica")

    def leave(self, handler: Coroutine[Any, Any, Any]) -> None:
        """A handler of a dead replica: it takes no step any more."""
        self._left.append(handler)

    def clear(self) -> None:
        """The test is over: what was left may tidy up behind itself."""
        for handler in self._left:
            with contextlib.suppress(Exception, asyncio.CancelledError):
                handler.close()
        self._left.clear()


class Stepping(Awaitable[T]):
    """A coroutine that takes each of its steps only while the gate lets it."""

    def __init__(self, inner: Coroutine[Any, Any, T], gate: Gate) -> None:
        self._inner, self._gate = inner, gate

    def __await__(self) -> Generator[Any, Any, T]:
        inner, gate = self._inner, self._gate
        thrown: BaseException | None = None
        while True:
            while gate.passage == "frozen":
                try:
                    yield from gate.thawed().__await__()
                except asyncio.CancelledError as error:
                    thrown = error  # it is told when it wakes
            if gate.passage == "dead":
                gate.leave(inner)
                raise asyncio.CancelledError
            try:
                awaited = inner.send(None) if thrown is None else inner.throw(thrown)
            except StopIteration as done:
                return cast(T, done.value)
            thrown = None
            try:
                yield awaited
            except BaseException as error:
                thrown = error


class GatedStore:
    """A store behind a gate. Whatever it is asked passes twice: the question, and the answer."""

    def __init__(self, store: Store, gate: Gate) -> None:
        self._store, self.gate = store, gate

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return self._gated(found) if inspect.iscoroutinefunction(found) and name not in _FREE else found

    def _gated(self, asked: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., Coroutine[Any, Any, T]]:
        async def through(*args: Any, **kwargs: Any) -> T:
            await self.gate.passed()
            answer = await asked(*args, **kwargs)
            await self.gate.passed()
            return answer

        return through

    async def join(self, *args: Any, **kwargs: Any) -> Lifeline:
        await self.gate.passed()
        return GatedLifeline(await self._store.join(*args, **kwargs), self.gate)

    @asynccontextmanager
    async def transaction(self, claim: Claim) -> AsyncIterator[tuple[Any, Callable[[Outcome], Any]]]:
        await self.gate.passed()
        async with self._store.transaction(claim) as (connection, finish):
            yield connection, self._gated(finish)
            await self.gate.passed()  # nothing is committed from behind a gate that is shut


class GatedLifeline(Lifeline):
    """The connection that carries the session lock, behind a gate."""

    def __init__(self, lifeline: Lifeline, gate: Gate) -> None:
        super().__init__(lifeline._settings)
        self._lifeline, self._gate = lifeline, gate
        self.replica_id, self.identity = lifeline.replica_id, lifeline.identity
        lifeline.lost = self._lost

    async def beat(self, *, holding: bool) -> Pulse:
        await self._gate.passed()
        # How long the others were silent is for the test to say: no real time has to pass for it, nor counts.
        self._lifeline.judges_from = 0.0
        pulse = await self._lifeline.beat(holding=holding)
        await self._gate.passed()
        stale = tuple(sorted(self._gate.given_up)) if pulse.caretaker else ()
        return msgspec.structs.replace(pulse, suspects=(), stale=stale)

    async def close(self) -> None:
        if self._gate.passage == "cut":
            # The other end does not hear of it. The lock stays taken.
            self._gate.stranded.append(self._lifeline)
        else:
            await self._lifeline.close()

    def _lost(self) -> None:
        if self.lost is not None and self._gate.passage != "frozen":
            self.lost()
