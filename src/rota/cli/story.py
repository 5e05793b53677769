"""A run in words: how long it took, why it did not run, what it waits for, what it says of itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

import msgspec

from rota.cli.look import lasted, when
from rota.store import ReplicaRow, RunRow, ScheduleRow

REASONS = {
    "overlap": "its schedule had its hands full: `concurrency_limit` runs went on, and `overlap` says not to wait",
    "catch_up": "it was missed, and a newer tick stood for it, or `catch_up` is 'skip'",
    "stale": "it was older than `skip_if_older_than` when a replica could have made it",
    "paused": "the schedule was paused",
    "circuit_open": "the job's breaker was open, after too many failures in a row",
}


class Names:
    """What people call the schedules and replicas that runs know by number."""

    def __init__(self, schedules: Collection[ScheduleRow], replicas: Collection[ReplicaRow]) -> None:
        self._schedules = {row.id: f"{row.job_id}/{row.name}" for row in schedules}
        self._replicas = {row.id: row.name for row in replicas}

    def schedule(self, row: RunRow) -> str | None:
        if row.config_id is None:
            return None
        return self._schedules.get(row.config_id, f"(deleted, {row.config_id})")

    def replica(self, row: RunRow) -> str | None:
        """Its name while it lives; its number is all that is left afterwards."""
        if row.replica_id is None:
            return None
        return self._replicas.get(row.replica_id, f"replica {row.replica_id} (gone)")


def took(row: RunRow, now: datetime) -> float | None:
    """Seconds of the newest attempt, so far if it is not over."""
    if row.started_at is None or row.state in ("queued", "skipped"):
        return None
    return max(0.0, ((row.finished_at or now) - row.started_at).total_seconds())


def state_of(row: RunRow) -> str:
    """The state, with the reason where there is one."""
    if row.reason is None:
        return row.state
    many = f", {row.missed_count} ticks" if row.missed_count else ""
    return f"{row.state} ({row.reason}{many})"


def attempts(row: RunRow) -> str:
    return f"{row.attempt}" + (f" ({row.losses} lost)" if row.losses else "")


def progress_of(row: RunRow) -> str | None:
    """`3/10 note`, as far as it was said."""
    if row.progress is None:
        return None
    said: Mapping[str, Any] = msgspec.json.decode(row.progress)
    done, total, note = said.get("done"), said.get("total"), said.get("note")
    count = "" if done is None else f"{done:g}" + (f"/{total:g}" if total is not None else "")
    return " ".join(part for part in (count, note) if part) or None


def headline(row: RunRow) -> str | None:
    """The first line of its error."""
    return row.error.splitlines()[0] if row.error else None


def explained(row: RunRow, now: datetime, replicas: Collection[ReplicaRow]) -> str | None:
    """Why it did not run, or does not yet, or not any more; None for what needs no explanation."""
    if row.state == "skipped":
        why = f"it did not run because {REASONS.get(row.reason or '', row.reason or 'nobody said why')}"
        if row.missed_count and row.missed_from and row.missed_to:
            span = f"{when(row.missed_from, now)} to {when(row.missed_to, now)}"
            why += f"; this row stands for {row.missed_count} ticks, {span}"
        return why
    if row.state == "cancelled":
        return "it was cancelled on request" + ("" if row.started_at else ", before it started")
    if row.state != "queued":
        return None
    if row.run_at > now:
        again = f"attempt {row.attempt + 1}" if row.attempt else "it"
        return f"{again} waits for its time, in {lasted((row.run_at - now).total_seconds())}"
    if not any(row.job_id in replica.jobs for replica in replicas):
        return f"it waits for a replica: none that lives knows job {row.job_id!r}"
    return "it waits for a slot of its schedule or job, or for a replica that has a hand free"


def as_data(row: RunRow, names: Names, now: datetime) -> dict[str, Any]:
    """For scripts: the row of the table, with what is JSON in it as JSON."""
    data = {field: getattr(row, field) for field in row.__struct_fields__}
    for field in ("parameters", "progress", "result"):
        data[field] = msgspec.Raw(data[field].encode()) if data[field] is not None else None
    return data | {"schedule": names.schedule(row), "replica": names.replica(row), "took_seconds": took(row, now)}
