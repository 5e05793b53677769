"""Singleton: one live body in the cluster, and state that outlives it.

The body runs where the role `singleton:NAME` is led. Its state is loaded when it starts and stored at every assignment,
before the assignment returns; each such write shows the term, so what a deposed body assigns is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar, cast

from rota.contract.singletons import SingletonRow
from rota.errors import LeadershipLost, RotaError, StoreUnavailable, WrongState
from rota.events import Event, LeaderFailed, SingletonUnhealthy, StateUnreadable
from rota.leader import Leadership
from rota.replica import Replica
from rota.state import StateCodec, StateView, view
from rota.store import Store

S = TypeVar("S")

_STORED_WITHIN = 5.0


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
        self._drafting = False
        self._in_turn = asyncio.Lock()  # on the control thread: what was assigned later is stored later
        self._noted: BaseException | None = None
        self.leadership = leadership
        """The term under which this body runs: `term`, `fence`, `leading`, `hold(connection)`."""
        self.row = row
        """What was known of it when this body started."""

    @property
    def name(self) -> str:
        """As the table `singletons` has it."""
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
        self._store_now(state)
        self._target = state

    @asynccontextmanager
    async def update(self) -> AsyncIterator[S]:
        """Several changes at once, of any kind, to a copy: stored when the block ends, without blocking the loop. If
        that fails, or the block raises, the state is what it was. Until then nothing else may change it."""
        self._check_no_update()
        draft, self._drafting = copy.deepcopy(self._target), True
        try:
            yield cast(S, draft)
            await self._store_soon(draft)
            self._target = draft
        finally:
            self._drafting = False

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
            self._noted = error
            await self.executed(error)
            raise
        await self.executed()

    # -- for the one who runs it -------------------------------------------------------------------

    async def beat(self) -> None:
        """Say that it lives."""
        await self._store.beat_singleton(self.name, self.leadership.fence)

    async def save_changes(self) -> None:
        """Store what was changed inside of fields."""
        if self._codec is not None and not self._drafting and self._encoded(self._target) != self._saved:
            await self._store_soon(self._target)

    async def failed(self, error: BaseException) -> None:
        """The body raised; unless it was an execution, which has said so."""
        if error is not self._noted:
            await self.executed(error)

    def _assign(self, target: Any, name: str, value: Any) -> None:
        before = getattr(target, name, None)
        setattr(target, name, value)
        try:
            self._store_now(target)
        except BaseException:
            setattr(target, name, before)
            raise

    def _store_now(self, state: Any) -> None:
        """Before this line returns; not for longer than the term is trusted."""
        self._check_no_update()
        self.leadership.check()
        left = min(self.leadership.trusted_for, _STORED_WITHIN)
        try:
            self._replica.wait_for(self._save(self._encoded(state)), left)
        except StoreUnavailable:
            self._saved = None  # it may have been stored, or not: the next beat stores what is so
            raise

    async def _store_soon(self, state: Any) -> None:
        self.leadership.check()
        await self._replica.do(self._save(self._encoded(state)))

    async def _save(self, text: str) -> None:
        async with self._in_turn:
            await self._replica.store.save_state(self.name, self.leadership.fence, text)
            self._saved = text

    def _check_no_update(self) -> None:
        if self._drafting:
            raise WrongState(f"singleton {self.name!r}: an update() is open; change the state that it gave")

    def _encoded(self, state: Any) -> str:
        return "null" if self._codec is None else self._codec.encode(state)


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
                    await me.failed(error)
                raise
            await me.save_changes()
            await beat  # it has done what it had to in this term; it still is where it is
        finally:
            beat.cancel()
            await self._save_last(me)

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
                self._look_at(*await self._store().list_singletons(self._declared.name))
                await me.save_changes()
            except LeadershipLost:
                return
            except StoreUnavailable:
                continue  # if that lasts, the term ends
            except RotaError as error:
                self._complain(me, error)

    async def _save_last(self, me: Singleton[Any]) -> None:
        """Nothing is raised: a body that is asked to stop has stopped."""
        try:
            await me.save_changes()
        except (LeadershipLost, StoreUnavailable):
            pass
        except RotaError as error:
            self._complain(me, error)

    def _complain(self, me: Singleton[Any], error: RotaError) -> None:
        fence = me.leadership.fence
        self._emit(LeaderFailed(fence.role, fence.term, self.__qualname__, error, self._declared.heartbeat))

    def _look_at(self, row: SingletonRow) -> None:
        if not row.healthy and self._was_healthy:
            expected = f"the {row.expect_every:g} s that are expected" if row.expect_every else "its heartbeat"
            self._emit(SingletonUnhealthy(row.name, f"nothing was heard of it for twice {expected}"))
        self._was_healthy = row.healthy
