"""The contract of a store: one method = one whole transition in one transaction.

Two stores keep it, Postgres and SQLite; one conformance suite holds both to it. The rules that every method obeys:

- The store's clock decides (`now`), never the caller's. All datetimes are aware and in UTC.
- A method either happens entirely or not at all. When the reply to COMMIT is lost the caller may call again with the
  same arguments: tokens, keys and ids are made before the first try, so the second finds what the first one did.
- `ready` holds what may start now. Time (`delayed`) and limits (`waiting`) are settled before a run gets there, so
  a claim looks at nothing but the order.
- A run is changed by its holder only with the token of its claim; a run given to somebody else has another token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from rota.clock import steady
from rota.contract.findings import Diagnosis
from rota.contract.locks import Locks
from rota.contract.nodes import Nodes
from rota.contract.places import Start, nowhere
from rota.contract.roles import Roles
from rota.contract.row import Row
from rota.contract.singletons import Singletons
from rota.settings import Settings

State = Literal["queued", "running", "succeeded", "failed", "cancelled", "skipped"]
FINISHED: frozenset[str] = frozenset({"succeeded", "failed", "cancelled", "skipped"})
Hint = Literal["ready", "schedules", "cancel", "finished", "roles", "locks"]
HINTS: tuple[Hint, ...] = get_args(Hint)
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_STEP = 30_000_000
"""What a step of priority is worth in microseconds of waiting."""


class JobRow(Row, frozen=True, kw_only=True):
    """What the cluster must know of a job: its limit and its breaker."""

    job_id: str
    concurrency_limit: int = 0
    breaker_failures: int | None = None
    breaker_pause: float = 60.0


class Declaration(Row, frozen=True, kw_only=True):
    """A schedule as code, or a caller, wants it."""

    job_id: str
    name: str = "default"
    cron: str
    timezone: str | None = None
    enabled: bool = True
    priority: int = 5
    concurrency_limit: int = 1
    lock_timeout_seconds: int = 300
    parameters: str = "{}"
    overlap: str = "skip"
    catch_up: str = "latest"
    catch_up_limit: int = 100
    skip_if_older_than_seconds: int = 86400


class ScheduleRow(Declaration, frozen=True, kw_only=True):
    """A row of `scheduler_configs` with its execution metadata."""

    id: int
    version: int
    next_run_at: datetime | None
    paused_at: datetime | None
    resumed_at: datetime | None
    invalid_reason: str | None
    declared: str | None
    created_at: datetime
    updated_at: datetime
    last_run_at: datetime | None = None
    last_state: str | None = None
    run_count: int = 0
    failure_count: int = 0
    last_error: str | None = None


class Revision(Row, frozen=True, kw_only=True):
    """What is to become of schedules, all at once."""

    add: tuple[Declaration, ...] = ()
    change: tuple[tuple[int, dict[str, Any]], ...] = ()
    """Id, and the fields to set."""
    remove: tuple[int, ...] = ()


Revise: TypeAlias = Callable[[Sequence[ScheduleRow]], Revision]


class TrippedBreaker(Row, frozen=True, kw_only=True):
    """A job's breaker that is not closed."""

    job_id: str
    breaker: Literal["open", "half_open"]
    consecutive_failures: int
    changed_at: datetime
    pause: float
    """Seconds from then on until the next probe is let through."""


class DueSchedule(msgspec.Struct, frozen=True, gc=False):
    """A schedule that is due (or was never computed), with what `decide` needs to know.

    Thousands may be due at once, so a store makes one from its row as it comes: in this order.
    """

    next_run_at: datetime | None
    id: int
    version: int
    job_id: str
    cron: str
    timezone: str | None
    parameters: str
    paused_at: datetime | None
    resumed_at: datetime | None
    as_declared: bool
    """Its parameters are those that some code declared."""
    priority: int = 5
    concurrency_limit: int = 1
    lock_timeout_seconds: int = 300
    overlap: str = "skip"
    catch_up: str = "latest"
    catch_up_limit: int = 100
    skip_if_older_than_seconds: int = 86400
    held: int = 0
    """Slots of this schedule that are taken."""
    waiting: int = 0
    """Its runs that wait for a slot."""
    job_limited: bool = False
    breaker: Literal["closed", "open", "half_open"] = "closed"
    breaker_retry_at: datetime | None = None
    """When an open (or stuck half-open) breaker lets the next probe through."""


