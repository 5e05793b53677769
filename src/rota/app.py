"""Rota: declarations in, services out. It only composes; each noun has a file of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, cast, overload

from rota.caller import Connection
from rota.context import Context, current_context
from rota.door import Door
from rota.electors import started_elector
from rota.errors import BadInput, BadParameters, NameClash, NotOpen, UnknownJob
from rota.events import Bus
from rota.execution import Span
from rota.hinter import Hinter
from rota.hold import Wanted
from rota.job import AsyncJob, Call, Job, JobDecorator, PlainJob, Policies, listed, make_job
from rota.keeper import Keeper
from rota.leader import Offices
from rota.leading import Leading
from rota.lock import Lock, limited, lock_name, semaphore_name, serial_name
from rota.options import EveryOptions, ScheduleOptions
from rota.policy import Breaker, CatchUp, Decider, Overlap, Retry
from rota.portal import Portal
from rota.probes import Probes
from rota.replica import Replica
from rota.results import Results
from rota.run import Run
from rota.schedule import Schedule, declaration
from rota.schema import check_schema
from rota.service import until_reached
from rota.settings import GivenSettings, Settings
from rota.snowflake import Snowflakes
from rota.store import Declaration, Enqueued, Hint, Store
from rota.stores import open_store
from rota.telemetry.logs import log_events
from rota.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")


class Rota(Leading, Door):
    """An app: its jobs and schedules, and the store that it shares with its other replicas."""

    # What it is made of; `rota.testing` puts parts in their place that are moved by hand.
    _new_store = staticmethod(open_store)
    _new_worker: Callable[..., Worker] = Worker
    _new_replica: Callable[..., Replica] = Replica

    def __init__(self, url: str | None = None, **settings: Unpack[GivenSettings]) -> None:
        super().__init__()
        self.settings = Settings.load(url=url, **settings)
        """What is in force: from the environment, and from what was given here."""
        self.jobs: dict[str, Job[..., Any]] = {}
        self.events = Bus()
        self.results = Results(lambda: self.store)
        self.ids = Snowflakes(lambda: self.store)
        """Numbers that no two replicas make twice."""
        self._schedules: dict[tuple[str, str], Declaration] = {}
        self._store: Store | None = None
        self._hinter: Hinter | None = None
        self._keeper: Keeper | None = None
        self._worker: Worker | None = None
        self._stack: AsyncExitStack | None = None
        self._logging = False

    # -- declarations ------------------------------------------------------------------------------

    @overload
    def job(self, fn: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /) -> AsyncJob[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def job(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncJob[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def job(self, fn: Callable[Concatenate[Context, P], R], /) -> PlainJob[P, R]: ...
    @overload
    def job(self, fn: Callable[P, R], /) -> PlainJob[P, R]: ...
    @overload
    def job(
        self,
        name: str | None = None,
        *,
        retry: int | Retry = 0,
        timeout: float | timedelta | None = None,
        concurrency_limit: int = 0,
        priority: int = 5,
        breaker: int | Breaker | None = None,
        transactional: bool = False,
    ) -> JobDecorator: ...
    def job(
        self,
        name: str | Callable[..., Any] | None = None,
        *,
        retry: int | Retry = 0,
        timeout: float | timedelta | None = None,
        concurrency_limit: int = 0,
        priority: int = 5,
        breaker: int | Breaker | None = None,
        transactional: bool = False,
    ) -> Any:
        """Decorator: make a function, async or plain, a job that any replica can run. With or without parentheses."""
        policies = _policies(retry, timeout, breaker, transactional, concurrency_limit, priority)
        if callable(name):
            return self.add_job(name, None, policies)
        return lambda fn: self.add_job(fn, name, policies)

    def cron(
        self,
        expression: str,
        *,
        name: str = "default",
        job: str | None = None,
        timezone: str | None = None,
        parameters: dict[str, Any] | None = None,
        overlap: Overlap = "skip",
        catch_up: CatchUp = "latest",
        catch_up_limit: int = 100,
        skip_if_older_than: float | timedelta = timedelta(days=1),
        concurrency_limit: int = 1,
        lock_timeout_seconds: int = 300,
        priority: int = 5,
        retry: int | Retry = 0,
        timeout: float | timedelta | None = None,
        breaker: int | Breaker | None = None,
        transactional: bool = False,
    ) -> JobDecorator:
        """Decorator: run this function at each tick of the expression, once in the whole cluster.

        On top of another decorator of the same function it adds a schedule of another `name`.
        """
        policies = _policies(retry, timeout, breaker, transactional, 0, priority)

        def decorate(fn: Any) -> Job[..., Any]:
            if isinstance(fn, Job) and policies != Policies(priority=priority):
                raise BadInput(f"{fn!r} has its policies already; say retry, timeout and so on where it is declared")
            wanted = declaration(
                fn.name if isinstance(fn, Job) else job or fn.__name__, expression, name=name, timezone=timezone,
                priority=priority, parameters=parameters, concurrency_limit=concurrency_limit,
                lock_timeout_seconds=lock_timeout_seconds, overlap=overlap, catch_up=catch_up,
                catch_up_limit=catch_up_limit, skip_if_older_than=skip_if_older_than,
            )  # fmt: skip
            made = fn if isinstance(fn, Job) else self._make_job(fn, job, policies)
            made.arguments.decode(wanted.parameters)
            key = (wanted.job_id, wanted.name)
            if self._schedules.get(key, wanted) != wanted:
                raise NameClash(
                    f"job {key[0]!r} has two different schedules named {key[1]!r}; give one of them another name"
                )
            self.jobs[made.name], self._schedules[key] = made, wanted
            return made

        return cast(JobDecorator, decorate)

    def every(self, interval: str | float | timedelta, **options: Unpack[EveryOptions]) -> JobDecorator:
        """Decorator: run this function every `"10s"`, `"5m"`, `"1h30m"`, so many seconds or a timedelta.

        Ticks are the multiples of the interval since 1970 in UTC, the same on every replica. Options as for `cron`.
        """
        if not isinstance(interval, str):
            seconds = interval.total_seconds() if isinstance(interval, timedelta) else float(interval)
            if seconds != int(seconds):
                raise BadInput(f"every({interval!r}): an interval is a whole number of seconds")
            interval = f"{int(seconds)}s"
        return self.cron(f"every {interval.removeprefix('every ')}", **options)

    def add_job(self, fn: Callable[..., Any], name: str | None, policies: Policies) -> Job[..., Any]:
        """What `job` does with a function."""
        made = self._make_job(fn, name, policies)
        self.jobs[made.name] = made
        return made

    def _make_job(self, fn: Callable[..., Any], name: str | None, policies: Policies) -> Job[..., Any]:
        if isinstance(fn, Job):
            raise BadInput(f"{fn!r} is a job already; stack `cron` or `every` on top of `job`, not the other way round")
        made = make_job(self, fn, name or fn.__name__, policies)
        known = self.jobs.get(made.name)
        if known is None:
            return made
        if known.fn is fn and known.policies == policies:
            return known
        if known.fn is fn:
            raise NameClash(f"job {made.name!r} is declared twice, with different policies")
        raise NameClash(
            f"two functions are declared as job {made.name!r}: {_where(known.fn)} and {_where(fn)}; "
            "give one of them another name"
        )

    def check_parameters(self, job_id: str, parameters: str) -> None:
        """Raises `UnknownJob`, or `BadParameters` where this JSON does not fit the job's signature."""
        job = self.jobs.get(job_id)
        if job is None:
            raise UnknownJob(f"unknown job {job_id!r}; this app declares: {', '.join(sorted(self.jobs)) or 'none'}")
        job.arguments.decode(parameters)

    # -- life --------------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        """The database, as rota's own parts see it. `NotOpen` when the app is not open."""
        if self._store is None or self._portal is None:
            raise NotOpen
        self._portal.check_caller(self._replica.loop if self._replica is not None else None)
        return self._store

    async def __aenter__(self) -> Self:
        """Run as a replica: schedules fire, jobs run, until the block ends."""
        self._refuse_if_open()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.client())
            await self.store.declare([job.row() for job in self.jobs.values()], list(self._schedules.values()))
            await stack.enter_async_context(self._services())
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trail: TracebackType | None
    ) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            await stack.__aexit__(kind, error, trail)

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Self]:
        with self._entrance() as portal:
            async with self._store_open(portal):
                yield self

    @asynccontextmanager
    async def _store_open(self, portal: Portal) -> AsyncIterator[None]:
        if not self._logging:
            self._logging = True
            log_events(self.events)
        store = self._new_store(self.settings)
        await until_reached(partial(_open, store, migrate=self.settings.migrate), self.settings.connect_timeout)
        self._store = store
        self.results = Results(lambda: self.store)
        self._hinter = Hinter(store) if self.settings.hints else None
        self._keeper = keeper = Keeper(
            store, self.settings.replica, emit=self.events.emit, hint=lambda: self.hint("locks")
        )
        try:
            yield
        finally:
            portal.close()
            await keeper.close()
            await self.results.close()
            await self.ids.close()
            if self._hinter is not None:
                await self._hinter.close()
            self._store = self._hinter = self._keeper = None
            await store.close()

    @asynccontextmanager
    async def _services(self) -> AsyncIterator[None]:
        replica: Replica
        keeper = self._holding()
        worker = self._new_worker(
            self.store,
            self.settings,
            self._handlers(),
            standing=lambda: replica.id if replica.trusted else 0,
            slot_freed=lambda: replica.wake_scheduler(),
            finished=self.results.hint,
            tell=lambda: self.hint("ready"),
            emit=self.events.emit,
            wanted=self.events.wanted,
            span=_span_of_runs(),
        )
        replica = self._new_replica(
            self.settings,
            lambda: self._new_store(self.settings, tag=getattr(self.store, "tag", None)),
            crew=worker,
            jobs=sorted(self.jobs),
            decide=Decider(late_after=self.settings.late_after, check=self._wrong_with),
            emit=self.events.emit,
            roles={office.role: office.takeover or "prompt" for office in self._offices.values()},
            make_elector=lambda replica: started_elector(self.settings, replica, self.events.emit),
        )
        offices = Offices(
            list(self._offices.values()), self.settings, store=lambda: self.store, stopped=replica.stopped,
            let_go=replica.let_go, emit=self.events.emit,
        )  # fmt: skip
        replica.court = offices
        try:
            await replica.start()
            keeper.serve(replica.trust, lambda: replica.id)
            replica.lock_released = keeper.lines.heard
            self._worker, self._replica = worker, replica
            worker.start()
            with self._probed(replica):
                yield
        finally:
            self._worker = None
            await _surely(_wind_down(worker, keeper, replica, offices))
            self._replica = None

    def _handlers(self) -> dict[str, Job[..., Any]]:
        """The jobs as the worker runs them; an integration may put something around their functions."""
        return dict(self.jobs)

    @contextmanager
    def _probed(self, replica: Replica) -> Iterator[None]:
        if not self.settings.probes:
            yield
            return
        probes = Probes(self.settings.probes, replica.not_ready, lambda: replica.loop)
        try:
            yield
        finally:
            probes.close()

    def _wrong_with(self, job_id: str, parameters: str) -> str | None:
        try:
            self.check_parameters(job_id, parameters)
        except (BadParameters, UnknownJob) as error:
            return str(error)
        return None

    # -- runs and schedules ------------------------------------------------------------------------

    async def enqueue(self, call: Call[R]) -> Run[R]:
        """Make one run: `app.enqueue(job.call(1))` is `job.enqueue(1)`."""
        if not isinstance(call, Call) or call.job.app is not self:
            _check_calls(self, listed([call]))
        if call.options.connection is not None or current_context() is not None:
            [run] = await self.enqueue_many([call])
            return run
        hinter = self._hinter if self._worker is None and not call.waits else None
        lead = hinter is not None and hinter.lead()
        made = await self.store.enqueue_one(call.new_run(None), tell=lead)
        if hinter is None:
            self._tell((call,))
        elif not lead:
            hinter.hint("ready")
        elif not made.told:
            hinter.failed("ready")
        return Run(self, made.id, call.job.name, created=made.created)

    async def enqueue_many(self, calls: Iterable[Call[R]], *, connection: Connection | None = None) -> list[Run[R]]:
        """Make many runs at once, all or none, of any jobs: `app.enqueue_many([a.call(1), b.call("x")])`.

        `connection`: be part of the caller's transaction; the app need not be open then.
        """
        wanted = _check_calls(self, listed(calls))
        if not wanted:
            return []
        within = _connection_of(self, wanted, connection)
        parent = current_context()
        runs = [call.new_run(parent) for call in wanted]
        if within is not None:
            # Nobody can see them before the commit, and the commit itself tells the replicas.
            return self._handles(wanted, await self._any_store().enqueue(runs, within))
        made = await self.store.enqueue(runs)
        self._tell(wanted)
        return self._handles(wanted, made)

    def enqueue_many_sync(self, calls: Iterable[Call[R]], *, connection: Connection | None = None) -> list[Run[R]]:
        """`enqueue_many` for code that does not await.

        With `connection` it happens in the calling thread, and the app need not be open.
        """
        wanted = _check_calls(self, listed(calls))
        if not wanted:
            return []
        within = _connection_of(self, wanted, connection)
        if within is None:
            return self.wait(self.enqueue_many(wanted))
        parent = current_context()
        runs = [call.new_run(parent) for call in wanted]
        return self._handles(wanted, self._any_store().enqueue_sync(runs, within))

    def _any_store(self) -> Store:
        """To say something on a caller's connection no connection of ours is needed."""
        return self._store or open_store(self.settings)

    def _handles(self, calls: list[Call[R]], made: list[Enqueued]) -> list[Run[R]]:
        return [Run(self, m.id, call.job.name, created=m.created) for m, call in zip(made, calls, strict=True)]

    def hint(self, kind: Hint) -> None:
        """Tell the other replicas, soon; nothing depends on it."""
        if self._hinter is not None:
            self._hinter.hint(kind)

    def _tell(self, made: Sequence[Call[R]]) -> None:
        """Whoever could do something about these runs."""
        if self._worker is not None:
            self._worker.wake()
        if self._worker is None or self._worker.room() < len(made):
            self.hint("ready")
        for call in made:
            if call.waits:
                self.hint("schedules")
                break

    async def schedule(
        self, job: Job[..., Any] | str, cron: str, *, name: str = "default", **options: Unpack[ScheduleOptions]
    ) -> Schedule:
        """Set a schedule at run time, here and now: insert it, or replace the one of that name."""
        job_id = job.name if isinstance(job, Job) else job
        wanted = declaration(job_id, cron, name=name, **options)
        self.check_parameters(job_id, wanted.parameters)
        return Schedule(self, await self.store.put_schedule(wanted))

    async def schedules(self, job: str | None = None, name: str | None = None) -> list[Schedule]:
        """The schedules in the store, declared or not."""
        return [Schedule(self, row) for row in await self.store.list_schedules(job, name)]

    def run(self, run_id: int) -> Run[Any]:
        """A handle on a run by its id."""
        return Run(self, run_id, "")

    # -- locks -------------------------------------------------------------------------------------

    def lock(self, *key: str | int, timeout: float | None = None) -> Lock:
        """What one of all replicas has at a time: `async with app.lock("ledger") as lock:`.

        The key is a string, a number of 64 bits, or two of 32. `timeout`: seconds to wait for it, if not for ever.
        """
        return Lock(self._holding, Wanted(lock_name(key)), timeout)

    def semaphore(self, name: str, *, limit: int, timeout: float | None = None) -> Lock:
        """A lock that up to `limit` hold at a time. Give the same limit everywhere."""
        return Lock(self._holding, Wanted(semaphore_name(name), limited(limit)), timeout)

    def serialize(self, key: str | int, *, timeout: float | None = None) -> Lock:
        """Things of one key never overlap, on any replica: `async with app.serialize(workspace):`."""
        return Lock(self._holding, Wanted(serial_name(key)), timeout)

    def _holding(self) -> Keeper:
        if self._keeper is None or self._portal is None:
            raise NotOpen
        self._portal.check_caller(None)
        return self._keeper


