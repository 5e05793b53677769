"""The one who watches the demo: reads the tables, and tells what happened from one look to the next.

It is a client like any other: all that it knows is in the store, and all times are by the store's clock.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta

from rota.cli.scene import Actor, Entry, Fate, Happening, Line, Scene
from rota.cli.verdict import SCHEDULES
from rota.contract.roles import Seat
from rota.contract.singletons import role_of
from rota.leader import DEFAULT_ROLE
from rota.store import FINISHED, RunFilter, RunRow, Store

COUNTER = "counter"
LONG = {"import_feed": timedelta(seconds=1), "report": timedelta(seconds=0.4)}
"""Jobs that take a while, and for how long a run of them is certainly not over."""
_FATES: dict[str, Fate] = {
    "queued": "waiting", "running": "running", "succeeded": "done", "skipped": "skipped",
    "failed": "failed", "cancelled": "failed",
}  # fmt: skip
_LOOKED_AT = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A replica that was killed, and what it had in hand."""

    replica_id: int
    at: datetime
    runs: dict[int, str]
    """Their ids, and how far they were."""

    def after(self, moment: datetime) -> str:
        return f"{(moment - self.at).total_seconds():.1f} s after the kill"


class Watcher:
    def __init__(self, store: Store, kind: str, seconds: float) -> None:
        self._store, self._kind, self._seconds = store, kind, seconds
        self._actors: dict[int, tuple[str, int]] = {}
        self._started: datetime | None = None
        self._told: list[Happening] = []
        self._seats: dict[str, Seat] = {}
        self._left_at: int | None = None
        """The count, as it was last seen where the singleton was."""
        self._death: Death | None = None
        self._orphans: set[int] = set()
        self.closing = False
        self.runs: list[RunRow] = []
        self.roles: dict[str, Seat] = {}
        self.count: int | None = None

    async def look(self) -> Scene:
        """The scene as it is now."""
        now = await self._store.now()
        self._started = self._started or now
        for row in await self._store.list_replicas():
            self._actors[row.id] = (row.name, row.pid)
        self.runs = await self._store.find_runs(RunFilter(limit=_LOOKED_AT))
        self.roles = {seat.role: seat for seat in (await self._store.look_roles())[0]}
        self.count = await self._counted()
        for role in (DEFAULT_ROLE, role_of(COUNTER)):
            self._follow_role(role)
        if self._death is not None:
            self._follow_orphans(self._death)
        lines = await self._lines(now)
        ended = [row for row in self.runs if row.state in FINISHED and row.job_id in SCHEDULES and row.due_at]
        ended.sort(key=lambda row: (row.finished_at or row.created_at, row.id))
        return Scene(
            kind=self._kind, now=now, started=self._started, seconds=self._seconds, actors=self._cast(), lines=lines,
            ledger=tuple(self._entry(row) for row in ended), story=tuple(self._told),
            killed_at=self._death.at if self._death else None, closing=self.closing,
        )  # fmt: skip

    def at_work(self) -> set[str | None]:
        """Replicas that were in the middle of a run that takes a while, at the last look."""
        return {self._name(row.replica_id) for row in self.runs if row.state == "running" and row.job_id in LONG}

    async def in_hand(self, name: str) -> list[RunRow]:
        """What this replica, which is frozen, is in the middle of.

        Not all that the store has as running: a finish may be on its way, and the database goes on where it is frozen.
        """
        running = await self._store.find_runs(RunFilter(states=("running",), limit=_LOOKED_AT))
        now = await self._store.now()
        return [row for row in running if self._name(row.replica_id) == name and _midway(row, now)]

    async def killed(self, name: str, pid: int, in_hand: list[RunRow]) -> None:
        """This replica is dead as of now, and this is what it was in the middle of."""
        [replica_id] = {key for key, (known, _) in self._actors.items() if known == name}
        runs = {row.id: _what(row) for row in in_hand}
        self._death = Death(replica_id=replica_id, at=await self._store.now(), runs=runs)
        self._orphans = set(runs)
        self._tell(
            self._death.at, f"kill -9 {pid}: {name} dies in the middle of {' and '.join(runs.values())}", grave=True
        )

    def _follow_role(self, role: str) -> None:
        """Tell who has what only one can have, each time that somebody else has it."""
        seat, known = self.roles.get(role), self._seats.get(role)
        counts = role != DEFAULT_ROLE
        if seat is None or seat.won_at is None or not seat.alive:
            return
        if known is not None and seat.term == known.term:
            self._left_at = self.count if counts else self._left_at
            return
        if known is None:
            self._tell(seat.won_at, f"{seat.holder} {'runs the singleton' if counts else 'leads'}, term {seat.term}")
        elif not counts:
            self._tell(seat.won_at, f"{seat.holder} leads now, term {seat.term}, {self._why(known, seat.won_at)}")
        elif (self.count or 0) > (self._left_at or 0):
            told = f"{seat.holder} runs the singleton now and counts on from {self._left_at}"
            self._tell(seat.won_at, f"{told}, {self._why(known, seat.won_at)}")
        else:
            return  # it has the role, and does not count yet
        self._seats[role] = seat

    def _why(self, known: Seat, at: datetime) -> str:
        if self._death is not None and self._death.replica_id == known.replica_id:
            return self._death.after(at)
        return f"handed over by {known.holder}"

    def _follow_orphans(self, death: Death) -> None:
        """Tell who took over what the dead one had in hand."""
        for row in self.runs:
            if row.id in self._orphans and row.losses and row.started_at and row.replica_id != death.replica_id:
                self._orphans.discard(row.id)
                what = f"{row.job_id} {row.due_at:%H:%M:%S}"
                told = f"{self._name(row.replica_id)} takes over {what}, {death.after(row.started_at)}"
                self._tell(row.started_at, told)

    def _tell(self, at: datetime, text: str, *, grave: bool = False) -> None:
        assert self._started is not None
        self._told.append(Happening(at=max(0.0, (at - self._started).total_seconds()), text=text, grave=grave))
        self._told.sort(key=lambda happening: happening.at)

    async def _counted(self) -> int | None:
        for row in await self._store.list_singletons(COUNTER):
            return None if row.state is None else int(json.loads(row.state).get("value", 0))
        return None

    async def _lines(self, now: datetime) -> tuple[Line, ...]:
        found = {row.job_id: row for row in await self._store.list_schedules()}
        lines = []
        for job, every in SCHEDULES.items():
            schedule = found.get(job)
            due = schedule.next_run_at if schedule is not None and schedule.enabled else None
            ticks = sorted((row for row in self.runs if row.job_id == job and row.due_at), key=lambda row: row.id)
            entries = [self._entry(row) for row in ticks]
            if due is not None:
                entries.append(Entry(run_id=0, job=job, due=due, fate="coming"))
            next_in = None if due is None else max(0.0, (due - now).total_seconds())
            lines.append(Line(job=job, every=every, next_in=next_in, ticks=tuple(entries)))
        return tuple(lines)

    def _cast(self) -> tuple[Actor, ...]:
        done = Counter(row.replica_id for row in self.runs if row.state == "succeeded")
        actors = []
        for replica_id, (name, pid) in sorted(self._actors.items(), key=lambda item: item[1]):
            killed = self._death is not None and self._death.replica_id == replica_id
            leads, counts = (
                seat if seat is not None and seat.replica_id == replica_id and not killed else None
                for seat in (self.roles.get(DEFAULT_ROLE), self.roles.get(role_of(COUNTER)))
            )
            mine = [_doing(row) for row in self.runs if row.state == "running" and row.replica_id == replica_id]
            if killed and self._death is not None:
                mine = list(self._death.runs.values())
            actors.append(
                Actor(
                    name=name,
                    pid=pid,
                    killed=killed,
                    term=leads.term if leads else None,
                    count=self.count if counts else None,
                    doing=tuple(mine),
                    done=done[replica_id],
                )
            )
        return tuple(actors)

    def _entry(self, row: RunRow) -> Entry:
        assert row.due_at is not None
        took = (row.finished_at - row.started_at).total_seconds() if row.finished_at and row.started_at else 0.0
        fate = _FATES[row.state]
        if self._death is not None and row.replica_id == self._death.replica_id and fate in ("running", "waiting"):
            fate = "orphaned"
        return Entry(
            run_id=row.id, job=row.job_id, due=row.due_at, fate=fate, by=self._name(row.replica_id),
            took=took, attempt=row.attempt - row.losses, rescued=bool(row.losses), reason=row.reason or "",
        )  # fmt: skip

    def _name(self, replica_id: int | None) -> str | None:
        return None if replica_id is None else self._actors.get(replica_id, ("?", 0))[0]


def _what(row: RunRow) -> str:
    """A run, as people name it: the job, its tick, and how far it is."""
    return f"{row.job_id} {row.due_at:%H:%M:%S}{_progress(row)}"


def _midway(row: RunRow, now: datetime) -> bool:
    return row.started_at is not None and now - row.started_at < LONG.get(row.job_id, timedelta())


def _doing(row: RunRow) -> str:
    return f"{row.job_id}{_progress(row)}"


def _progress(row: RunRow) -> str:
    if not row.progress:
        return ""
    said = json.loads(row.progress)
    return f" ({said['done']:g} of {said['total']:g})"
