"""Leader: what runs only where a role is led, and in which order.

    recoveries, `on_become_leader` -> services ... cancelled -> `on_lose_leadership` -> the role is let go

All of it runs on the handlers' loop. What runs under a term is one task; whatever it does with a cancellation, the one
that looks after it is another. As long as it has not ended, the role is not led here again.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import random
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from rota.clock import steady
from rota.context import leadership
from rota.contract.roles import Fence, Roles
from rota.election import Term
from rota.errors import LeadershipLost, NameClash
from rota.events import Event, LeaderFailed, LeaderStuck
from rota.settings import Settings
from rota.succession import Takeover

Hook: TypeAlias = Callable[..., Any]
Stopped: TypeAlias = Callable[[Term, bool], Awaitable[None]]
LetGo: TypeAlias = Callable[[Term], Awaitable[None]]

DEFAULT_ROLE = "leader"
EXIT_LOST = 70
_BACKOFF, _LONGEST, _SOUND = 0.1, 30.0, 60.0


class Leadership:
    """One term, as the code that runs under it sees it. A hook or a service asks for it by a parameter."""

    def __init__(self, term: Term, store: Callable[[], Roles]) -> None:
        self._term, self._store = term, store

    @property
    def role(self) -> str:
        """What is led."""
        return self._term.role

    @property
    def term(self) -> int:
        """Its number. It grows with every term of the role."""
        return self._term.fence.term

    @property
    def fence(self) -> Fence:
        """For your own tables: store (role, term, nonce) and compare them for equality."""
        return self._term.fence

    @property
    def leading(self) -> bool:
        """Whether nobody else can lead, as far as can be known here and now."""
        return self._term.trusted

    @property
    def trusted_for(self) -> float:
        """Seconds for which `leading` stays true if nothing is confirmed any more."""
        return max(0.0, self._term.trusted_until - steady())

    def check(self) -> None:
        """Raises `LeadershipLost` unless `leading`."""
        self._term.check()

    async def hold(self, connection: Any) -> None:
        """Make the transaction on this connection one of this term: `LeadershipLost` if the term is over, and no other
        term begins before the transaction ends. Keep it short: Postgres ends it after three seconds of silence."""
        self.check()
        await self._store().check_fence(self.fence, connection)


@dataclass(slots=True)
class Office:
    """What is to be done by whoever leads a role."""

    role: str
    takeover: Takeover | None = None
    recoveries: list[Hook] = field(default_factory=list)
    become: list[Hook] = field(default_factory=list)
    lose: list[Hook] = field(default_factory=list)
    services: list[Hook] = field(default_factory=list)

    def take_over(self, how: Takeover | None) -> None:
        if how is not None and self.takeover not in (None, how):
            raise NameClash(f"role {self.role!r} is declared with takeover={self.takeover!r} and with {how!r}")
        self.takeover = how or self.takeover


class Offices:
    """The side of the user's code in elections. `began` and `ended` may be called from any thread."""

    def __init__(
        self, offices: Sequence[Office], settings: Settings, *, store: Callable[[], Roles], stopped: Stopped,
        let_go: LetGo, emit: Callable[[Event], None],
    ) -> None:  # fmt: skip
        self._offices = {office.role: office for office in offices}
        self._settings, self._store, self._emit = settings, store, emit
        self._stopped, self._let_go = stopped, let_go
        self._loop = asyncio.get_running_loop()
        self._over: dict[Term, asyncio.Event] = {}
        self._watches: set[asyncio.Task[None]] = set()

    def began(self, term: Term) -> None:
        self._loop.call_soon_threadsafe(self._start, term)

    def ended(self, term: Term) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and everything on it
            self._loop.call_soon_threadsafe(self._tell, term)

    async def drained(self, seconds: float) -> None:
        """Until everything that ran under a term has stopped, for so long at most."""
        deadline = steady() + seconds
        while self._watches and steady() < deadline:
            await asyncio.wait(self._watches, timeout=deadline - steady(), return_when=asyncio.FIRST_COMPLETED)
        for watch in self._watches:
            watch.cancel()

    def _start(self, term: Term) -> None:
        self._over[term] = asyncio.Event()
        watch = self._loop.create_task(self._watch(term), name=f"rota-leader-{term.role}")
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)

    def _tell(self, term: Term) -> None:
        if term in self._over:
            self._over[term].set()

    async def _watch(self, term: Term) -> None:
        """One term from its beginning to its end."""
        office, over = self._offices[term.role], self._over[term]
        reign = _Reign(office, Leadership(term, self._store), self._emit)
        body = self._loop.create_task(reign.run(), name=f"rota-reign-{term.role}")
        end = self._loop.create_task(over.wait())
        try:
            await asyncio.wait({body, end}, return_when=asyncio.FIRST_COMPLETED)
            await self._bring_to_an_end(term, body, reign)
            await self._stopped(term, reign.failed)
        finally:
            end.cancel()
            body.cancel()
            del self._over[term]
        if term.lost and not term.forced and self._settings.exit_on_lost_leadership:
            end_process(self._settings.shutdown_timeout + self._settings.dead_after)

    async def _bring_to_an_end(self, term: Term, body: asyncio.Task[None], reign: _Reign) -> None:
        since, grace = steady(), self._settings.step_down_timeout
        if term.lost:
            grace = self._settings.dead_after - self._settings.lease  # before that, nobody else can lead
        told = False
        while not body.done():
            body.cancel()
            await asyncio.wait({body}, timeout=grace)
            if not body.done():
                self._emit(LeaderStuck(term.role, term.fence.term, reign.doing, steady() - since))
                if term.lost and self._settings.exit_on_lost_leadership:
                    os._exit(EXIT_LOST)
                if term.lost and not told:
                    told = True
                    await reign.lose(grace)
                    if self._offices[term.role].takeover != "strict":
                        await self._let_go(term)  # whatever it still does, its writes are refused
        if not told:
            await reign.lose(grace)


