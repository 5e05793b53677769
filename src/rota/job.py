"""Job: a named function and its policies."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

import msgspec

from rota.arguments import Arguments
from rota.caller import Connection
from rota.context import Context, current_context, detached_context
from rota.errors import BadInput
from rota.moment import check_instant
from rota.policy import Breaker, Retry
from rota.run import Run
from rota.store import JobRow, NewRun

if TYPE_CHECKING:
    from rota.app import Rota

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}")
RESERVED_KEY = "schedule:"
NEVER = Retry(attempts=0)
_LONGEST = 1000 * 366 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """How a job's runs behave."""

    retry: Retry = NEVER
    timeout: float | None = None
    concurrency_limit: int = 0
    priority: int = 5
    breaker: Breaker | None = None
    transactional: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.retry, Retry):
            raise BadInput(f"retry must be a whole number of attempts or a Retry, not {self.retry!r}")
        if not isinstance(self.breaker, Breaker | None):
            raise BadInput(f"breaker must be a whole number of failures or a Breaker, not {self.breaker!r}")
        if self.timeout is not None and not (isinstance(self.timeout, int | float) and self.timeout > 0):
            raise BadInput(f"timeout must be above 0 seconds, not {self.timeout!r}; leave it out for none")
        if not isinstance(self.concurrency_limit, int) or self.concurrency_limit < 0:
            raise BadInput(f"concurrency_limit must be 0 (no limit) or more, not {self.concurrency_limit!r}")
        check_priority(self.priority)


