"""What happens in the engine, as frozen values. The core emits; wording, counting and tracing live in subscribers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events."""


E = TypeVar("E", bound=Event)


@dataclass(frozen=True, slots=True)
class ReplicaJoined(Event):
    replica_id: int
    name: str


@dataclass(frozen=True, slots=True)
class ReplicaLeft(Event):
    replica_id: int


@dataclass(frozen=True, slots=True)
class ReplicaDeposed(Event):
    """This replica was given up by the others while it was silent; what it held is with somebody else."""

    replica_id: int
    runs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReplicasBuried(Event):
    """The caretaker freed what dead replicas held, or what expired."""

    replicas: tuple[int, ...]
    requeued: tuple[int, ...]
    cancelled: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LeadershipWon(Event):
    role: str
    term: int
    elector: str


@dataclass(frozen=True, slots=True)
class LeadershipEnded(Event):
    """From now on this replica does not act as leader. `lost`: it did not give it up, somebody or something took it."""

    role: str
    term: int
    why: str
    lost: bool


@dataclass(frozen=True, slots=True)
class LeaderStuck(Event):
    """Code that runs under a term that is over does not stop."""

    role: str
    term: int
    what: str
    seconds: float


@dataclass(frozen=True, slots=True)
class LeaderFailed(Event):
    """A hook, a recovery or a service of a leader raised."""

    role: str
    term: int
    what: str
    error: BaseException
    again_in: float | None


@dataclass(frozen=True, slots=True)
class StateUnreadable(Event):
    """A singleton's stored state, or some of it, could not be read; it was kept aside."""

    singleton: str
    reason: str


@dataclass(frozen=True, slots=True)
class SingletonUnhealthy(Event):
    """A singleton that runs here does not do what is expected of it."""

    singleton: str
    why: str


@dataclass(frozen=True, slots=True)
class TicksFired(Event):
    schedules: int
    runs: int
    skipped: int
    lateness: float


@dataclass(frozen=True, slots=True)
class ScheduleContended(Event):
    """Somebody else holds this schedule's lock."""

    schedule_id: int
    waited: float


@dataclass(frozen=True, slots=True)
class ScheduleInvalid(Event):
    schedule_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class WriteContended(Event):
    """An optimistic write found that somebody else had changed the row; nothing was written."""

    what: str


@dataclass(frozen=True, slots=True)
class RunFinished(Event):
    run_id: int
    job_id: str
    state: str
    attempt: int
    seconds: float
    error: str | None


@dataclass(frozen=True, slots=True)
class AttemptFailed(Event):
    run_id: int
    job_id: str
    attempt: int
    error: str
    pause: float | None
    """Seconds until it is tried again; None when it is not."""


@dataclass(frozen=True, slots=True)
class RunTakenOver(Event):
    """An outcome was refused: the run belongs to somebody else by now."""

    run_id: int


@dataclass(frozen=True, slots=True)
class ThreadAbandoned(Event):
    """A plain function ran past its time; its run is settled, its thread goes on and occupies one of the threads."""

    run_id: int
    job_id: str


@dataclass(frozen=True, slots=True)
class LoopBlocked(Event):
    """A handler keeps the event loop from turning."""

    seconds: float
    runs: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class StoreReplaced(Event):
    """Another database answers than before: a failover or a restore. Commits of the old one may be missing."""

    before: str
    now: str


@dataclass(frozen=True, slots=True)
class HintsOff(Event):
    """The hints of the other replicas cannot be heard; what they would tell is found at the next beat."""

    reason: str


@dataclass(frozen=True, slots=True)
class LockAcquired(Event):
    name: str
    waited: float
    fence: int


@dataclass(frozen=True, slots=True)
class LockContended(Event):
    """A lock that is wanted could not be had for half a minute. Again every half minute."""

    name: str
    waited: float
    holder: str


@dataclass(frozen=True, slots=True)
class LockLapsed(Event):
    """A lock was lost while it was held here; its block was cancelled."""

    name: str
    fence: int
    why: str


@dataclass(frozen=True, slots=True)
class ServiceFailed(Event):
    """A step of a service failed; it is tried again."""

    service: str
    error: BaseException


@dataclass(frozen=True, slots=True)
class ElectorReplaced(Event):
    """The elector that was asked for is not there; another one decides instead."""

    elector: str
    instead: str
    error: BaseException


@dataclass(frozen=True, slots=True)
class ElectorTroubled(Event):
    """Whoever decides an election cannot be asked; this replica does not win, and what it leads it leads not for long.

    Emitted when the trouble begins, when it becomes another one, and once a minute while it lasts.
    """

    elector: str
    role: str
    error: BaseException


class Bus:
    """Who wants to know what. A subscriber that raises is reported and harms nobody."""

    def __init__(self) -> None:
        self._subscribers: dict[type[Event], list[Callable[[Any], None]]] = {}

    def subscribe(self, kind: type[E], subscriber: Callable[[E], None]) -> None:
        """Call `subscriber` with every event of this class (or of its subclasses), on the thread that emits."""
        self._subscribers.setdefault(kind, []).append(subscriber)

    def wanted(self, kind: type[Event]) -> bool:
        return any(base in self._subscribers for base in kind.__mro__)

    def emit(self, event: Event) -> None:
        for kind in type(event).__mro__:
            for subscriber in self._subscribers.get(kind, ()):
                try:
                    subscriber(event)
                except Exception:
                    sys.excepthook(*sys.exc_info())
