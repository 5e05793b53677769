"""Ticks on SQLite: due schedules become runs, delayed runs become ready, waiting runs get slots.

Each is one write transaction, so what was read cannot change before it is written: the write lock is the row lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from operator import itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from rota.contract.places import Start, nowhere
from rota.errors import StaleWrite
from rota.store import Claim, Decide, Decision, DueSchedule, Fired, Tick, begun
from rota.stores.sqlite.base import SQLiteBase
from rota.stores.sqlite.runs import take
from rota.stores.sqlite.session import Record, Session, decode, encode
from rota.stores.sqlite.times import INFINITY, from_text, optional_text, optional_time, to_text
from rota.timetable import TZDATA_VERSION


class SQLiteTicks(SQLiteBase):
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
        await asyncio.sleep(wait)
        which = {"jobs": encode(list(jobs)), "leave": encode(list(leave))}

        def transition(db: Session) -> Fired:
            now = db.now()
            due, contended = _due(db, which | {"now": now, "limit": limit, "advisory": advisory})
            if not due:
                return Fired(contended=contended)
            return _write(db, now, decide(from_text(now), due), contended, start)

        return await self.write(
            transition,
            unless=lambda db: None if db.value("fire_due.any", which | {"now": db.now()}) else Fired(),
        )

    async def promote_due(self, limit: int) -> int:
        def transition(db: Session) -> int:
            ids = [run_id for (run_id,) in db.all("promote_due", (db.now(), limit))]
            db.all("promote_due.ready", (encode(ids),))
            db.all("promote_due.wait", (encode(ids),))
            return len(ids)

        return await self.write(transition, unless=lambda db: None if db.value("promote_due.any", (db.now(),)) else 0)

    async def admit_waiting(self) -> int:
        def transition(db: Session) -> int:
            now = db.now()
            ids = _admissible(db, now)
            db.all("admit_waiting.slots", (encode(ids), now))
            db.all("admit_waiting.ready", (encode(ids),))
            db.all("admit_waiting", (encode(ids),))
            return len(ids)

        return await self.write(transition, unless=lambda db: None if _admissible(db, db.now()) else 0)


def _claimed(db: Session, values: dict[str, Any]) -> Iterator[Record]:
    """Due schedules in the order of their urgency, up to the limit: a walk along the index, not a sort."""
    left: int = values["limit"]
    for (priority,) in db.all("fire_due.priorities"):
        found = db.all("fire_due.claim", values | {"priority": priority, "limit": left})
        yield from found
        left -= len(found)
        if left <= 0:
            break


def _due(db: Session, values: dict[str, Any]) -> tuple[list[DueSchedule], tuple[int, ...]]:
    """The schedules to decide on, and those that an operator holds."""
    due, contended = [], []
    for (
        schedule_id, version, job_id, cron, timezone, parameters, next_run_at, paused_at, resumed_at, as_declared,
        priority, limit, timeout, overlap, catch_up, catch_up_limit, stale_after, held, waiting, job_limited, breaker,
        breaker_changed_at, pause, is_contended,
    ) in _claimed(db, values):  # fmt: skip
        if is_contended:
            contended.append(schedule_id)
            continue
        tripped = optional_time(breaker_changed_at)
        due.append(DueSchedule(
            optional_time(next_run_at), schedule_id, version, job_id, cron, timezone, parameters,
            optional_time(paused_at), optional_time(resumed_at), bool(as_declared), priority, limit, timeout, overlap,
            catch_up, catch_up_limit, stale_after, held, waiting, bool(job_limited), breaker,
            tripped and tripped + timedelta(seconds=pause),
        ))  # fmt: skip
    return due, tuple(contended)


def _write(db: Session, now: str, decisions: list[Decision], contended: tuple[int, ...], start: Start) -> Fired:
    ticks = [(decision, tick) for decision in decisions for tick in decision.ticks]
    made = _write_ticks(db, now, ticks, start) if ticks else _Made()
    if stopping := [d.schedule.id for d in decisions if d.cancel_running]:
        db.all("fire_due.cancel", (encode(stopping), now))
    if probing := [d.schedule.job_id for d in decisions if d.probe]:
        db.all("fire_due.probe", (encode(probing), now))
    frontier = [
        (d.schedule.id, d.schedule.version, optional_text(d.next_run_at), d.invalid_reason, TZDATA_VERSION,
         *made.runs_of.get(d.schedule.id, (0, None)))
        for d in decisions
    ]  # fmt: skip
    if db.insert("fire_due.advance", frontier) != len(decisions):
        raise StaleWrite("a schedule was changed while its ticks were made; nothing was written")
    started = [tick.due_at for _, tick in ticks if tick.place == "ready"]
    return Fired(
        schedules=len(decisions),
        runs=made.runs,
        ready=made.ready,
        skipped=made.ticks - made.runs,
        contended=contended,
        invalid=tuple((d.schedule.id, d.invalid_reason) for d in decisions if d.invalid_reason),
        lateness=(from_text(now) - min(started)).total_seconds() if started else 0.0,
        claims=made.claims,
    )


class _Made(NamedTuple):
    ticks: int = 0
    ready: int = 0
    claims: tuple[Claim, ...] = ()
    runs_of: Mapping[int, tuple[int, int]] = MappingProxyType({})
    """How many were made for each schedule, and the newest."""

    @property
    def runs(self) -> int:
        return sum(count for count, _ in self.runs_of.values())


def _write_ticks(db: Session, now: str, ticks: list[tuple[Decision, Tick]], start: Start) -> _Made:
    ids = db.new_ids(len(ticks))
    rows, missed = [], []
    for n, (d, t) in zip(ids, ticks, strict=True):
        s, due, runs = d.schedule, to_text(t.due_at), t.place != "none"
        row = (n, s.job_id, s.id, t.key, str(n), s.parameters, s.priority, "queued" if runs else "skipped", t.reason,
               due, due, now, None if runs else now)  # fmt: skip
        if t.missed_count is None:
            rows.append(row)
        else:
            missed.append((*row, optional_text(t.missed_from), optional_text(t.missed_to), t.missed_count))
    count = db.insert("fire_due.write", rows)
    for gap in missed:
        db.all("fire_due.missed", gap)
        count += db.connection.changes()
    made = set(ids) if count == len(ids) else set(decode(db.value("enqueue.made", (ids[0], ids[-1]))))
    placed = [(n, d, t) for n, (d, t) in zip(ids, ticks, strict=True) if n in made]
    ready = [(n, d.schedule) for n, d, t in placed if t.place == "ready"]
    wait = [(n, d.schedule) for n, d, t in placed if t.place == "waiting"]
    db.insert(
        "fire_due.slot",
        [(s.id, n, s.lock_timeout_seconds, now, INFINITY) for n, s in ready if s.concurrency_limit > 0],
    )
    claims = _begin(db, now, [(n, d.schedule, t) for n, d, t in placed if d.plain], start)
    begun_ids = {claim.id for claim in claims}
    queued = [(n, s) for n, s in ready if n not in begun_ids]
    for (slot,), mine in _alike((n, (s.concurrency_limit > 0,)) for n, s in queued):
        db.all("fire_due.ready", (encode(mine), slot))
    for (by_config, by_job), mine in _alike((n, (s.concurrency_limit > 0, s.job_limited)) for n, s in wait):
        db.all("fire_due.wait", (encode(mine), by_config, by_job))
    runs_of: dict[int, tuple[int, int]] = {}
    for n, s in sorted(ready + wait, key=itemgetter(0)):
        runs_of[s.id] = (runs_of.get(s.id, (0, 0))[0] + 1, n)
    return _Made(len(made), len(queued), claims, runs_of)


def _begin(db: Session, now: str, runs: list[tuple[int, DueSchedule, Tick]], start: Start) -> tuple[Claim, ...]:
    """Those that have a place start now."""
    places = start() if runs else None
    if places is None:
        return ()
    # But not before what is ready and should go first.
    first: dict[int, int] = dict(db.all("fire_due.first", (encode(places.jobs),)))
    given = places.given_to(schedule.job_id for _, schedule, _ in runs)
    claims = tuple(
        claim
        for run, lane in zip(runs, given, strict=True)
        if lane is not None and (claim := begun(places.token, *run)).rank <= first.get(lane, claim.rank)
    )
    take(db, places.replica_id, places.token, claims, now)
    return claims


def _alike(runs: Iterable[tuple[int, tuple[bool, ...]]]) -> Iterable[tuple[tuple[bool, ...], list[int]]]:
    """Runs that need the same go in one statement."""
    found: dict[tuple[bool, ...], list[int]] = {}
    for run_id, needs in runs:
        found.setdefault(needs, []).append(run_id)
    return found.items()


def _admissible(db: Session, now: str) -> list[int]:
    """The waiting runs for which every slot they need is free, best rank first."""
    by_schedule: dict[int, bool] = {}
    for schedule_id, free in db.all("admit_waiting.schedules", (now,)):
        if free > 0:
            by_schedule |= dict(db.all("admit_waiting.of_schedule", (schedule_id, free)))
    by_job: dict[int, bool] = {}
    for job_id, free in db.all("admit_waiting.jobs", (now,)):
        if free > 0:
            by_job |= dict(db.all("admit_waiting.of_job", (job_id, free, encode(list(by_schedule)))))
    return [run_id for run_id, also_job in by_schedule.items() if not also_job or run_id in by_job] + [
        run_id for run_id, also_config in by_job.items() if not also_config
    ]
