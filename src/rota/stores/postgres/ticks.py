"""Ticks on Postgres: due schedules become runs, delayed runs become ready, waiting runs get slots."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

import asyncpg
import msgspec

from rota.clock import steady
from rota.contract.places import Places, Start, nowhere
from rota.errors import StaleWrite
from rota.settings import Settings
from rota.store import Agenda, Claim, Decide, Decision, DueSchedule, Fired, begun, instant
from rota.stores.postgres import connection as pg
from rota.stores.postgres.base import PostgresBase
from rota.stores.postgres.front import Front
from rota.timetable import TZDATA_VERSION

_Reached: TypeAlias = tuple[int, datetime, int]
"""Priority, due time and id of a schedule."""
_Taken: TypeAlias = dict[int | str, asyncpg.Record]
"""By schedule what it holds, by job what is to be said of it."""
_NEVER = datetime(1, 1, 1, tzinfo=UTC)
_FRONT: _Reached = (-1, _NEVER, 0)
_DECIDED_BY = DueSchedule.__struct_fields__.index("held")
"""So many columns of a claimed row are what a decision is made by."""
_COMING = pg.QUERIES["fire_due.claim"].replace("/* lock */ for update of c skip locked", "")
_FEW = 100
"""More that are due together are decided on when they are due: it would take too long to do it ahead."""
_HOLDS = timedelta(seconds=0.25)
"""For so long after the instant a decision that was made ahead of it is good."""
_EARLY = 0.002
"""Seconds: time to get to the server, where the rest is waited for."""


class PostgresTicks(PostgresBase):
    most_locked = 500  # advisory locks live in shared memory, which is small and everybody's

    def __init__(self, settings: Settings, *, tag: str | None = None, pool_size: int = 8) -> None:
        super().__init__(settings, tag=tag, pool_size=pool_size)
        self._front: Front[_Reached] = Front(_FRONT)

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
        if wait > 0 and (decisions := await self._decide_ahead(decide, jobs, min(limit, _FEW), leave, wait)):
            return await self._fire_awaited(decisions, advisory, start, due_at - _EARLY)

        async def transition(connection: pg.Connection) -> Fired:
            await asyncio.sleep(due_at - steady())
            claimed = await connection.fetch(
                pg.QUERIES["fire_due.claim"], list(jobs), list(leave), limit, advisory, pg.NAMESPACE, *front, 0.0
            )
            self._front.note(front, _reached(claimed[-1]) if len(claimed) == limit else None)
            contended = tuple(row["id"] for row in claimed if not row["locked"])
            due = await _claimed(connection, [row for row in claimed if row["locked"]])
            if not due:
                return Fired(contended=contended)
            now = instant(claimed[0]["now"])
            return await _write(connection, now, decide(now, due), contended, start)

        fired = await self.whole(transition)
        if not fired.schedules and not fired.contended and front != _FRONT:
            return await self.fire_due(decide, jobs=jobs, limit=limit, advisory=advisory, leave=leave, start=start)
        return fired

    async def _decide_ahead(
        self, decide: Decide, jobs: Sequence[str], limit: int, leave: Sequence[int], wait: float
    ) -> list[Decision]:
        """On what is due at the next instant, if it is not much: those that are plain, and stay so for a while."""
        with pg.translated(self.settings.url):
            async with self.pool.use() as connection:
                rows = await connection.fetch(
                    _COMING, list(jobs), list(leave), limit + 1, False, pg.NAMESPACE, *_FRONT, wait + _EARLY
                )
                first = min((row["next_run_at"] or 0 for row in rows), default=0)
                if len(rows) > limit or not rows or first <= rows[0]["now"]:
                    return []
                rows = [row for row in rows if row["next_run_at"] == first]
                taken = await _taken(connection, rows)
        # Jobs of which there is more to be said are for the one who has their rows.
        due, at = _due([row for row in rows if row["job_id"] not in taken], taken, {}), instant(first)
        later = {d.schedule.id: d for d in decide(at + _HOLDS, due)}
        return [d for d in decide(at, due) if d.plain and later.get(d.schedule.id) == d]

    async def _fire_awaited(self, decisions: list[Decision], advisory: bool, start: Start, early: float) -> Fired:
        """One statement, by itself a transaction: those of which nothing has changed since they were decided on."""
        at = decisions[0].ticks[0].due_at

        async def attempt() -> tuple[Places | None, asyncpg.Record]:
            async with self.pool.use() as connection:
                await asyncio.sleep(early - steady())
                places = start()
                values = (at, at + _HOLDS, *_plain(decisions, places), advisory, pg.NAMESPACE)
                [written] = await connection.fetch(pg.QUERIES["fire_due.awaited"], *values)
                return places, written

        with pg.translated(self.settings.url):
            places, written = await pg.retried(attempt)
        claims = _begun(decisions, places, written)
        return Fired(
            schedules=written["advanced"],
            runs=written["made"] or 0,
            ready=(written["made"] or 0) - len(claims),
            lateness=written["late"],
            claims=claims,
        )

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


def _reached(row: asyncpg.Record) -> _Reached:
    at = row["next_run_at"]
    return row["priority"], _NEVER if at is None else instant(at), row["id"]


async def _taken(connection: pg.Connection, rows: list[asyncpg.Record]) -> _Taken:
    """What stands in the way of these schedules."""
    ids, names = [row["id"] for row in rows], list({row["job_id"] for row in rows})
    return {row["job_id"] or row["id"]: row for row in await connection.fetch(pg.QUERIES["fire_due.taken"], ids, names)}


async def _claimed(connection: pg.Connection, rows: list[asyncpg.Record]) -> list[DueSchedule]:
    """The claimed rows with their slots and the breaker of their job, read after the rows were locked."""
    if not rows:
        return []
    taken, breakers = await _taken(connection, rows), dict[str, asyncpg.Record]()
    if tripped := sorted({row["job_id"] for row in taken.values() if row["job_id"] and row["breaker"] != "closed"}):
        breakers = {row["job_id"]: row for row in await connection.fetch(pg.QUERIES["fire_due.breakers"], tripped)}
    return _due(rows, taken, breakers)


def _due(rows: list[asyncpg.Record], taken: _Taken, breakers: dict[str, asyncpg.Record]) -> list[DueSchedule]:
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
        [written] = await connection.fetch(pg.QUERIES["fire_due.plain"], *_plain(plain, places))
        claims = _begun(plain, places, written)
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


def _plain(decisions: list[Decision], places: Places | None) -> tuple[object, ...]:
    """What the database has to be told of plain decisions, and of those that get a place."""
    return (
        pg.numbers([d.schedule.id for d in decisions]),
        pg.numbers([d.schedule.version for d in decisions]),
        pg.numbers([d.next_run_at.timestamp() if d.next_run_at else None for d in decisions]),
        pg.numbers(places.given_to(d.schedule.job_id for d in decisions) if places else []),
        *((places.token, places.replica_id) if places else (None, None)),
        TZDATA_VERSION,
        *pg.columns(places.jobs if places else (), 2),
    )


def _begun(decisions: list[Decision], places: Places | None, written: asyncpg.Record) -> tuple[Claim, ...]:
    if places is None or not written["begun"]:
        return ()
    ids = dict(zip(written["begun_of"], written["begun"], strict=True))
    return tuple(
        begun(places.token, ids[d.schedule.id], d.schedule, d.ticks[0]) for d in decisions if d.schedule.id in ids
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
