"""Declarations of what only a leader does: the part of an app that is about roles."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeAlias, TypeVar, overload

from rota.contract.singletons import role_of
from rota.errors import BadInput, NameClash
from rota.events import Bus
from rota.leader import DEFAULT_ROLE, Hook, Leadership, Office, name_of
from rota.replica import Replica
from rota.singleton import Body, Declared, Singleton
from rota.state import StateCodec
from rota.store import Store
from rota.succession import Takeover

Service = TypeVar("Service", bound=Callable[[], Awaitable[None]] | Callable[[Leadership], Awaitable[None]])
AnyHook = TypeVar("AnyHook", bound=Callable[[], object] | Callable[[Leadership], object])
S = TypeVar("S")
_LONGEST = 10 * 366 * 86400.0
Seconds: TypeAlias = float | timedelta
Stateful: TypeAlias = Callable[[Singleton[S]], Awaitable[None]]
Plain = TypeVar("Plain", bound=Callable[[], Awaitable[None]] | Callable[[Singleton[None]], Awaitable[None]])


class Leading:
    """Decorators for hooks and services of a leader; with or without parentheses."""

    events: Bus

    def __init__(self) -> None:
        self._offices: dict[str, Office] = {}
        self._replica: Replica | None = None

    @property
    def store(self) -> Store:
        """The database, where the app is open."""
        raise NotImplementedError

    @overload
    def leader_only(self, fn: Service, /) -> Service: ...
    @overload
    def leader_only(
        self, /, *, role: str = DEFAULT_ROLE, takeover: Takeover | None = None
    ) -> Callable[[Service], Service]: ...
    def leader_only(self, fn: Any = None, /, *, role: str = DEFAULT_ROLE, takeover: Takeover | None = None) -> Any:
        """Decorator: a coroutine that lives as long as this replica leads the role. One that raises is started again.

        `takeover="strict"`: the next leader begins only when the last one cannot believe any more that it leads, for
        effects that nothing can fence. `"prompt"`, the default, begins as soon as the last one is gone.
        """

        def declare(fn: Any) -> Any:
            if not inspect.iscoroutinefunction(fn):
                raise BadInput(
                    f"leader_only needs an async function, and {name_of(fn)} is not one: it is to be cancelled"
                )
            self._office(role, takeover).services.append(fn)
            return fn

        return declare if fn is None else declare(fn)

    @overload
    def recovery(self, fn: AnyHook, /) -> AnyHook: ...
    @overload
    def recovery(self, /, *, role: str = DEFAULT_ROLE) -> Callable[[AnyHook], AnyHook]: ...
    def recovery(self, fn: Any = None, /, *, role: str = DEFAULT_ROLE) -> Any:
        """Decorator: runs once at the beginning of each term, before everything else."""
        return self._hook(fn, lambda: self._office(role).recoveries)

    @overload
    def on_become_leader(self, fn: AnyHook, /) -> AnyHook: ...
    @overload
    def on_become_leader(self, /, *, role: str = DEFAULT_ROLE) -> Callable[[AnyHook], AnyHook]: ...
    def on_become_leader(self, fn: Any = None, /, *, role: str = DEFAULT_ROLE) -> Any:
        """Decorator: runs after the term is stored and recovered, before the services of the leader start."""
        return self._hook(fn, lambda: self._office(role).become)

    @overload
    def on_lose_leadership(self, fn: AnyHook, /) -> AnyHook: ...
    @overload
    def on_lose_leadership(self, /, *, role: str = DEFAULT_ROLE) -> Callable[[AnyHook], AnyHook]: ...
    def on_lose_leadership(self, fn: Any = None, /, *, role: str = DEFAULT_ROLE) -> Any:
        """Decorator: runs when the services have stopped, before anybody else can lead where the store is reached."""
        return self._hook(fn, lambda: self._office(role).lose)

    @overload
    def singleton(self, fn: Plain, /) -> Plain: ...
    @overload
    def singleton(
        self,
        /,
        *,
        state: Callable[[], S],
        name: str | None = None,
        ttl: Seconds | None = None,
        heartbeat: Seconds = 30.0,
        expect_every: Seconds | None = None,
        takeover: Takeover | None = None,
    ) -> Callable[[Stateful[S]], Stateful[S]]: ...
    @overload
    def singleton(
        self,
        /,
        *,
        name: str | None = None,
        heartbeat: Seconds = 30.0,
        expect_every: Seconds | None = None,
        takeover: Takeover | None = None,
    ) -> Callable[[Plain], Plain]: ...
    def singleton(
        self, fn: Any = None, /, *, state: Callable[[], Any] | None = None, name: str | None = None,
        ttl: Seconds | None = None, heartbeat: Seconds = 30.0, expect_every: Seconds | None = None,
        takeover: Takeover | None = None,
    ) -> Any:  # fmt: skip
        """Decorator: one live body of this coroutine in the whole cluster, started again wherever it died.

        `state`: a class (or a function) that gives the initial state; it is loaded when the body starts and stored at
        every assignment, and forgotten when nothing was stored for `ttl`. `heartbeat`: seconds between two signs of
        life; unhealthy after twice that. `expect_every`: unhealthy when nothing was executed for twice that.
        """

        def declare(fn: Any) -> Any:
            self._declare_singleton(
                fn, str(name or getattr(fn, "__name__", "")), state, takeover, ttl=_seconds("ttl", ttl),
                heartbeat=_seconds("heartbeat", heartbeat) or 30.0, expect_every=_seconds("expect_every", expect_every),
            )  # fmt: skip
            return fn

        return declare if fn is None else declare(fn)

    def _declare_singleton(
        self, fn: Any, name: str, state: Callable[[], Any] | None, takeover: Takeover | None, **times: Any
    ) -> None:
        if not inspect.iscoroutinefunction(fn):
            raise BadInput(f"singleton needs an async function, and {name_of(fn)} is not one: it is to be cancelled")
        _check_parameters(fn, "Singleton")
        office = self._office(role_of(name), takeover)
        if office.services:
            raise NameClash(f"two singletons are named {name!r}; give one of them another name")
        codec = None if state is None else StateCodec(state, f"singleton {name!r}")
        declared = Declared(name, codec, **times)
        office.services.append(
            Body(declared, fn, store=lambda: self.store, replica=lambda: self._replica, emit=self.events.emit)
        )

    def leads(self, role: str = DEFAULT_ROLE) -> bool:
        """Whether this replica leads the role, as far as can be known here and now."""
        return self.leadership(role) is not None

    def leadership(self, role: str = DEFAULT_ROLE) -> Leadership | None:
        """The term in which this replica leads the role; None when it does not."""
        elections = self._replica.elections if self._replica is not None else None
        term = elections.term(role) if elections is not None else None
        return Leadership(term, lambda: self.store) if term is not None and term.trusted else None

    def _hook(self, fn: Any, hooks: Callable[[], list[Hook]]) -> Any:
        def declare(fn: AnyHook) -> AnyHook:
            _check_parameters(fn, "Leadership")
            hooks().append(fn)
            return fn

        return declare if fn is None else declare(fn)

    def _office(self, role: str, takeover: Takeover | None = None) -> Office:
        if not role or role != role.strip() or len(role) > 200:
            raise BadInput(f"role {role!r} must be 1 to 200 characters, with no space at either end")
        if role.startswith("rota."):
            raise BadInput(f"role {role!r}: names that begin with 'rota.' are rota's own")
        office = self._offices.setdefault(role, Office(role))
        office.take_over(takeover)
        return office


def _seconds(what: str, value: Seconds | None) -> float | None:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if seconds is not None and not 0 < seconds <= _LONGEST:
        raise BadInput(f"{what} must be above 0 seconds and at most ten years, not {value!r}")
    return seconds


def _check_parameters(fn: Any, what: str) -> None:
    """It is called with nothing, or with one thing: better said here than when a leadership is lost."""
    parameters = list(inspect.signature(fn).parameters.values())
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if parameters and (
        len(parameters) > 1
        or parameters[0].kind not in positional
        or parameters[0].default is not inspect.Parameter.empty
    ):
        raise BadInput(f"{name_of(fn)} must take no parameter, or one: the {what}")
