"""Schedules on Postgres: declared, edited, triggered."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import asyncpg
import msgspec

from rota.errors import BadInput, NotFound, StaleWrite
from rota.store import (
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
from rota.stores.postgres import connection as pg
from rota.stores.postgres.base import PostgresBase
from rota.timetable import TZDATA_VERSION, next_by_rules

_FIELDS = tuple(field.name for field in msgspec.structs.fields(Declaration))


class PostgresSchedules(PostgresBase):
    async def declare(self, jobs: Sequence[JobRow], schedules: Sequence[Declaration]) -> None:
        async def transition(connection: pg.Connection) -> None:
            keys = pg.columns(sorted((s.job_id, s.name) for s in schedules), 2)
            known = {
                (row["job_id"], row["name"]): row
                for row in await connection.fetch(pg.QUERIES["declare.existing"], *keys)
            }
            for schedule in sorted(schedules, key=lambda s: (s.job_id, s.name)):
                row = known.get((schedule.job_id, schedule.name))
                declared = msgspec.json.encode(schedule).decode()
                if row is None:
                    await connection.fetch(pg.QUERIES["put_schedule"], *msgspec.structs.astuple(schedule), declared)
                elif changes := changed_fields(row["declared"], schedule):
                    await _update(connection, row["id"], changes | {"declared": declared})
            await connection.execute(pg.QUERIES["declare.revalidate"], [j.job_id for j in jobs])
            await _follow_the_rules(connection, [j.job_id for j in jobs])
            # After the schedules, as everywhere: locks are taken in one order.
            rows = sorted((j.job_id, j.concurrency_limit, j.breaker_failures, j.breaker_pause) for j in jobs)
            await connection.fetch(pg.QUERIES["declare.jobs"], *pg.columns(rows, 4))

        await self.whole(transition)

    async def put_schedule(self, schedule: Declaration) -> ScheduleRow:
        schedule_id = await self.fetch_value("put_schedule", *msgspec.structs.astuple(schedule), None)
        return await self._schedule(schedule_id)

    async def update_schedule(self, schedule_id: int, version: int, changes: dict[str, Any]) -> ScheduleRow:
        unknown = set(changes) - set(_FIELDS) - {"next_run_at"}
        if unknown:
            raise BadInput(f"a schedule has no field {sorted(unknown)[0]!r} to set; there are: {', '.join(_FIELDS)}")
        async with self.begin() as connection:
            updated = await _update(connection, schedule_id, changes, version)
        if not updated:
            current = await self._schedule(schedule_id)
            raise StaleWrite(
                f"schedule {schedule_id} is at version {current.version}, not {version}: "
                "somebody changed it since it was read; read it again"
            )
        return await self._schedule(schedule_id)

    async def revise_schedules(self, revise: Revise) -> list[ScheduleRow]:
        async def transition(connection: pg.Connection) -> list[ScheduleRow]:
            await connection.execute(pg.QUERIES["revise_schedules.lock"])
            rows = await connection.fetch(pg.QUERIES["list_schedules"], None, None, None)
            wanted = revise([_schedule_row(row) for row in rows])
            touched = {schedule_id for schedule_id, _ in wanted.change}
            for schedule_id, changes in wanted.change:
                await _update(connection, schedule_id, changes)
            for schedule in wanted.add:
                added = await connection.fetchval(
                    pg.QUERIES["revise_schedules.add"], *msgspec.structs.astuple(schedule)
                )
                if added is None:
                    raise StaleWrite(f"somebody else added {schedule.job_id}/{schedule.name}; nothing was written")
                touched.add(added)
            for schedule_id in wanted.remove:
                await connection.execute(pg.QUERIES["delete_schedule"], schedule_id)
            rows = await connection.fetch(pg.QUERIES["list_schedules"], None, None, None)
            return [_schedule_row(row) for row in rows if row["id"] in touched]

        return await self.whole(transition)

    async def delete_schedule(self, schedule_id: int) -> bool:
        return await self.fetch_value("delete_schedule", schedule_id) is not None

    async def list_schedules(
        self, job_id: str | None = None, name: str | None = None, schedule_id: int | None = None
    ) -> list[ScheduleRow]:
        return [_schedule_row(row) for row in await self.fetch("list_schedules", schedule_id, job_id, name)]

    async def _schedule(self, schedule_id: int) -> ScheduleRow:
        rows = await self.fetch("list_schedules", schedule_id, None, None)
        if not rows:
            raise NotFound(f"there is no schedule {schedule_id}")
        return _schedule_row(rows[0])

    async def trigger(self, schedule_id: int, due_at: datetime | None) -> Enqueued:
        [made] = await self._trigger(schedule_id, [due_at])
        return made

    async def trigger_ticks(self, schedule_id: int, ticks: Sequence[datetime]) -> list[Enqueued]:
        return await self._trigger(schedule_id, ticks)

    async def _trigger(self, schedule_id: int, ticks: Sequence[datetime | None]) -> list[Enqueued]:
        ids = [row["id"] for row in await self.fetch("enqueue.ids", len(ticks))]

        async def transition(connection: pg.Connection) -> list[Enqueued]:
            found = await connection.fetchrow(pg.QUERIES["trigger.lock"], schedule_id)
            if found is None:
                raise NotFound(f"there is no schedule {schedule_id}")
            runs, made, new = [], [], []
            for run_id, due_at in zip(ids, ticks, strict=True):
                key = tick_key(due_at) if due_at else None
                values = (found["job_id"], schedule_id, key, found["parameters"], found["priority"], due_at)
                if await connection.fetchval(pg.QUERIES["trigger"], run_id, *values) is not None:
                    runs.append(Enqueued(id=run_id, created=True))
                    made.append(run_id)
                    new += [due_at] if due_at else []
                    continue
                there = await connection.fetchval(pg.QUERIES["trigger.existing"], schedule_id, key)
                runs.append(Enqueued(id=there or run_id, created=there in (None, run_id)))
            if made:
                await connection.execute(pg.QUERIES["trigger.counted"], schedule_id, len(made), made[-1])
            if new:
                await connection.execute(pg.QUERIES["trigger.missed"], schedule_id, new, f"{tick_key(max(new))}.")
            return runs

        return await self.whole(transition)

    async def ledger(self, schedule_id: int, first: datetime, last: datetime) -> list[RunRow]:
        return [RunRow(**dict(row.items())) for row in await self.fetch("ledger", schedule_id, first, last)]

    async def tripped_breakers(self) -> list[TrippedBreaker]:
        return [TrippedBreaker(**dict(row.items())) for row in await self.fetch("tripped_breakers")]

    async def mark_unknown(self) -> list[tuple[int, str]]:
        return [(row["id"], row["invalid_reason"]) for row in await self.fetch("mark_unknown")]


async def _follow_the_rules(connection: pg.Connection, jobs: list[str]) -> None:
    """Governments change time zones; what was computed by an older edition is computed again."""
    for row in await connection.fetch(pg.QUERIES["declare.outdated"], jobs, TZDATA_VERSION):
        again = next_by_rules(row["cron"], row["timezone"], row["now"])
        if again is not None:
            await connection.execute(pg.QUERIES["declare.recompute"], row["id"], again, TZDATA_VERSION)


async def _update(
    connection: pg.Connection, schedule_id: int, changes: dict[str, Any], version: int | None = None
) -> bool:
    casts = {"parameters": "::text::jsonb", "declared": "::text::jsonb"}
    # The version is set here too: the trigger that counts does not look at `next_run_at`.
    settings = ", ".join(
        ["version = version + 1", *(f"{name} = ${n}{casts.get(name, '')}" for n, name in enumerate(changes, 3))]
    )
    done = await connection.fetchval(
        f"update rota.scheduler_configs set {settings} "
        "where id = $1 and ($2::bigint is null or version = $2) returning id",
        schedule_id, version, *changes.values(),
    )  # fmt: skip
    return done is not None


def _schedule_row(row: asyncpg.Record) -> ScheduleRow:
    return ScheduleRow(**dict(row.items()))
