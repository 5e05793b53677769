"""The one who watches the demo: reads the tables, and tells what happened from one look to the next.

It is a client like any other: all that it knows is in the store, and all times are by the store's clock.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from datetime import datetime

from rota.cli.scene import Actor, Entry, Fate, Happening, Line, Scene
from rota.cli.verdict import SCHEDULES
from rota.contract.roles import Seat
from rota.contract.singletons import role_of
from rota.leader import DEFAULT_ROLE
from rota.store import FINISHED, RunFilter, RunRow, Store

COUNTER, LONG = "counter", "import_feed"
_FATES: dict[str, Fate] = {
    "queued": "waiting", "running": "running", "succeeded": "done", "skipped": "skipped",
    "failed": "failed", "cancelled": "failed",
}  # fmt: skip
_LOOKED_AT = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A replica that was killed, and what it had in hand."""

    name: str
    replica_id: int
    at: datetime
    runs: dict[int, str]
    """Their ids, and how far they were."""
    led: bool
    counted: int | None


class Watcher:
    def __init__(self, store: Store, kind: str, seconds: float) -> None:
        self._store, self._kind, self._seconds = store, kind, seconds
        self._actors: dict[int, tuple[str, int]] = {}
        self._started: datetime | None = None
        self._told: list[Happening] = []
        self._open: set[object] = set()
        self._introduced: set[str] = set()
        self._death: Death | None = None
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
        self._introduce()
        if self._death is not None:
            self._follow(self._death)
        lines = await self._lines(now)
        ended = [row for row in self.runs if row.state in FINISHED and row.job_id in SCHEDULES and row.due_at]
        ended.sort(key=lambda row: (row.finished_at or row.created_at, row.id))
        return Scene(
            kind=self._kind, now=now, started=self._started, seconds=self._seconds, actors=self._cast(), lines=lines,
            ledger=tuple(self._entry(row) for row in ended), story=tuple(self._told),
            killed_at=self._death.at if self._death else None, closing=self.closing,
        )  # fmt: skip

    def in_the_middle(self, now: datetime) -> list[str]:
        """Replicas that are in the middle of a long run, as the last look saw it."""
        return [
            self._actors[row.replica_id][0]
            for row in self.runs
            if row.job_id == LONG and row.state == "running" and row.started_at and row.replica_id in self._actors
            and 0.2 < (now - row.started_at).total_seconds() < 0.9
        ]  # fmt: skip

    async def killed(self, name: str, pid: int) -> None:
        """This replica is dead as of now. What it had in hand is what the tables say it has."""
        await self.look()
        replica_id = next(key for key, (known, _) in self._actors.items() if known == name)
        in_hand = [row for row in self.runs if row.state == "running" and row.replica_id == replica_id]
        leads, counts = (self.roles.get(role) for role in (DEFAULT_ROLE, role_of(COUNTER)))
        self._death = death = Death(
            name=name, replica_id=replica_id, at=await self._store.now(),
            runs={row.id: _what(row) for row in in_hand},
            led=leads is not None and leads.replica_id == replica_id,
            counted=self.count if counts is not None and counts.replica_id == replica_id else None,
        )  # fmt: skip
        self._open = {*death.runs, *["leader"] * death.led, *["counter"] * (death.counted is not None)}
        work = " and ".join(death.runs.values()) or "nothing"
        self._tell(death.at, f"kill -9 {pid}: {name} dies in the middle of {work}", grave=True)

    def _introduce(self) -> None:
        """Tell who has what only one can have."""
        for role, what in (
            (DEFAULT_ROLE, "is elected leader, in term"),
            (role_of(COUNTER), "runs the singleton, in term"),
        ):
            seat = self.roles.get(role)
            if role not in self._introduced and seat is not None and seat.won_at is not None and seat.alive:
                self._introduced.add(role)
                self._tell(seat.won_at, f"{seat.holder} {what}, in term {seat.term}")

    def _follow(self, death: Death) -> None:
        """Tell who took over what the dead one had."""
        for role, what in ((DEFAULT_ROLE, "leader"), (role_of(COUNTER), "counter")):
            seat = self.roles.get(role)
            if what not in self._open or seat is None or seat.won_at is None or seat.replica_id == death.replica_id:
                continue
            if what == "counter" and (self.count or 0) <= (death.counted or 0):
                continue  # it has the role, and does not count yet
            self._open.discard(what)
            after = (seat.won_at - death.at).total_seconds()
            if what == "leader":
                self._tell(seat.won_at, f"{seat.holder} leads now, in term {seat.term}, {_after(after)}")
            else:
                told = f"{seat.holder} has the singleton now and counts on from {death.counted}, {_after(after)}"
                self._tell(seat.won_at, told)
        for row in self.runs:
            if row.id not in self._open or not row.losses or row.started_at is None or row.started_at < death.at:
                continue
            self._open.discard(row.id)
            name, after = self._name(row.replica_id), (row.started_at - death.at).total_seconds()
            self._tell(row.started_at, f"{name} takes over {row.job_id} {row.due_at:%H:%M:%S}, {_after(after)}")

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


def _doing(row: RunRow) -> str:
    return f"{row.job_id}{_progress(row)}"


def _progress(row: RunRow) -> str:
    if not row.progress:
        return ""
    said = json.loads(row.progress)
    return f" ({said['done']:g} of {said['total']:g})"


def _after(seconds: float) -> str:
    return f"{seconds:.1f} s after the kill"
