"""Events as log records under the logger `rota`, all wording is here; and records that know their run."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from shlex import quote
from typing import Any, TypeAlias

from rota import events
from rota.context import NAMES, cluster_context
from rota.events import Bus, Event

_log = logging.getLogger("rota")
_BARE = re.compile(r"[\w.:@/+-]+")

Level: TypeAlias = int | Callable[[Any], int]

_WORDING: dict[type[Event], tuple[Level, Callable[[Any], str]]] = {
    events.ReplicaJoined: (logging.INFO, lambda e: f"replica {e.replica_id} ({e.name}) joined"),
    events.ReplicaLeft: (logging.INFO, lambda e: f"replica {e.replica_id} left"),
    events.ReplicaDeposed: (
        logging.WARNING,
        lambda e: f"replica {e.replica_id} was given up while it was silent; it lost the runs {list(e.runs)}",
    ),
    events.ReplicasBuried: (
        logging.WARNING,
        lambda e: (
            f"dead replicas {list(e.replicas)}: {len(e.requeued)} runs queued again, {len(e.cancelled)} cancelled"
        ),
    ),
    events.LeadershipWon: (
        logging.INFO,
        lambda e: (
            f"leads {e.role!r} in term {e.term}"
            + (
                " by itself: nobody was elected, and nothing keeps another process from doing the same"
                if e.elector == "standalone"
                else f" (by {e.elector})"
            )
        ),
    ),
    events.LeadershipEnded: (
        lambda e: logging.WARNING if e.lost else logging.INFO,
        lambda e: f"does not lead {e.role!r} any more, term {e.term}: {e.why}",
    ),
    events.LeaderStuck: (
        logging.ERROR,
        lambda e: (
            f"term {e.term} of {e.role!r} is over, and {e.what} has not stopped for {e.seconds:.1f} s: it must let "
            "itself be cancelled (or set exit_on_lost_leadership)"
        ),
    ),
    events.LeaderFailed: (logging.ERROR, lambda e: _leader_failed(e)),
    events.StateUnreadable: (
        logging.ERROR,
        lambda e: f"state of singleton {e.singleton!r} could not be read and was kept aside: {e.reason}",
    ),
    events.SingletonUnhealthy: (logging.ERROR, lambda e: f"singleton {e.singleton!r} is unhealthy: {e.why}"),
    events.TicksFired: (
        logging.DEBUG,
        lambda e: f"{e.schedules} schedules: {e.runs} runs, {e.skipped} skipped, {e.lateness * 1000:.0f} ms late",
    ),
    events.ScheduleContended: (
        logging.WARNING,
        lambda e: f"schedule {e.schedule_id} is locked by somebody else, for {e.waited:.1f} s now",
    ),
    events.ScheduleInvalid: (logging.ERROR, lambda e: f"schedule {e.schedule_id} is invalid: {e.reason}"),
    events.WriteContended: (logging.INFO, lambda e: e.what),
    events.AttemptFailed: (logging.WARNING, lambda e: _failed(e)),
    events.RunTakenOver: (
        logging.WARNING,
        lambda e: f"run {e.run_id} was taken over by another replica; its outcome here was refused",
    ),
    events.ThreadAbandoned: (
        logging.WARNING,
        lambda e: f"run {e.run_id} of {e.job_id} timed out; its thread cannot be stopped and goes on",
    ),
    events.LoopBlocked: (
        logging.WARNING,
        lambda e: (
            f"the event loop has been blocked for {e.seconds:.1f} s; running: "
            + ", ".join(f"{job} (run {run_id})" for run_id, job in e.runs)
        ),
    ),
    events.StoreReplaced: (
        logging.ERROR,
        lambda e: (
            f"another database answers ({e.now}, was {e.before}): after a failover or a restore, "
            "commits of the last moments may be missing; check what should have run"
        ),
    ),
    events.HintsOff: (logging.WARNING, lambda e: f"hints are off: {e.reason}"),
    events.ElectorReplaced: (
        logging.WARNING,
        lambda e: f"the elector {e.elector!r} is not there, and {e.instead!r} decides on leadership instead: {e.error}",
    ),
    events.ElectorTroubled: (logging.ERROR, lambda e: f"role {e.role}: {e.error}; trying again"),
    events.LockAcquired: (
        logging.DEBUG,
        lambda e: f"lock {e.name!r} acquired after {e.waited:.3f} s, fence {e.fence}",
    ),
    events.LockContended: (
        logging.WARNING,
        lambda e: (
            f"lock {e.name!r} has been wanted for {e.waited:.0f} s; held by {e.holder}; "
            f"if that is stuck: rota locks release {quote(e.name)}"
        ),
    ),
    events.LockLapsed: (
        logging.WARNING,
        lambda e: f"lock {e.name!r} (fence {e.fence}) was lost, what it protected here was cancelled: {e.why}",
    ),
    events.ServiceFailed: (logging.WARNING, lambda e: f"{e.service}: {e.error}; trying again"),
}


def log_events(bus: Bus) -> None:
    """Write the events of the bus to the logger `rota`; single runs only where DEBUG is on."""
    for kind, (level, wording) in _WORDING.items():
        bus.subscribe(kind, _writer(level, wording))
    if _log.isEnabledFor(logging.DEBUG):
        bus.subscribe(events.RunFinished, _writer(logging.DEBUG, _finished))


def _writer(how: Level, wording: Callable[[Any], str]) -> Callable[[Event], None]:
    def write(event: Event) -> None:
        level = how if isinstance(how, int) else how(event)
        if _log.isEnabledFor(level):
            _log.log(level, wording(event))

    return write


def _failed(event: events.AttemptFailed) -> str:
    then = "it is final" if event.pause is None else f"again in {event.pause:.1f} s"
    why = event.error.splitlines()[0] if event.error else "?"
    return f"run {event.run_id} of {event.job_id} failed at attempt {event.attempt}, {then}: {why}"


def _finished(event: events.RunFinished) -> str:
    return f"run {event.run_id} of {event.job_id} {event.state} (attempt {event.attempt}, {event.seconds:.3f} s)"


def _leader_failed(event: events.LeaderFailed) -> str:
    again = "" if event.again_in is None else f"; again in {event.again_in:.1f} s"
    return f"{event.what}, term {event.term} of {event.role!r}: {type(event.error).__name__}: {event.error}{again}"


class ContextFilter(logging.Filter):
    """Every record of a handler gets the cluster context: `rota_run_id`, `rota_job` and so on; None outside of a run.

    It belongs on logging's handlers, not on loggers: a logger's filter does not see what loggers below it pass on.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        found = cluster_context()
        for name in NAMES:
            setattr(record, f"rota_{name}", found.get(name))
        return True


class ContextFormatter(logging.Formatter):
    """Lines that end in what their records know: `... sent [job=report run_id=17 attempt=2]`."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        known = [(name, getattr(record, f"rota_{name}", None)) for name in NAMES]
        facts = " ".join(f"{name}={_quoted(value)}" for name, value in known if value is not None)
        return super().formatMessage(record) + (f" [{facts}]" if facts else "")


def carry_context() -> None:
    """All handlers that the root logger has now get a `ContextFilter`, once."""
    for handler in logging.getLogger().handlers:
        if not any(isinstance(each, ContextFilter) for each in handler.filters):
            handler.addFilter(ContextFilter())


def _quoted(value: object) -> str:
    """What somebody put into a key must not look like another line."""
    text = str(value)
    return text if _BARE.fullmatch(text) else json.dumps(text)
