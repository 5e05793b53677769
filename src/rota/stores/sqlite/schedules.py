"""Schedules on SQLite: declared, edited, listed, triggered."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from rota.errors import BadInput, NotFound, StaleWrite
from rota.store import Agenda, Declaration, Enqueued, JobRow, ScheduleRow, changed_fields, tick_key
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

    async def delete_schedule(self, schedule_id: int) -> bool:
        return await self.write(lambda db: db.value("delete_schedule", (schedule_id,)) is not None)

    async def list_schedules(
        self, job_id: str | None = None, name: str | None = None, schedule_id: int | None = None
    ) -> list[ScheduleRow]:
        values = {"id": schedule_id, "job_id": job_id, "name": name}
        return await self.read(lambda db: db.structs(ScheduleRow, "list_schedules", values))

    async def trigger(self, schedule_id: int, due_at: datetime | None) -> Enqueued:
        key, due = (tick_key(due_at), to_text(due_at)) if due_at else (None, None)

        def transition(db: Session) -> Enqueued:
            found = db.all("trigger.schedule", (schedule_id,))
            if not found:
                raise NotFound(f"there is no schedule {schedule_id}")
            [(job_id, priority, parameters)] = found
            [run_id], now = db.new_ids(1), db.now()
            values = {
                "id": run_id, "job_id": job_id, "config_id": schedule_id, "key": key, "parameters": parameters,
                "priority": priority, "now": now, "due_at": due,
            }  # fmt: skip
            if not db.all("trigger", values):
                return Enqueued(id=db.value("trigger.existing", (schedule_id, key)), created=False)
            db.all("enqueue.delayed", (now, run_id))
            return Enqueued(id=run_id, created=True)

        return await self.write(transition)

    async def agenda(self, jobs: Sequence[str]) -> Agenda:
        def look(db: Session) -> Agenda:
            now = db.now()
            [(due, late, schedule, delayed, waiting)] = db.all("agenda", {"now": now, "jobs": encode(list(jobs))})
            next_in = seconds_until(min((at for at in (schedule, delayed) if at is not None), default=None), now)
            return Agenda(due=bool(due), delayed=bool(late), next_in=next_in, waiting=bool(waiting))

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