class Tick(Row, frozen=True, kw_only=True):
    """One row to be written to the ledger: a run, or the reason why there is none."""

    due_at: datetime
    key: str
    place: Literal["ready", "waiting", "none"]
    reason: str | None = None
    missed_from: datetime | None = None
    missed_to: datetime | None = None
    missed_count: int | None = None


class Decision(Row, frozen=True, kw_only=True):
    """What becomes of one due schedule."""

    schedule: DueSchedule
    next_run_at: datetime | None
    ticks: tuple[Tick, ...] = ()
    cancel_running: bool = False
    probe: bool = False
    invalid_reason: str | None = None
    plain: bool = False
    """The tick that was due is ready to run, and nothing else is to be said."""


Decide: TypeAlias = Callable[[datetime, Sequence[DueSchedule]], list[Decision]]


class Fired(Row, frozen=True, kw_only=True):
    """What one `fire_due` did."""

    schedules: int = 0
    runs: int = 0
    ready: int = 0
    skipped: int = 0
    contended: tuple[int, ...] = ()
    """Schedules whose advisory lock somebody else holds; they were left as they are."""
    invalid: tuple[tuple[int, str], ...] = ()
    lateness: float = 0.0
    """Seconds between the oldest tick made ready and the moment it was made so."""
    claims: tuple[Claim, ...] = ()
    """Runs that got a place: they are this replica's, as if it had claimed them."""


class Agenda(Row, frozen=True, kw_only=True):
    """When the scheduler has something to do next."""

    due: bool
    """Some schedule is due now (or was left because it is locked)."""
    delayed: bool
    """Some delayed run's time has come."""
    due_in: float | None
    """Seconds until the next schedule that is not due yet."""
    delayed_in: float | None
    """Seconds until the time of the next delayed run comes."""
    waiting: bool
    """Some run waits for a slot."""

    @property
    def next_in(self) -> float | None:
        """Seconds until the next thing that is not due yet."""
        return min((seconds for seconds in (self.due_in, self.delayed_in) if seconds is not None), default=None)


class NewRun(Row, frozen=True, kw_only=True, gc=False):
    """A run to be made."""

    job_id: str
    parameters: str = "{}"
    priority: int = 5
    key: str | None = None
    delay: float = 0.0
    run_at: datetime | None = None
    """When set, wins over `delay`."""
    correlation_id: str | None = None
    parent_id: int | None = None


class Enqueued(Row, frozen=True, kw_only=True, gc=False):
    """The id of the run asked for; `created` is false when its key had made one before."""

    id: int
    created: bool
    told: bool = False
    """The other replicas have been told of it."""


class Claim(msgspec.Struct, frozen=True, gc=False):
    """A run that this replica holds now."""

    token: int
    id: int
    job_id: str
    attempt: int
    losses: int
    parameters: str
    key: str | None
    due: int
    """`due_at` in microseconds since 1970: few handlers ask for it."""
    config_id: int | None
    correlation_id: str
    slot: bool
    rank: int

    @property
    def due_at(self) -> datetime:
        """Its tick; for a run made by hand, when it was made."""
        return instant(self.due)


class Claimed(Row, frozen=True, kw_only=True):
    """What a claim brought."""

    claims: list[Claim]
    more: bool = False
    """There may be more to be had at once."""
    busy: bool = False
    """Others were just taking some that they may leave: look again in a moment."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How an attempt ended. State `queued` means: again after `delay` seconds."""

    id: int
    token: int
    state: Literal["succeeded", "failed", "cancelled", "queued"]
    slot: bool = False
    result: str | None = None
    error: str | None = None
    delay: float = 0.0
    released: bool = False
    """The attempt does not count: it was never started, or was interrupted by a shutdown."""
    then: NewRun | None = None
    """A run to be made in the same transaction, if the outcome is accepted."""
    plain: bool = False
    """A success that leaves nothing but the fact: no result, and no breaker that counts it."""


