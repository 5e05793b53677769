"""Singleton: one live body in the cluster, and state that outlives it.

The body runs where the role `singleton:NAME` is led. Its state is loaded when it starts and stored at every assignment,
before the assignment returns; each such write shows the term, so what a deposed body assigns is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar, cast

from rota.contract.singletons import SingletonRow
from rota.errors import LeadershipLost, RotaError
from rota.events import Event, SingletonUnhealthy, StateUnreadable
from rota.leader import Leadership
from rota.replica import Replica
from rota.state import StateCodec, StateView, view
from rota.store import Store

S = TypeVar("S")


class Declared:
    """What was said of a singleton where it is declared."""

    def __init__(
        self, name: str, codec: StateCodec[Any] | None, *, ttl: float | None, heartbeat: float,
        expect_every: float | None,
    ) -> None:  # fmt: skip
        self.name, self.codec = name, codec
        self.ttl, self.heartbeat, self.expect_every = ttl, heartbeat, expect_every


class Singleton(Generic[S]):
    """The singleton, as its body sees it."""

    def __init__(
        self,
        declared: Declared,
        leadership: Leadership,
        row: SingletonRow,
        state: Any,
        *,
        store: Store,
        replica: Replica,
    ) -> None:
        self._declared, self._codec = declared, declared.codec
        self._store, self._replica = store, replica
        self._target = state
        self._saved = row.state
        self.leadership = leadership
        """The term under which this body runs: `term`, `fence`, `leading`, `hold(connection)`."""
        self.row = row
        """What was known of it when this body started."""

    @property
    def name(self) -> str:
        return self._declared.name

    @property
    def state(self) -> S:
        """Assign to its fields: each is stored, durably, before the line returns; `LeadershipLost` when it is too late.

        A change *inside* a field (`state.names.append(...)`) is not seen: assign the field, or use `update`.
        """
        if self._codec is None or not self._codec.has_fields:
            return cast(S, self._target)
        return cast(S, view(self._target, self._assign))

    @state.setter
    def state(self, state: S) -> None:
        if issubclass(type(state), StateView):
            state = cast(Any, state)._target
        self._replica.wait_for(self._save(state, on=self._replica.store))
        self._target = state

    @asynccontextmanager
    async def update(self) -> AsyncIterator[S]:
        """Several changes at once, of any kind: stored when the block ends, without blocking the loop. If that fails,
        or the block raises, the state is what it was."""
        before = self._encoded(self._target)
        try:
            yield cast(S, self._target)
            await self._save(self._target)
        except BaseException:
            self._target = self._decoded(before)
            raise

    async def executed(self, error: BaseException | None = None) -> None:
        """Something was done: counted, with its time and, if it failed, its error. `expect_every` watches this."""
        text = None if error is None else "".join(traceback.format_exception(error))[-10_000:]
        await self._store.note_execution(self.name, self.leadership.fence, text)

    @asynccontextmanager
    async def execution(self) -> AsyncIterator[None]:
        """One execution: counted when the block ends, as a failure if it raises."""
        try:
            yield
        except Exception as error:
            await self.executed(error)
            raise
        await self.executed()

    # -- for the one who runs it -------------------------------------------------------------------

    async def beat(self) -> None:
        """Say that it lives; store what was changed inside of fields."""
        await self._store.beat_singleton(self.name, self.leadership.fence)
        await self.save_changes()

    async def save_changes(self) -> None:
        if self._codec is not None and self._encoded(self._target) != self._saved:
            await self._save(self._target)

    def _assign(self, target: Any, name: str, value: Any) -> None:
        before = getattr(target, name, None)
        setattr(target, name, value)
        try:
            self._replica.wait_for(self._save(target, on=self._replica.store))
        except BaseException:
            setattr(target, name, before)
            raise

    async def _save(self, state: Any, *, on: Store | None = None) -> None:
        self.leadership.check()
        text = self._encoded(state)
        await (on or self._store).save_state(self.name, self.leadership.fence, text)
        self._saved = text

    def _encoded(self, state: Any) -> str:
        return "null" if self._codec is None else self._codec.encode(state)

    def _decoded(self, text: str) -> Any:
        return None if self._codec is None else self._codec.decode(text)[0]


class Body:
    """Runs a singleton's body under a term: state first, then the body, and a beat beside it."""

    def __init__(
        self, declared: Declared, fn: Callable[..., Awaitable[None]], *, store: Callable[[], Store],
        replica: Callable[[], Replica | None], emit: Callable[[Event], None],
    ) -> None:  # fmt: skip
        self._declared, self._fn = declared, fn
        self._store, self._replica, self._emit = store, replica, emit
        self.__qualname__ = f"singleton {declared.name!r}"
        self._was_healthy = True

    async def __call__(self, leadership: Leadership) -> None:
        me = await self._begin(leadership)
        beat = asyncio.create_task(self._beat(me))
        try:
            try:
                await self._fn(*((me,) if inspect.signature(self._fn).parameters else ()))
            except LeadershipLost:
                raise
            except Exception as error:
                with contextlib.suppress(RotaError):
                    await me.executed(error)
                raise
            await me.save_changes()
            await beat  # it has done what it had to in this term; it still is where it is
        finally:
            beat.cancel()
            with contextlib.suppress(RotaError, asyncio.CancelledError):
                await beat
            with contextlib.suppress(RotaError):
                await me.save_changes()

    async def _begin(self, leadership: Leadership) -> Singleton[Any]:
        declared, store, replica = self._declared, self._store(), self._replica()
        if replica is None:
            raise LeadershipLost(f"singleton {declared.name!r} cannot start: this replica has stopped")
        row = await store.begin_singleton(
            declared.name, leadership.fence, ttl=declared.ttl, heartbeat=declared.heartbeat,
            expect_every=declared.expect_every,
        )  # fmt: skip
        state = None
        if declared.codec is not None:
            state = declared.codec.initial()
            if row.state is not None:
                state, unreadable = declared.codec.decode(row.state)
                if unreadable is not None:
                    await store.keep_aside(declared.name, leadership.fence, unreadable)
                    self._emit(StateUnreadable(declared.name, unreadable))
        return Singleton(declared, leadership, row, state, store=store, replica=replica)

    async def _beat(self, me: Singleton[Any]) -> None:
        while True:
            await asyncio.sleep(self._declared.heartbeat)
            try:
                await me.beat()
                [row] = await self._store().list_singletons(self._declared.name)
            except LeadershipLost:
                return
            except RotaError:
                continue  # the store cannot be reached; if that lasts, the term ends
            if not row.healthy and self._was_healthy:
                why = f"nothing was executed for twice the {self._declared.expect_every:g} s that are expected"
                self._emit(SingletonUnhealthy(self._declared.name, why))
            self._was_healthy = row.healthy