def _check_calls(app: Rota, calls: list[Call[R]]) -> list[Call[R]]:
    """Nobody would look for runs of another app's job here."""
    for call in calls:
        if call.job.app is not app:
            raise BadInput(f"{call.job} belongs to another Rota: enqueue it there")
    return calls


def _connection_of(app: Rota, calls: list[Call[Any]], given: Any) -> Any:
    """The one transaction that all of these are to be part of: the one given, or that of a transactional run."""
    for call in calls:
        own = call.options.connection
        if own is not None and given is not None and own is not given:
            raise BadInput("runs that are enqueued together must have the same connection=")
        given = given if own is None else own
    context = current_context()
    # A run of another app has its transaction in that one's database, where nobody would look for runs of this one.
    if given is None and context is not None and context._app is app:
        given = context.connection
    return given


def _span_of_runs() -> Span | None:
    """What OpenTelemetry puts around each attempt, where it is installed and somebody listens."""
    try:
        from rota.telemetry.traces import span_of_runs
    except ModuleNotFoundError:
        return None
    return span_of_runs()


async def _open(store: Store, *, migrate: bool) -> None:
    """See also that its tables are ours."""
    try:
        await store.open()
        await check_schema(store, migrate=migrate)
    except BaseException:
        await store.close()
        raise


