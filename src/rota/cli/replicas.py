"""`rota replicas`: who is alive, what they run now, what they lead."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from rota import Settings
from rota.cli.look import AsJson, Url, ago, ask, show
from rota.contract.roles import Seat
from rota.store import ReplicaRow, RunRow, Store

_NAMED = 8


def replicas(url: Url = None, as_json: AsJson = False) -> None:
    """Who is alive, what they run now, what they lead.

    A replica that has been silent for longer than `dead_after` is not alive any more; another one tidies up after it.

    Example: rota replicas --json
    """
    dead_after = Settings.load(url=url).dead_after

    async def go(store: Store) -> list[dict[str, Any]]:
        seats, _ = await store.look_roles()
        running = await store.running_runs()
        found = await store.list_replicas()
        return [(_data if as_json else _brief)(row, running, seats, row.silent <= dead_after) for row in found]

    show(ask(url, go), as_json=as_json, nothing="no replica is alive; start one with `rota run MODULE:APP`")


def _data(row: ReplicaRow, running: list[RunRow], seats: list[Seat], alive: bool) -> dict[str, Any]:
    return {
        "id": row.id,
        "name": row.name,
        "host": row.host,
        "pid": row.pid,
        "alive": alive,
        "started_at": row.started_at,
        "beat_at": row.beat_at,
        "silent_seconds": row.silent,
        "jobs": row.jobs,
        "running": [{"id": run.id, "job_id": run.job_id} for run in running if run.replica_id == row.id],
        "leads": [seat.role for seat in seats if seat.replica_id == row.id and seat.alive],
    }


def _brief(row: ReplicaRow, running: list[RunRow], seats: list[Seat], alive: bool) -> dict[str, Any]:
    now = row.beat_at + timedelta(seconds=row.silent)
    return {
        "id": row.id,
        "name": row.name,
        "host": f"{row.host}:{row.pid}",
        "alive": alive,
        "since": ago(row.started_at, now),
        "last beat": f"{row.silent:.1f}s ago",
        "jobs": _some(list(row.jobs)),
        "runs now": _some([f"{run.job_id} {run.id}" for run in running if run.replica_id == row.id]),
        "leads": _some([seat.role for seat in seats if seat.replica_id == row.id and seat.alive]),
    }


def _some(names: list[str]) -> str | None:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more if names else None