class _Reign:
    """What runs under one term."""

    def __init__(self, office: Office, me: Leadership, emit: Callable[[Event], None]) -> None:
        self._office, self._me, self._emit = office, me, emit
        self._became = False
        self.failed = False
        self.doing = ""

    async def run(self) -> None:
        leadership.set(self._me.fence)
        try:
            for hook in self._office.recoveries:
                await _to_the_end(self._call(hook), hook)
            self._became = True
            for hook in self._office.become:
                await _to_the_end(self._call(hook), hook)
        except (Exception, asyncio.CancelledError) as error:
            if _is_cancelled(error):
                raise
            self.failed = True
            self._report(self.doing, error)
            return
        self.doing = ", ".join(name_of(service) for service in self._office.services)
        services = {
            asyncio.ensure_future(self._keep(service), loop=asyncio.get_running_loop())
            for service in self._office.services
        }
        try:
            await asyncio.Event().wait()
        finally:
            # Each cancellation is passed on: one that swallowed the first may obey the second.
            while services:
                for service in services:
                    service.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    _, services = await asyncio.wait(services)

    async def lose(self, grace: float) -> None:
        """Every hook has its turn, whatever the others do."""
        if not self._became:
            return
        stuck = self.doing  # what does not stop is still to be named afterwards
        for hook in self._office.lose:
            try:
                async with asyncio.timeout(grace):
                    await self._call(hook)
            except (Exception, asyncio.CancelledError) as error:
                if _is_cancelled(error):
                    raise
                self._report(name_of(hook), error)
        self.doing = stuck

    async def _call(self, hook: Hook) -> None:
        self.doing = name_of(hook)
        arguments = (self._me,) if inspect.signature(hook).parameters else ()
        if inspect.iscoroutinefunction(hook):
            await hook(*arguments)
        else:
            await asyncio.to_thread(hook, *arguments)

    async def _keep(self, service: Hook) -> None:
        """Run a service until the term ends; one that crashes is started again, later each time."""
        failures = 0
        while True:
            began = steady()
            try:
                arguments = (self._me,) if inspect.signature(service).parameters else ()
                await service(*arguments)
                return
            except (Exception, asyncio.CancelledError) as error:
                if _is_cancelled(error):
                    raise
                if isinstance(error, LeadershipLost) and not self._me.leading:
                    return
                failures = 0 if steady() - began > _SOUND else failures + 1
                pause = backoff(failures)
                self._report(name_of(service), error, pause)
            await asyncio.sleep(pause)

    def _report(self, what: str, error: BaseException, again_in: float | None = None) -> None:
        self._emit(LeaderFailed(self._me.role, self._me.term, what, error, again_in))


def _is_cancelled(error: BaseException) -> bool:
    """This task is to end; and not: it waited for one that was cancelled."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


async def _to_the_end(call: Coroutine[Any, Any, None], hook: Hook) -> None:
    """A thread cannot be cancelled: a plain function has to end before anybody may say that this code has stopped."""
    if inspect.iscoroutinefunction(hook):
        await call
        return
    running, cancelled = asyncio.ensure_future(call), False
    while not running.done():
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError:
            cancelled = True
    error = running.exception()
    if cancelled:
        raise asyncio.CancelledError
    if error is not None:
        raise error


def backoff(failures: int) -> float:
    """Seconds until something that failed so often in a row is tried again."""
    return min(_LONGEST, _BACKOFF * 2.0 ** min(failures, 20)) * random.uniform(0.5, 1.0)


def name_of(function: Hook) -> str:
    return str(getattr(function, "__qualname__", function))


exiting = threading.Event()
"""This process ends because it lost a leadership."""


def end_process(deadline: float) -> None:
    """Stop as on SIGTERM, once; if that takes too long, stop all the same."""
    if exiting.is_set():
        return
    exiting.set()
    timer = threading.Timer(deadline, os._exit, [EXIT_LOST])
    timer.daemon = True
    timer.start()
    signal.raise_signal(signal.SIGTERM)
