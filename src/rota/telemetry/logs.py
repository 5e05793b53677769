"""Events as log records under the logger `rota`. All wording is here."""

from __future__ import annotations

import logging
from collections.abc import Callable
from shlex import quote
from typing import Any

from rota import events
from rota.events import Bus, Event

_log = logging.getLogger("rota")

_WORDING: dict[type[Event], tuple[int, Callable[[Any], str]]] = {
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


def _writer(level: int, wording: Callable[[Any], str]) -> Callable[[Event], None]:
    def write(event: Event) -> None:
        if _log.isEnabledFor(level):
            _log.log(level, wording(event))

    return write


def _failed(event: events.AttemptFailed) -> str:
    then = "it is final" if event.pause is None else f"again in {event.pause:.1f} s"
    why = event.error.splitlines()[0] if event.error else "?"
    return f"run {event.run_id} of {event.job_id} failed at attempt {event.attempt}, {then}: {why}"


def _finished(event: events.RunFinished) -> str:
    return f"run {event.run_id} of {event.job_id} {event.state} (attempt {event.attempt}, {event.seconds:.3f} s)"
