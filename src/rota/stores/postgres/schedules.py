"""Schedules on Postgres: declared, edited, fired."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

import asyncpg
import msgspec

from rota.clock import steady
from rota.contract.places import Start, nowhere
from rota.errors import BadInput, NotFound, StaleWrite
from rota.settings import Settings
from rota.store import (
    Agenda,
    Claim,
    Decide,
    Decision,
    Declaration,
    DueSchedule,
    Enqueued,
    Fired,
    JobRow,
    Revise,
    RunRow,
    ScheduleRow,
    TrippedBreaker,
    begun,
    changed_fields,
    instant,
    tick_key,
)
from rota.stores.postgres import connection as pg
from rota.stores.postgres.base import PostgresBase
from rota.stores.postgres.front import Front
from rota.timetable import TZDATA_VERSION, next_by_rules

_Reached: TypeAlias = tuple[int, datetime, int]
"""Priority, due time and id of a schedule."""
_NEVER = datetime(1, 1, 1, tzinfo=UTC)
_FRONT: _Reached = (-1, _NEVER, 0)
_DECIDED_BY = DueSchedule.__struct_fields__.index("held")
"""So many columns of a claimed row are what a decision is made by."""
_FIELDS = tuple(field.name for field in msgspec.structs.fields(Declaration))


class PostgresSchedules(PostgresBase):
    most_locked = 500  # advisory locks live in shared memory, which is small and everybody's

    def __init__(self, settings: Settings, *, tag: str | None = None, pool_size: int = 8) -> None:
        super().__init__(settings, tag=tag, pool_size=pool_size)
        self._front: Front[_Reached] = Front(_FRONT)

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
        front, due_at = self._front.start(), steady() + wait

        async def transition(connection: pg.Connection) -> Fired:
            await asyncio.sleep(due_at - steady())
            claimed = await connection.fetch(
                pg.QUERIES["fire_due.claim"], list(jobs), list(leave), limit, advisory, pg.NAMESPACE, *front
            )
            self._front.note(front, _reached(claimed[-1]) if len(claimed) == limit else None)
            contended = tuple(row["id"] for row in claimed if not row["locked"])
            due = await _due(connection, [row for row in claimed if row["locked"]])
            if not due:
                return Fired(contended=contended)
            now = instant(claimed[0]["now"])
            return await _write(connection, now, decide(now, due), contended, start)

        fired = await self.whole(transition)
        if not fired.schedules and not fired.contended and front != _FRONT:
            return await self.fire_due(decide, jobs=jobs, limit=limit, advisory=advisory, leave=leave, start=start)
        return fired

    async def promote_due(self, limit: int) -> int:
        return int(await self.fetch_value("promote_due", limit))

    async def admit_waiting(self) -> int:
        async def transition(connection: pg.Connection) -> int:
            schedules = [row["id"] for row in await connection.fetch(pg.QUERIES["admit_waiting.schedules"])]
            jobs = [row["job_id"] for row in await connection.fetch(pg.QUERIES["admit_waiting.jobs"])]
            if not schedules and not jobs:
                return 0
            return int(await connection.fetchval(pg.QUERIES["admit_waiting"], schedules, jobs))

        return await self.whole(transition)

    async def agenda(self, jobs: Sequence[str]) -> Agenda:
        [row] = await self.fetch("agenda", list(jobs))
        return Agenda(**dict(row.items()))

    async def mark_unknown(self) -> list[tuple[int, str]]:
        return [(row["id"], row["invalid_reason"]) for row in await self.fetch("mark_unknown")]


def _reached(row: asyncpg.Record) -> _Reached:
    at = row["next_run_at"]
    return row["priority"], _NEVER if at is None else instant(at), row["id"]


async def _due(connection: pg.Connection, rows: list[asyncpg.Record]) -> list[DueSchedule]:
    """The claimed rows with their slots and the breaker of their job, read after the rows were locked."""
    if not rows:
        return []
    ids, names = [row["id"] for row in rows], list({row["job_id"] for row in rows})
    taken: dict[int | str, asyncpg.Record] = {
        row["job_id"] or row["id"]: row for row in await connection.fetch(pg.QUERIES["fire_due.taken"], ids, names)
    }
    breakers: dict[str, asyncpg.Record] = {}
    if tripped := sorted(name for name in names if name in taken and taken[name]["breaker"] != "closed"):
        breakers = {row["job_id"]: row for row in await connection.fetch(pg.QUERIES["fire_due.breakers"], tripped)}
    due = [DueSchedule(None if row[0] is None else instant(row[0]), *row[1:_DECIDED_BY]) for row in rows]
    if not taken:
        return due
    for place, schedule in enumerate(due):
        if schedule.id in taken or schedule.job_id in taken:
            mine, of_job, breaker = taken.get(schedule.id), taken.get(schedule.job_id), breakers.get(schedule.job_id)
            due[place] = msgspec.structs.replace(
                schedule,
                held=mine["held"] if mine else 0,
                waiting=mine["waiting"] if mine else 0,
                job_limited=of_job is not None and of_job["limited"],
                breaker=breaker["breaker"] if breaker else "closed",
                breaker_retry_at=breaker["retry_at"] if breaker else None,
            )
    return due


async def _write(
    connection: pg.Connection, now: datetime, decisions: list[Decision], contended: tuple[int, ...], start: Start
) -> Fired:
    plain = [d for d in decisions if d.plain]
    others = [d for d in decisions if not d.plain] if len(plain) < len(decisions) else []
    runs = ready = made = advanced = 0
    claims: tuple[Claim, ...] = ()
    if plain:
        places = start()
        values = (
            pg.numbers([d.schedule.id for d in plain]),
            pg.numbers([d.schedule.version for d in plain]),
            pg.numbers([d.next_run_at.timestamp() if d.next_run_at else None for d in plain]),
            pg.numbers(places.given_to(d.schedule.job_id for d in plain) if places else []),
        )
        claimed = (places.token, places.replica_id) if places else (None, None)
        lanes = pg.columns(places.jobs if places else (), 2)
        [written] = await connection.fetch(pg.QUERIES["fire_due.plain"], *values, *claimed, TZDATA_VERSION, *lanes)
        if places and written["begun"]:
            ids = dict(zip(written["of"], written["begun"], strict=True))
            claims = tuple(
                begun(places.token, ids[d.schedule.id], d.schedule, d.ticks[0]) for d in plain if d.schedule.id in ids
            )
        runs = made = written["made"]
        ready = runs - len(claims)
        advanced = written["advanced"]
    if others:
        [written] = await _write_others(connection, others)
        runs, ready, made = runs + written["runs"], ready + written["ready"], made + written["made"]
        advanced += written["advanced"]
    if advanced != len(decisions):
        raise StaleWrite("a schedule was changed while its ticks were made; nothing was written")
    started = [tick.due_at for d in decisions for tick in d.ticks if tick.place == "ready"]
    return Fired(
        schedules=len(decisions),
        runs=runs,
        ready=ready,
        skipped=made - runs,
        contended=contended,
        invalid=tuple((d.schedule.id, d.invalid_reason) for d in decisions if d.invalid_reason),
        lateness=(now - min(started)).total_seconds() if started else 0.0,
        claims=claims,
    )


async def _write_others(connection: pg.Connection, decisions: list[Decision]) -> list[asyncpg.Record]:
    ticks = [
        (d.schedule.id, d.schedule.job_id, tick.key, d.schedule.parameters, d.schedule.priority,
         None if tick.place == "ready" else tick.place,
         tick.reason, tick.due_at, tick.missed_from, tick.missed_to, tick.missed_count,
         d.schedule.concurrency_limit > 0, d.schedule.job_limited, d.schedule.lock_timeout_seconds)
        for d in decisions for tick in d.ticks
    ]  # fmt: skip
    if stopping := [d.schedule.id for d in decisions if d.cancel_running]:
        await connection.fetch(pg.QUERIES["fire_due.cancel"], stopping)
    if probing := [d.schedule.job_id for d in decisions if d.probe]:
        await connection.fetch(pg.QUERIES["fire_due.probe"], probing)
    frontier = [(d.schedule.id, d.schedule.version, d.next_run_at, d.invalid_reason) for d in decisions]
    return await connection.fetch(
        pg.QUERIES["fire_due.write"], *pg.columns(ticks, 14), *pg.columns(frontier, 4), TZDATA_VERSION
    )


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