def check_priority(priority: int) -> int:
    if not isinstance(priority, int):
        raise BadInput(f"priority must be a whole number, not {priority!r}")
    if not 0 <= priority <= 99:
        raise BadInput(f"priority must be from 0 (first) to 99, not {priority}")
    return priority


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How one run is to be made."""

    key: str | None = None
    delay: float | timedelta = 0.0
    run_at: datetime | None = None
    priority: int | None = None
    correlation_id: str | None = None
    connection: Connection | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.key, str | None) and isinstance(self.correlation_id, str | None)):
            raise BadInput(f"key and correlation_id must be texts, not {self.key!r} and {self.correlation_id!r}")
        if self.key is not None and (not self.key or len(self.key) > 500 or self.key.startswith(RESERVED_KEY)):
            raise BadInput(
                f"key {self.key[:60]!r} must have 1 to 500 characters and not begin with {RESERVED_KEY!r}, "
                "which is for ticks"
            )
        if not _storable(f"{self.key}{self.correlation_id}"):
            raise BadInput("key and correlation_id must not contain the character NUL, nor half of a surrogate pair")
        if self.run_at is not None and self.delay:
            raise BadInput("say either delay or run_at: a run has one time")
        # Postgres would keep what is out of range, and nobody could read that row, or a list with it, again.
        if self.run_at is not None:
            if not isinstance(self.run_at, datetime):
                raise BadInput(f"run_at must be a datetime with its zone, not {self.run_at!r}")
            check_instant("run_at", self.run_at)
        if not isinstance(self.delay, int | float | timedelta):
            raise BadInput(f"delay must be seconds or a timedelta, not {self.delay!r}")
        if not 0 <= self.seconds <= _LONGEST:
            raise BadInput(f"delay must not be negative, nor above 1000 years: {self.delay}")
        if self.priority is not None:
            check_priority(self.priority)

    @property
    def seconds(self) -> float:
        return self.delay.total_seconds() if isinstance(self.delay, timedelta) else float(self.delay)


def _storable(text: str) -> bool:
    try:
        return b"\x00" not in text.encode()
    except UnicodeEncodeError:
        return False


_PLAIN = Options()


class Call(Generic[R_co]):
    """A run that is not made yet: a job with its arguments and options."""

    __slots__ = ("job", "options", "parameters")

    def __init__(self, job: Job[Any, R_co], parameters: str, options: Options) -> None:
        self.job: Job[Any, Any] = job
        self.parameters, self.options = parameters, options

    @property
    def waits(self) -> bool:
        """For its time, or, it may be, for a slot of its job."""
        return bool(self.options.delay or self.options.run_at or self.job.policies.concurrency_limit)

    def new_run(self, parent: Context | None) -> NewRun:
        """What the store is to be told. A run that enqueues it is its parent."""
        options = self.options
        correlation = options.correlation_id or (parent.correlation_id if parent else None)
        return NewRun(
            job_id=self.job.name,
            parameters=self.parameters,
            priority=self.job.policies.priority if options.priority is None else options.priority,
            key=options.key,
            delay=options.seconds if options.delay else 0.0,
            run_at=options.run_at,
            correlation_id=correlation,
            parent_id=parent.run_id if parent else None,
        )


def listed(calls: Iterable[Call[R]]) -> list[Call[R]]:
    """What `enqueue_many` was given, if it is what that takes."""
    if not isinstance(calls, Iterable):
        raise BadInput(f"enqueue_many takes a list of calls, like [job.call(1), job.call(2)], not {calls!r}")
    wanted = list(calls)
    for call in wanted:
        if not isinstance(call, Call):
            raise BadInput(f"{call!r} is no call of a job: write job.call(...)")
    return wanted


class Enqueuer(Generic[P, R]):
    """A job with options for the runs to be made: `job.using(key="a").enqueue(...)`."""

    def __init__(self, job: Job[P, R], options: Options) -> None:
        self._job, self._options = job, options

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Arguments bound and checked; `enqueue_many` takes a list of these."""
        return Call(self._job, self._job.arguments.encode(args, kwargs), self._options)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Make a run of the job with these arguments."""
        return await self._job.app.enqueue(self.call(*args, **kwargs))

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """`enqueue` for code that does not await. With a `connection` it needs no event loop and no open app."""
        [run] = self._job.app.enqueue_many_sync([self.call(*args, **kwargs)])
        return run


class Job(Generic[P, R]):
    """A named function and its policies. Call it to run it here and now; `enqueue` it to run it once, somewhere."""

    def __init__(self, app: Rota, fn: Callable[..., Any], name: str, policies: Policies) -> None:
        if not _NAME.fullmatch(name):
            raise BadInput(
                f"job name {name!r} must be 1 to 200 letters, digits or _ . : / - and begin with none of . : / -"
            )
        self.app, self.fn, self.name, self.policies = app, fn, name, policies
        self.is_async = inspect.iscoroutinefunction(fn)
        if policies.transactional and not self.is_async:
            raise BadInput(
                f"job {name!r}: transactional=True needs an `async def`, since it shares the connection's loop"
            )
        self.arguments = Arguments(fn, name)
        self.failure_job: str | None = None
        self._result = _result_type(fn)
        self._plain: Enqueuer[P, R] = Enqueuer(self, _PLAIN)
        self.__doc__ = fn.__doc__
        self.__name__ = getattr(fn, "__name__", name)

    def __repr__(self) -> str:
        return f"<Job {self.name}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """The plain function. Outside of a run, a context is made up for it."""
        if self.arguments.wants_context:
            return self.fn(current_context() or detached_context(self.name), *args, **kwargs)
        return self.fn(*args, **kwargs)

    def using(
        self,
        *,
        key: str | None = None,
        delay: float | timedelta = 0.0,
        run_at: datetime | None = None,
        priority: int | None = None,
        correlation_id: str | None = None,
        connection: Connection | None = None,
    ) -> Enqueuer[P, R]:
        """Options for the runs to be made.

        `key`: the same key makes one run only; the second caller gets the first one's. `connection`: be part of the
        caller's transaction, with asyncpg, psycopg, SQLAlchemy, Django, sqlite3 or apsw.
        """
        options = Options(
            key=key,
            delay=delay,
            run_at=run_at,
            priority=priority,
            correlation_id=correlation_id,
            connection=connection,
        )
        return Enqueuer(self, options)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Arguments bound and checked; `enqueue_many` takes a list of these."""
        return self._plain.call(*args, **kwargs)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Make a run of this job, to be run once by any replica. `using(...)` sets a key, a delay and so on."""
        return await self.app.enqueue(Call(self, self.arguments.encode(args, kwargs), _PLAIN))

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """`enqueue` for code that does not await."""
        return self._plain.enqueue_sync(*args, **kwargs)

    async def enqueue_many(self, calls: Iterable[Call[R]], *, connection: Connection | None = None) -> list[Run[R]]:
        """Make many runs at once, all or none: `await job.enqueue_many(job.call(n) for n in range(1000))`."""
        wanted = listed(calls)
        for call in wanted:
            if call.job is not self:
                raise BadInput(f"{self} was given a call of {call.job}: app.enqueue_many takes calls of any job")
        return await self.app.enqueue_many(wanted, connection=connection)

    def on_failure(self, fn: FailureHandler | FailureHandlerWithContext) -> Job[[int, str], Any]:
        """Decorator: `fn(run_id, error)` runs, as a run of its own, when all attempts failed. `ctx` may come first."""
        handler = self.app.add_job(fn, f"{self.name}:on_failure", Policies(retry=Retry(attempts=3)))
        self.failure_job = handler.name
        return handler

    def decode_result(self, result: str | None) -> R:
        """The stored result as the annotated type, or as plain JSON where that does not fit any more."""
        value: Any = msgspec.json.decode(result) if result is not None else None
        with contextlib.suppress(msgspec.ValidationError, TypeError):
            value = msgspec.convert(value, self._result)
        return value  # type: ignore[no-any-return]

    def row(self) -> JobRow:
        """What the store is to know of it."""
        breaker = self.policies.breaker
        return JobRow(
            job_id=self.name,
            concurrency_limit=self.policies.concurrency_limit,
            breaker_failures=breaker.failures if breaker else None,
            breaker_pause=breaker.pause if breaker else 60.0,
        )


class AsyncJob(Job[P, R]):
    """A job of an `async def`: calling it gives the coroutine, to be awaited here and now."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """The coroutine of the function itself. Outside of a run, a context is made up for it."""
        return super().__call__(*args, **kwargs)  # type: ignore[no-any-return]


class PlainJob(Job[P, R]):
    """A job of a plain `def`: calling it calls the function here and now."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The plain function. Outside of a run, a context is made up for it."""
        return super().__call__(*args, **kwargs)  # type: ignore[no-any-return]


