"""Replica: this process as the others see it, and the control plane that keeps it alive in their eyes.

The control plane has a thread and an event loop of its own: beat, listener, scheduler and caretaker go on whatever the
handlers do to theirs. What crosses over is small: wake-ups, cancellations, and the loss of everything when deposed.

An incarnation is one uninterrupted membership. A lost connection is taken up again under the same incarnation; one that
was deposed in the meantime drops everything it held and joins anew.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError as FutureCancelled
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from rota.caretaker import SECOND_LOOK, Caretaker
from rota.clock import steady
from rota.contract.singletons import is_singleton, role_of
from rota.election import Court, Elections, Term
from rota.elector import Elector
from rota.errors import BadInput, CannotListen, RotaError, StoreUnavailable
from rota.events import Event, HintsOff, LoopBlocked, ReplicaDeposed, ReplicaJoined, ReplicaLeft, StoreReplaced
from rota.leader import end_process
from rota.offer import Hands
from rota.scheduler import Scheduler
from rota.service import Service, until_reached
from rota.settings import Settings
from rota.store import Buried, Decide, Hint, Lifeline, Pulse, Store
from rota.succession import Takeover
from rota.trust import Trust

T = TypeVar("T")

SCHEDULER_ROLE = "rota.scheduler"
_BLOCKED_AFTER = 1.0


class Crew(Hands, Protocol):
    """What the control plane needs of the worker; all of it may be called from any thread."""

    @property
    def holding(self) -> bool: ...
    def wake(self) -> None: ...
    def finished_somewhere(self) -> None: ...
    def cancel_runs(self, run_ids: Sequence[int]) -> None: ...
    def drop_runs(self) -> tuple[int, ...]: ...
    def room(self) -> int: ...
    def running(self) -> tuple[tuple[int, str], ...]: ...


class Heart(Service):
    """The beat: says that this incarnation lives, and hears what it should know."""

    name = "heart"
    longest_pause = 0.5  # well below `dead_after`: after an outage everybody must be back before anybody judges

    def __init__(self, replica: Replica, emit: Callable[[Event], None]) -> None:
        super().__init__(emit)
        self._replica = replica
        self._lifeline: Lifeline | None = None

    @property
    def attached(self) -> bool:
        """It has the connection that carries the session lock, as far as it knows."""
        return self._lifeline is not None

    async def step(self) -> float | None:
        replica, settings = self._replica, self._replica.settings
        sent = steady()
        try:
            if self._lifeline is None:
                self._lifeline = await replica.store.join(
                    settings.replica,
                    socket.gethostname(),
                    os.getpid(),
                    replica.jobs,
                    resume=replica.id or None,
                )
                self._lifeline.lost = self._lost
                replica.joined(self._lifeline)
            pulse = await self._lifeline.beat(holding=replica.crew.holding)
        except BaseException as error:
            if self._lifeline is not None:
                self._cut()
            if isinstance(error, Exception):
                replica.cut_off(f"the connection to the store was lost: {error}")
            await self.stop()
            raise
        if not pulse.alive:
            replica.trusted_until = 0.0
            replica.cut_off("this replica was deposed")
            replica.trust.end()
            await self.stop()
            return 0
        replica.trusted_until = sent + settings.lease
        replica.trust.renew(sent + settings.lease)
        replica.take_in(pulse)
        if pulse.suspects:
            return SECOND_LOOK
        holds = replica.crew.holding or replica.leads or replica.trust.needed
        busy = holds or (pulse.caretaker and pulse.replicas > 1)
        return settings.beat * (1.0 if busy else 2.0)

    async def stop(self) -> None:
        lifeline, self._lifeline = self._lifeline, None
        if lifeline is not None:
            self._cut()  # first: the session lock is free once it is closed
            await lifeline.close()

    def _lost(self) -> None:
        self._cut()
        self.wake()

    def _cut(self) -> None:
        if self._replica.settings.elector != "lease":  # which has no session lock that could be free
            self._replica.trust.cut()


class Ear(Service):
    """The listener: hints of the other replicas, as long as the connection lasts."""

    name = "ear"

    def __init__(self, store: Store, heard: Callable[[Hint], None], emit: Callable[[Event], None]) -> None:
        super().__init__(emit)
        self._store, self._heard = store, heard

    async def step(self) -> float | None:
        try:
            await self._store.listen(self._heard)
        except CannotListen as error:
            self.emit(HintsOff(str(error)))
            return None
        return 0.1


class Replica:
    """Runs the control plane: `start` returns when this replica is one of the cluster."""

    def __init__(
        self,
        settings: Settings,
        make_store: Callable[[], Store],
        *,
        crew: Crew,
        jobs: Sequence[str],
        decide: Decide,
        emit: Callable[[Event], None],
        roles: Mapping[str, Takeover],
        make_elector: Callable[[Replica], Awaitable[Elector]],
    ) -> None:
        self.settings, self.jobs, self.crew, self.emit = settings, jobs, crew, emit
        self.court: Court | None = None
        self.elections: Elections | None = None
        self._roles = dict(roles)
        if settings.scheduler == "leader":
            self._roles[SCHEDULER_ROLE] = "prompt"
        self._make_elector = make_elector
        self._elector: Elector | None = None
        self.id = 0
        self.trusted_until = 0.0
        self.trust = Trust()
        self.lock_released: Callable[[], None] | None = None
        self._identity = ""
        self.store = make_store()
        self._decide = decide
        self._ready: Future[None] = Future()
        self._gone: Future[None] = Future()
        self._stop = threading.Event()
        self._stop_here: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._main, name="rota-control", daemon=True)
        self._handlers: asyncio.AbstractEventLoop | None = None
        self._asked: float | None = None

    # -- from the handlers' side -------------------------------------------------------------------

    async def start(self) -> None:
        self._handlers = asyncio.get_running_loop()
        self._thread.start()
        await asyncio.wrap_future(self._ready)

    async def stop(self) -> None:
        """Leave: last of all, when nothing is held any more."""
        self._stop.set()
        if self._thread.ident is None:
            return
        if self._loop is not None and self._stop_here is not None and self._thread.is_alive():
            with suppress(RuntimeError):  # it failed to start, and its loop is closed already
                self._loop.call_soon_threadsafe(self._stop_here.set)
        # Not by another thread that waits: none can be started while the interpreter exits.
        await asyncio.shield(asyncio.wrap_future(self._gone))
        self._thread.join()

    @property
    def trusted(self) -> bool:
        """Compared at the moment of use: a flag set by a timer would be wrong after a stall."""
        return steady() < self.trusted_until

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The control thread's."""
        return self._loop

    @property
    def leads_until(self) -> float:
        """Until when a term can be believed in: without the session lock, not at all."""
        return self.trusted_until if self.heart.attached else 0.0

    def wake_scheduler(self) -> None:
        if self._loop is not None:
            self.scheduler.wake()

    async def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something on the control thread, and wait for it without blocking this loop."""
        return await asyncio.wrap_future(self._submit(work))

    def wait_for(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """Do something on the control thread, and wait for it here, for so long at most: for what has to be done before
        a line returns."""
        if threading.current_thread() is self._thread:
            work.close()
            raise BadInput("this cannot be waited for here: subscribers of events run on rota's own thread")
        done = self._submit(work)
        try:
            return done.result(seconds)
        except (FutureTimeout, FutureCancelled):
            done.cancel()
            raise StoreUnavailable(f"it was not stored within {seconds:.1f} s; whether it was is not known") from None

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        try:
            if self._loop is None or self._stop.is_set() or not self._thread.is_alive():
                raise RuntimeError
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise StoreUnavailable("this replica has stopped") from None

    async def not_ready(self) -> list[str]:
        """Why this replica should not be given anything to do; on the control thread."""
        if not self.trusted:
            return [f"no beat was confirmed for {self.settings.lease:g} s: the database cannot be reached"]
        if self.elections is None:
            return []
        mine = {term.role for term in self.elections.terms}
        try:
            rows = await self.store.list_singletons() if any(map(is_singleton, mine)) else []
        except RotaError as error:
            return [str(error)]
        unhealthy = [row.name for row in rows if role_of(row.name) in mine and not row.healthy]
        stuck = [term.role for term in self.elections.ending if term.lost]
        return [f"singleton {name!r} is unhealthy" for name in unhealthy] + [
            f"the term of {role!r} was lost, and its code has not stopped" for role in stuck
        ]

    async def let_go(self, term: Term) -> None:
        """What ran under this term does not stop; others may lead."""
        if self.elections is not None:
            with suppress(StoreUnavailable):
                await self.do(self.elections.let_go(term))

    async def end_terms(self) -> None:
        """Take no role any more, and end what is led; the court is told, and lets go."""
        if self.elections is not None and self._loop is not None and self._thread.is_alive():
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.elections.close(), self._loop))

    async def stopped(self, term: Term, failed: bool) -> None:
        """What ran under this term has stopped."""
        if self.elections is not None and self._loop is not None and self._thread.is_alive():
            letting_go = asyncio.run_coroutine_threadsafe(self.elections.stopped(term, failed=failed), self._loop)
            await asyncio.wrap_future(letting_go)

    # -- on the control thread ---------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        return self.elections is not None and bool(self.elections.terms)

    def cut_off(self, why: str) -> None:
        if self.elections is not None:
            self.elections.cut_off(why)

    def began(self, term: Term) -> None:
        if term.role == SCHEDULER_ROLE:
            self.scheduler.wake()
        elif self.court is not None:
            self.court.began(term)

    def ended(self, term: Term) -> None:
        if term.role == SCHEDULER_ROLE and self.elections is not None:
            task = asyncio.ensure_future(self.elections.stopped(term))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            if term.lost and not term.forced and self.settings.exit_on_lost_leadership:
                end_process(self.settings.shutdown_timeout + self.settings.dead_after)
        elif self.court is not None:
            self.court.ended(term)

    def _schedules(self) -> bool:
        if self.settings.scheduler == "shared":
            return True
        term = self.elections.term(SCHEDULER_ROLE) if self.elections is not None else None
        return term is not None and term.trusted

    async def _stand(self) -> list[Service]:
        """The services of an election, if there is something to be elected for."""
        if not self._roles:
            return []
        self._elector = elector = await self._make_elector(self)
        # Half a second more than anybody trusts itself.
        self.elections = Elections(
            self.store, elector, self._roles, replica_id=lambda: self.id, strict_after=self.settings.lease + 0.5,
            court=self, emit=self.emit,
        )  # fmt: skip
        return [self.elections, self.elections.vigil]

    def _main(self) -> None:
        try:
            asyncio.run(self._control())
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
            elif not isinstance(error, SystemExit):
                raise
        finally:
            self._gone.set_result(None)

    async def _control(self) -> None:
        self._loop, self._stop_here = asyncio.get_running_loop(), asyncio.Event()
        await self.store.open()
        self.scheduler = Scheduler(
            self.store,
            decide=self._decide,
            jobs=self.jobs,
            advisory=self.settings.scheduler_advisory_locks,
            made_ready=self._made_ready,
            emit=self.emit,
            hands=self.crew,
            may=self._schedules,
        )
        self.caretaker = Caretaker(self.store, keep_days=self.settings.keep_days, freed=self._freed, emit=self.emit)
        self.heart = Heart(self, self.emit)
        services: list[Service] = [self.heart, self.scheduler, self.caretaker]
        if self.settings.hints:
            services.append(Ear(self.store, self._heard, self.emit))
        try:
            # A store that does not answer the first beat in time is waited for like one that cannot be reached.
            await until_reached(self.heart.step, self.settings.connect_timeout)
            services += await self._stand()
            self._ready.set_result(None)
            tasks = self._set_going(services)
            if not self._stop.is_set():
                await self._stop_here.wait()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._leave()
        finally:
            if self._elector is not None:
                await self._elector.stop()
            await self.heart.stop()
            await self.store.close()

    def _set_going(self, services: list[Service]) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(service.run(), name=f"rota-{service.name}") for service in services]

    async def _leave(self) -> None:
        try:
            async with asyncio.timeout(5.0):
                await self.store.leave(self.id)
                self.emit(ReplicaLeft(self.id))
                await self.store.hint("ready")
                await self.store.hint("schedules")
        except (StoreUnavailable, TimeoutError, RotaError):
            return  # the others will notice by the free lock, or by the silence

    def joined(self, lifeline: Lifeline) -> None:
        before, self._identity = self._identity, lifeline.identity
        if before not in ("", lifeline.identity):
            self.emit(StoreReplaced(before, lifeline.identity))
        replica_id = lifeline.replica_id
        if replica_id == self.id:
            return
        self.trust.end()
        if self.id:
            self.emit(ReplicaDeposed(self.id, self.crew.drop_runs()))
        self.id = replica_id
        self.emit(ReplicaJoined(replica_id, self.settings.replica))

    def take_in(self, pulse: Pulse) -> None:
        if pulse.cancelled:
            self.crew.cancel_runs(pulse.cancelled)
        if pulse.ready:
            self.crew.wake()
        if pulse.due_in is not None and pulse.due_in <= self.settings.beat:
            self.scheduler.look_within(pulse.due_in)
        self.scheduler.race.replicas = pulse.replicas
        self.caretaker.observe(pulse)
        self._watch_loop()

    def _watch_loop(self) -> None:
        """Ask the handlers' loop for a sign; report how long it has been silent."""
        if self._handlers is None or self._handlers.is_closed():
            return
        asked = self._asked  # the other thread may take it back at any moment
        if asked is not None:
            silent = steady() - asked
            if silent > _BLOCKED_AFTER:
                self.emit(LoopBlocked(silent, self.crew.running()))
            return
        self._asked = steady()
        try:
            self._handlers.call_soon_threadsafe(self._answer)
        except RuntimeError:
            return

    def _answer(self) -> None:
        self._asked = None

    def _heard(self, kind: Hint) -> None:
        if kind == "ready":
            self.crew.wake()
        elif kind == "schedules":
            self.scheduler.wake()
        elif kind == "finished":
            self.crew.finished_somewhere()
        elif kind == "roles":
            if self.elections is not None:
                self.elections.wake()
        elif kind == "locks":
            if self.lock_released is not None:
                self.lock_released()
        else:
            self.heart.wake()  # a cancellation is somewhere: the next beat tells whether it is for us

    def _made_ready(self, count: int) -> None:
        """Our own worker takes what it has room for; the others are told of the rest."""
        if count:
            self.crew.wake()
            if count > self.crew.room() and self.settings.hints and self._loop is not None:
                self._hint("ready")

    def _freed(self, _: Buried) -> None:
        self.crew.wake()
        self.scheduler.wake()
        if self.settings.hints:
            self._hint("ready")

    def _hint(self, kind: Hint) -> None:
        task = asyncio.ensure_future(self.store.hint(kind))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