class Finished(Row, frozen=True, kw_only=True):
    """What became of a batch of outcomes."""

    accepted: frozenset[int]
    lost: tuple[int, ...]
    """Runs that another replica has by now; their outcomes were refused."""
    freed: bool
    """A slot became free that somebody waits for."""


class RunRow(Row, frozen=True, kw_only=True):
    """A row of `job_runs`."""

    id: int
    job_id: str
    config_id: int | None
    idempotency_key: str | None
    correlation_id: str
    parent_id: int | None
    parameters: str
    priority: int
    state: State
    reason: str | None
    attempt: int
    losses: int
    run_at: datetime
    due_at: datetime | None
    missed_from: datetime | None
    missed_to: datetime | None
    missed_count: int | None
    replica_id: int | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    progress: str | None
    result: str | None
    error: str | None


class ReplicaRow(Row, frozen=True, kw_only=True):
    """A replica that is alive, or was a moment ago."""

    id: int
    name: str
    host: str
    pid: int
    jobs: tuple[str, ...]
    started_at: datetime
    beat_at: datetime
    silent: float = 0.0
    """Seconds since its last beat, by the clock that wrote it."""


class Pulse(Row, frozen=True, kw_only=True):
    """What a beat brings back."""

    alive: bool
    """False: this replica was deposed. It must drop everything it held and join anew."""
    cancelled: tuple[int, ...] = ()
    """Runs held by this replica that somebody asked to stop."""
    ready: bool = False
    due_in: float | None = None
    """Seconds until the next due schedule or delayed run."""
    suspects: tuple[int, ...] = ()
    """Only for the caretaker: replicas whose session lock is free. Those without one are never among them."""
    stale: tuple[int, ...] = ()
    """Only for the caretaker: replicas whose beat is older than `dead_after`."""
    caretaker: bool = False
    """This replica is the one that looks after the dead."""
    replicas: int = 1
    """How many there are, this one among them, and the dead that are not buried yet."""


class Buried(Row, frozen=True, kw_only=True):
    """What was freed of the dead."""

    replicas: tuple[int, ...] = ()
    requeued: tuple[int, ...] = ()
    cancelled: tuple[int, ...] = ()


class RunFilter(Row, frozen=True, kw_only=True):
    """Which runs to list; what is None does not narrow."""

    job_id: str | None = None
    config_id: int | None = None
    states: tuple[str, ...] | None = None
    correlation_id: str | None = None
    key_prefix: str | None = None
    since: datetime | None = None
    after_id: int | None = None
    touched_since: datetime | None = None
    """Made, started or finished since then."""
    longest: bool = False
    """Those that took longest, or have been running for longest, first; those that never started are left out."""
    limit: int = 100


class Lifeline(ABC):
    """A replica's dedicated connection: its session lock and its beat. Lives in the control thread, is never pooled."""

    replica_id: int
    identity: str
    """Which database this is: it changes when another one (a promoted standby, a restored file) answers instead."""
    lost: Callable[[], None] | None = None
    """Called, from any thread, when the connection breaks between two beats."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._beaten_at = steady()
        self.judges_from = self._beaten_at + settings.dead_after
        """Whoever was cut off itself cannot tell whether the others were silent or the database was. It calls nobody
        dead before it has beaten on time for as long as the others may be silent."""

    def _may_judge(self, age: float) -> bool:
        """To be asked once after every confirmed beat; `age` is that of the one before, by the store's clock."""
        now = steady()
        if max(age, now - self._beaten_at) > self._settings.lease:
            self.judges_from = now + self._settings.dead_after
        self._beaten_at = now
        return now >= self.judges_from

    @abstractmethod
    async def beat(self, *, holding: bool) -> Pulse:
        """Say that this incarnation lives; renew the slots it holds; learn what it should know.

        `holding`: the replica runs something. At most one replica at a time is told that it is the caretaker; with the
        elector `lease` two may be for a moment, which harms nobody.
        Raises `StoreUnavailable` when the database does not answer; the caller then closes this lifeline.
        """

    @abstractmethod
    async def close(self) -> None:
        """Give up the session lock at once, without waiting for an answer."""


