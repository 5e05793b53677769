"""Schedules on SQLite: declared, edited, listed, triggered."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from rota.errors import BadInput, NotFound, StaleWrite
from rota.store import (
    Agenda,
    Declaration,
    Enqueued,
    JobRow,
    Revise,
    RunRow,
    ScheduleRow,
    TrippedBreaker,
    changed_fields,
    tick_key,
)
from rota.stores.sqlite.base import SQLiteBase
from rota.stores.sqlite.session import Record, Session, encode
from rota.stores.sqlite.times import from_text, optional_text, seconds_until, to_text
from rota.timetable import TZDATA_VERSION, next_by_rules

_FIELDS = tuple(field.name for field in msgspec.structs.fields(Declaration))


class SQLiteSchedules(SQLiteBase):
    async def declare(self, jobs: Sequence[JobRow], schedules: Sequence[Declaration]) -> None:
        def transition(db: Session) -> None:
            now = db.now()
            db.each(
                "declare.jobs",
                [(j.job_id, j.concurrency_limit, j.breaker_failures, j.breaker_pause) for j in jobs],
            )
            for schedule in schedules:
                declared = encode(schedule)
                found = db.all("declare.existing", (schedule.job_id, schedule.name))
                if not found:
                    db.all("put_schedule", (*msgspec.structs.astuple(schedule), declared, now))
                elif changes := changed_fields(found[0][1], schedule):
                    _update(db, found[0][0], changes | {"declared": declared})
            db.all("declare.revalidate", (encode([job.job_id for job in jobs]),))
            _follow_the_rules(db, [job.job_id for job in jobs], now)

        await self.write(transition)

    async def put_schedule(self, schedule: Declaration) -> ScheduleRow:
        def transition(db: Session) -> ScheduleRow:
            return _schedule(db, db.value("put_schedule", (*msgspec.structs.astuple(schedule), None, db.now())))

        return await self.write(transition)

    async def update_schedule(self, schedule_id: int, version: int, changes: dict[str, Any]) -> ScheduleRow:
        unknown = set(changes) - set(_FIELDS) - {"next_run_at"}
        if unknown:
            raise BadInput(f"a schedule has no field {sorted(unknown)[0]!r} to set; there are: {', '.join(_FIELDS)}")

        def transition(db: Session) -> ScheduleRow:
            current = _schedule(db, schedule_id)
            if current.version != version:
                raise StaleWrite(
                    f"schedule {schedule_id} is at version {current.version}, not {version}: "
                    "somebody changed it since it was read; read it again"
                )
            _update(db, schedule_id, changes)
            return _schedule(db, schedule_id)

        return await self.write(transition)

    async def revise_schedules(self, revise: Revise) -> list[ScheduleRow]:
        everything = {"id": None, "job_id": None, "name": None}

        def transition(db: Session) -> list[ScheduleRow]:
            wanted = revise(db.structs(ScheduleRow, "list_schedules", everything))
            touched = {schedule_id for schedule_id, _ in wanted.change}
            for schedule_id, changes in wanted.change:
                _update(db, schedule_id, changes)
            for schedule in wanted.add:
                added = db.value("revise_schedules.add", (*msgspec.structs.astuple(schedule), db.now()))
                if added is None:
                    raise StaleWrite(f"somebody else added {schedule.job_id}/{schedule.name}; nothing was written")
                touched.add(added)
            for schedule_id in wanted.remove:
                db.value("delete_schedule", (schedule_id,))
            return [row for row in db.structs(ScheduleRow, "list_schedules", everything) if row.id in touched]

        return await self.write(transition)

    async def delete_schedule(self, schedule_id: int) -> bool:
        return await self.write(lambda db: db.value("delete_schedule", (schedule_id,)) is not None)

    async def list_schedules(
        self, job_id: str | None = None, name: str | None = None, schedule_id: int | None = None
    ) -> list[ScheduleRow]:
        values = {"id": schedule_id, "job_id": job_id, "name": name}
        return await self.read(lambda db: db.structs(ScheduleRow, "list_schedules", values))

    async def trigger(self, schedule_id: int, due_at: datetime | None) -> Enqueued:
        [made] = await self._trigger(schedule_id, [due_at])
        return made

    async def trigger_ticks(self, schedule_id: int, ticks: Sequence[datetime]) -> list[Enqueued]:
        return await self._trigger(schedule_id, ticks)

    async def _trigger(self, schedule_id: int, ticks: Sequence[datetime | None]) -> list[Enqueued]:
        def transition(db: Session) -> list[Enqueued]:
            found = db.all("trigger.schedule", (schedule_id,))
            if not found:
                raise NotFound(f"there is no schedule {schedule_id}")
            [(job_id, priority, parameters)] = found
            runs, new, now = [], [], db.now()
            for run_id, due_at in zip(db.new_ids(len(ticks)), ticks, strict=True):
                key = tick_key(due_at) if due_at else None
                values = {
                    "id": run_id, "job_id": job_id, "config_id": schedule_id, "key": key, "parameters": parameters,
                    "priority": priority, "now": now, "due_at": optional_text(due_at),
                }  # fmt: skip
                if not db.all("trigger", values):
                    runs.append(Enqueued(id=db.value("trigger.existing", (schedule_id, key)), created=False))
                    continue
                db.all("enqueue.delayed", (now, run_id))
                runs.append(Enqueued(id=run_id, created=True))
                new += [due_at] if due_at else []
            if created := [run.id for run in runs if run.created]:
                db.all("trigger.counted", (schedule_id, len(created), created[-1]))
            if new:
                db.all(
                    "trigger.missed", (schedule_id, encode([to_text(tick) for tick in new]), f"{tick_key(max(new))}.")
                )
            return runs

        return await self.write(transition)

    async def ledger(self, schedule_id: int, first: datetime, last: datetime) -> list[RunRow]:
        values = (schedule_id, to_text(first), to_text(last))
        return await self.read(lambda db: db.structs(RunRow, "ledger", values))

    async def tripped_breakers(self) -> list[TrippedBreaker]:
        return await self.read(lambda db: db.structs(TrippedBreaker, "tripped_breakers"))

    async def agenda(self, jobs: Sequence[str]) -> Agenda:
        def look(db: Session) -> Agenda:
            now = db.now()
            [(due, late, schedule, delayed, waiting)] = db.all("agenda", {"now": now, "jobs": encode(list(jobs))})
            return Agenda(
                due=bool(due), delayed=bool(late), due_in=seconds_until(schedule, now),
                delayed_in=seconds_until(delayed, now), waiting=bool(waiting),
            )  # fmt: skip

        return await self.read(look)

    async def mark_unknown(self) -> list[tuple[int, str]]:
        def unknown(db: Session) -> list[Record]:
            return db.all("mark_unknown.any", {"now": db.now()})

        def transition(db: Session) -> list[tuple[int, str]]:
            found = unknown(db)
            db.each("mark_unknown", found)
            return [(schedule_id, reason) for schedule_id, reason in found]

        return await self.write(transition, unless=lambda db: None if unknown(db) else [])


def _follow_the_rules(db: Session, jobs: list[str], now: str) -> None:
    """Governments change time zones; what was computed by an older edition is computed again."""
    for schedule_id, cron, timezone in db.all("declare.outdated", (encode(jobs), TZDATA_VERSION, now)):
        again = next_by_rules(cron, timezone, from_text(now))
        if again is not None:
            db.all("declare.recompute", (schedule_id, to_text(again), TZDATA_VERSION))


def _schedule(db: Session, schedule_id: int) -> ScheduleRow:
    rows = db.structs(ScheduleRow, "list_schedules", {"id": schedule_id, "job_id": None, "name": None})
    if not rows:
        raise NotFound(f"there is no schedule {schedule_id}")
    return rows[0]


def _update(db: Session, schedule_id: int, changes: dict[str, Any]) -> None:
    if isinstance(changes.get("next_run_at"), datetime):
        changes = changes | {"next_run_at": optional_text(changes["next_run_at"])}
    # The version is set here too: the trigger that counts does not look at `next_run_at`.
    settings = ", ".join(["version = version + 1", *(f"{name} = ?" for name in changes)])
    db.execute(f"update scheduler_configs set {settings} where id = ?", (*changes.values(), schedule_id))