async def _surely(work: Coroutine[Any, Any, None]) -> None:
    """To its end, however often this is cancelled: every wait in it has one of its own."""
    task, cancelled = asyncio.ensure_future(work), None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    task.result()


async def _wind_down(worker: Worker, keeper: Keeper, replica: Replica, offices: Offices) -> None:
    """Leaderships are handed on while the last runs are finished; the replica leaves when it holds nothing."""
    try:
        await replica.end_terms()
        await asyncio.gather(worker.stop(), offices.drained(replica.settings.shutdown_timeout))
        await keeper.close()
    finally:
        await replica.stop()


def _policies(
    retry: int | Retry,
    timeout: float | timedelta | None,
    breaker: int | Breaker | None,
    transactional: bool,
    concurrency_limit: int,
    priority: int,
) -> Policies:
    return Policies(
        retry=Retry(attempts=retry) if isinstance(retry, int) else retry,
        timeout=timeout.total_seconds() if isinstance(timeout, timedelta) else timeout,
        breaker=Breaker(failures=breaker) if isinstance(breaker, int) else breaker,
        transactional=transactional,
        concurrency_limit=concurrency_limit,
        priority=priority,
    )


def _where(fn: Callable[..., Any]) -> str:
    return f"{fn.__module__}.{fn.__qualname__}"