class Store(Roles, Singletons, Locks, Nodes, Diagnosis):
    """A database that keeps schedules, runs and replicas, and what only one may have. Belongs to one event loop."""

    most_locked = 10_000
    """How many advisory locks one transaction should take."""

    # -- life of the store -------------------------------------------------------------------------

    @abstractmethod
    async def open(self) -> None:
        """Connect. Raises `StoreUnavailable` at once when that fails; the caller decides whether to try again."""

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    async def schema_version(self) -> tuple[int, int]:
        """The version of the tables, and the oldest code that can still use them; (0, 0) when there are none."""

    @abstractmethod
    async def migrate(self, applied: Callable[[str], None] | None = None) -> list[str]:
        """Bring the tables forward, one transaction each, under a lock; the names of the migrations applied.

        `applied` is told each name as it is done, in whatever thread.
        """

    @abstractmethod
    async def now(self) -> datetime:
        """The store's clock (`rota_now()`)."""

    # -- schedules ---------------------------------------------------------------------------------

    @abstractmethod
    async def declare(self, jobs: Sequence[JobRow], schedules: Sequence[Declaration]) -> None:
        """Make what the code declares known.

        A schedule that is not there is inserted. Of one that is there, the fields whose *declared* value changed since
        the last declaration are set; all others keep what an operator made of them. Rows of these jobs that were
        marked invalid are looked at again.
        """

    @abstractmethod
    async def put_schedule(self, schedule: Declaration) -> ScheduleRow:
        """Insert, or replace every field of, the schedule `(job_id, name)`."""

    @abstractmethod
    async def update_schedule(self, schedule_id: int, version: int, changes: dict[str, Any]) -> ScheduleRow:
        """Set columns if the row still has this version, else `StaleWrite`. `NotFound` when it is gone."""

    @abstractmethod
    async def revise_schedules(self, revise: Revise) -> list[ScheduleRow]:
        """Change several schedules, all or none: read every one, locked; do what `revise`, which must not do I/O, says.

        Those that were added or changed, by job and name. When `revise` raises, nothing happens. `StaleWrite` when one
        that is to be added was added by somebody else meanwhile.
        """

    @abstractmethod
    async def delete_schedule(self, schedule_id: int) -> bool:
        """Remove a schedule. Its runs stay, without a reference to it."""

    @abstractmethod
    async def list_schedules(
        self, job_id: str | None = None, name: str | None = None, schedule_id: int | None = None
    ) -> list[ScheduleRow]:
        """All, or those of a job, of a name, or the one with this id."""

    @abstractmethod
    async def trigger(self, schedule_id: int, due_at: datetime | None) -> Enqueued:
        """Make a run of this schedule, with its parameters and priority, now.

        With `due_at` it is the run of that tick: if the ledger has it already, that run is returned.
        """

    @abstractmethod
    async def trigger_ticks(self, schedule_id: int, ticks: Sequence[datetime]) -> list[Enqueued]:
        """`trigger` for many ticks, all or none. A tick that was summed up in a row of missed ones leaves that sum."""

    @abstractmethod
    async def ledger(self, schedule_id: int, first: datetime, last: datetime) -> list[RunRow]:
        """The rows of the schedule's ticks in [first, last], and of the missed stretches that reach into it."""

    @abstractmethod
    async def tripped_breakers(self) -> list[TrippedBreaker]:
        """Of all jobs, by name."""

    @abstractmethod
    async def fire_due(
        self,
        decide: Decide,
        *,
        jobs: Sequence[str],
        limit: int,
        advisory: bool,
        leave: Sequence[int],
        start: Start = nowhere,
        wait: float = 0.0,
    ) -> Fired:
        """Turn due schedules into ticks, in one transaction: those that are due now, or in so many seconds, which are
        waited for. What is decided ahead is made only where nothing has changed since, else it is left as it is.

        Claims up to `limit` enabled, valid schedules of `jobs` whose `next_run_at` is null or has come, best priority
        and longest overdue first, except `leave` and those that another transaction has locked; with `advisory` takes
        the advisory lock of each (those that cannot be had are `contended`). Calls `decide`, which must not do I/O,
        writes the ticks it returns (a tick that the ledger has already is left as it is), takes their slots, and
        advances `next_run_at` where the version is still the one that was read, else `StaleWrite`. Plain ones that
        `start` has a place for are claimed under its token as they are made; when the reply is lost, see `reclaim`.
        """

    @abstractmethod
    async def promote_due(self, limit: int) -> int:
        """Move delayed runs whose time has come to `ready`, or to `waiting` if they need a slot. How many."""

    @abstractmethod
    async def admit_waiting(self) -> int:
        """Give free slots to the runs that wait for them, best rank first. Never more than the limit. How many."""

    @abstractmethod
    async def agenda(self, jobs: Sequence[str]) -> Agenda: ...

    @abstractmethod
    async def mark_unknown(self) -> list[tuple[int, str]]:
        """Mark enabled schedules whose job no live replica knows as invalid; (id, reason) of each newly marked."""

    # -- runs --------------------------------------------------------------------------------------

    @abstractmethod
    async def enqueue(self, runs: Sequence[NewRun], connection: Any = None) -> list[Enqueued]:
        """Make runs, all or none, in order; with `connection`, as part of the caller's transaction."""

    async def enqueue_one(self, run: NewRun, *, tell: bool = False) -> Enqueued:
        """The same for one run, which is what most callers make.

        `tell`: have the other replicas hear of it at once, where that takes no trip of its own.
        """
        [made] = await self.enqueue([run])
        return made

    @abstractmethod
    def enqueue_sync(self, runs: Sequence[NewRun], connection: Any) -> list[Enqueued]:
        """The same on a caller's connection that is not async, in the calling thread. The store need not be open."""

    @abstractmethod
    async def claim_runs(self, replica_id: int, token: int, jobs: Sequence[str], limit: int) -> Claimed:
        """Take up to `limit` ready runs of these jobs, best rank first; they are `running`, one attempt further.

        Under a token that nobody had before; when the reply is lost, see `reclaim`.
        """

    @abstractmethod
    async def reclaim(self, replica_id: int, token: int) -> list[Claim]:
        """The runs that were claimed under this token, when the reply was lost.

        If there are none there never will be: whatever would still claim under it fails as a whole.
        """

    @abstractmethod
    async def finish_runs(self, outcomes: Sequence[Outcome], closed: Sequence[int]) -> Finished:
        """Record how attempts ended, each only if the run still has the token. `closed`: claims that are used up.

        Frees slots, plans retries, counts for the breaker and for the schedule's metadata, all in the same transaction.
        """

    @abstractmethod
    def transaction(self, claim: Claim) -> AbstractAsyncContextManager[tuple[Any, Callable[[Outcome], Any]]]:
        """A connection in a transaction, and an async function that finishes the run inside it.

        The block's end commits; an exception rolls back. `RunLost` when the token is not the run's any more.
        """

    @abstractmethod
    async def report_progress(self, items: Sequence[tuple[int, int, str]]) -> None:
        """(run, token, progress as JSON): shown while the run is running."""

    @abstractmethod
    async def get_runs(self, ids: Sequence[int]) -> list[RunRow]: ...

    @abstractmethod
    async def find_runs(self, which: RunFilter) -> list[RunRow]:
        """Newest first, unless the filter asks for the longest."""

    @abstractmethod
    async def running_runs(self) -> list[RunRow]:
        """What the replicas have in hand. Found by their claims, however long the history is."""

    @abstractmethod
    async def cancel_run(self, run_id: int) -> State:
        """A queued run is cancelled now; a running one is asked to stop. The state after that. `NotFound`."""

    @abstractmethod
    async def retry_run(self, run_id: int) -> State:
        """A failed, cancelled or skipped run is queued again under its key, all attempts anew.

        `WrongState`, `NotFound`.
        """

    @abstractmethod
    async def prune(self, keep_days: float, limit: int) -> int:
        """Delete up to `limit` runs that finished longer ago; how many. The newest tick of each
        schedule stays, and the last run that it made."""

    # -- replicas ----------------------------------------------------------------------------------

    @abstractmethod
    async def join(self, name: str, host: str, pid: int, jobs: Sequence[str], resume: int | None = None) -> Lifeline:
        """A new incarnation: a row, and a session lock that was taken before the row could be seen.

        With the elector `lease` there is no session lock: the row says so, and the replica lives by its beat alone.
        `PooledConnection` when a pooler lies in between that would break the lock, `Misconfigured` when the control
        connection leads to another database.

        With `resume`, that incarnation of this same process goes on if nobody has buried it: whoever lost a connection
        does not lose its runs. The lifeline's `replica_id` tells which it was.
        """

    @abstractmethod
    async def leave(self, replica_id: int) -> Buried:
        """The last act of a replica that stops: its row goes, and whatever it still held is free."""

    @abstractmethod
    async def bury(self, dead: Sequence[int]) -> Buried:
        """Free what the dead held, once: whoever removes the replica's row does it, nobody else.

        Runs go back to `ready` keeping their slots, with one loss more; those asked to cancel are cancelled. Also takes
        back runs whose slot expired, or whose claim belongs to no replica. A deposed session is ended.
        """

    @abstractmethod
    async def list_replicas(self) -> list[ReplicaRow]: ...

    # -- hints -------------------------------------------------------------------------------------

    @abstractmethod
    async def hint(self, kind: Hint) -> None:
        """Tell the other replicas. May be lost, may be repeated; nothing depends on it."""

    @abstractmethod
    async def listen(self, heard: Callable[[Hint], None]) -> None:
        """Call `heard` for every hint, and once at the start; for ever.

        `StoreUnavailable` when it cannot hear now, `CannotListen` when it never will.
        """