def make_job(app: Rota, fn: Callable[..., Any], name: str, policies: Policies) -> Job[..., Any]:
    """A job of the function's kind."""
    kind: type[Job[..., Any]] = AsyncJob if inspect.iscoroutinefunction(fn) else PlainJob
    return kind(app, fn, name, policies)


class FailureHandler(Protocol):
    """What `on_failure` decorates: called by these names, async or plain."""

    def __call__(self, run_id: int, error: str) -> object: ...


class FailureHandlerWithContext(Protocol):
    """The same, with a context of its own run."""

    def __call__(self, ctx: Context, /, run_id: int, error: str) -> object: ...


class JobDecorator(Protocol):
    """Keeps the signature of what it decorates, less the context that rota passes in."""

    @overload
    def __call__(self, fn: AsyncJob[P, R], /) -> AsyncJob[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, fn: PlainJob[P, R], /) -> PlainJob[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, fn: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /) -> AsyncJob[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncJob[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, fn: Callable[Concatenate[Context, P], R], /) -> PlainJob[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> PlainJob[P, R]: ...


def _result_type(fn: Callable[..., Any]) -> Any:
    try:
        hint = inspect.get_annotations(fn, eval_str=True).get("return", Any)
    except Exception:
        return Any
    return Any if hint is None or asyncio.iscoroutine(hint) else hint