# -- rules that both stores follow ----------------------------------------------------------------


@lru_cache(maxsize=100)
def instant(microseconds: int) -> datetime:
    """So many after 1970."""
    return _EPOCH + microseconds * _MICROSECOND


@lru_cache(maxsize=100)
def tick_key(due_at: datetime) -> str:
    """The idempotency key of a tick: the same instant gives the same key everywhere."""
    return f"schedule:{(due_at - _EPOCH) // _MICROSECOND * 1000}"


def begun(token: int, run_id: int, schedule: DueSchedule, tick: Tick) -> Claim:
    """The claim of a run that starts as its tick is made: nothing of it has to be asked for."""
    due = int(tick.key.removeprefix("schedule:")) // 1000
    rank = due + schedule.priority * _STEP
    return Claim(
        token, run_id, schedule.job_id, 1, 0, schedule.parameters, tick.key, due, schedule.id, str(run_id),
        schedule.concurrency_limit > 0, rank,
    )  # fmt: skip


def changed_fields(declared: str | None, now: Declaration) -> dict[str, Any]:
    """The fields whose declared value is not what it was at the last declaration; all of them if there was none.

    But `enabled`, which is the operator's: what was paused before anybody declared it stays paused.
    """
    before = msgspec.json.decode(declared) if declared else {}
    fields = msgspec.structs.asdict(now)
    return {
        name: value
        for name, value in fields.items()
        if name not in ("job_id", "name", "enabled") and (name not in before or before[name] != value)
    }
