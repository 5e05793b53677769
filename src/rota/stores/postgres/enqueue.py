"""Enqueue on Postgres: runs are made, once, also where the reply to COMMIT is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import inf
from operator import attrgetter
from typing import Any

import asyncpg

from rota.clock import steady
from rota.settings import Settings
from rota.store import Enqueued, NewRun
from rota.stores.postgres import connection as pg
from rota.stores.postgres.base import PostgresBase
from rota.stores.postgres.caller import enqueue_within, enqueue_within_sync
from rota.stores.postgres.route import Route

_ID_BLOCK, _MOST_IDS, _QUICKLY = 50, 800, 1.0
_IDS_KEPT = 60.0  # runs are looked through and pruned by their ids, so these are to be in the order of time, nearly
_kind = attrgetter("job_id", "priority")
_values = attrgetter("parameters", "key", "correlation_id", "parent_id", "run_at", "delay")
_MAYBE_DONE = (
    asyncpg.UniqueViolationError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError, ConnectionError,
)  # fmt: skip
_NONE = "INSERT 0 0"
_KEYED = """on conflict (idempotency_key, job_id)
    where config_id is null and due_at is null and idempotency_key is not null do nothing"""
_UNLESS_LIMITED = "where not exists (select from rota.jobs where job_id = $1 and concurrency_limit > 0)"
_TOGETHER, _ALONE = ("min(id)", "array_agg(id)", "group by run_at, rota.handful(id)"), ("id", "array[id]", "")
_COLUMNS = ("bigint", "text", "text", "text", "bigint", "timestamptz", "float8")
_NEW: pg.Kinds = (pg.texts, pg.texts, pg.texts, pg.numbers, list, pg.numbers)


def _enqueue_queries(name: str, columns: int, on_conflict: str = "", unless: str = "") -> tuple[str, str]:
    """For many runs, and for one, which is faster without arrays and groups."""
    query = pg.QUERIES[name].replace("/* on conflict */", on_conflict).replace("/* unless limited */", unless)
    kinds = list(enumerate(_COLUMNS[:columns], 3))
    one = ", ".join(f"${n}::{kind}" for n, kind in kinds)
    many = ", ".join(f"${n}::{'' if kind == 'timestamptz' else 'text::'}{kind}[]" for n, kind in kinds)
    sources = f"unnest({many})", f"(values ({one}))"
    return _filled(query, _TOGETHER, sources[0]), _filled(query, _ALONE, sources[1])


def _filled(query: str, rows: tuple[str, str, str], runs: str) -> str:
    for place, part in zip(("runs", "first", "together", "by the handful"), (runs, *rows), strict=True):
        query = query.replace(f"/* {place} */", part)
    return query


# New ids collide with nothing, and most keys are new, which is cheaper not to look for. After a collision keys are
# looked for, for a while; what was tried before may be there in any way.
_READY = _enqueue_queries("enqueue.ready", 5, unless=_UNLESS_LIMITED)
_SURELY_READY = _enqueue_queries("enqueue.ready", 5)
_FRESH, _CAREFUL = _enqueue_queries("enqueue", 7), _enqueue_queries("enqueue", 7, _KEYED)
_KNOWN = _enqueue_queries("enqueue", 7, "on conflict do nothing")
_ENQUEUES = (*_READY, *_SURELY_READY, *_FRESH, *_CAREFUL, *_KNOWN)
_CAREFUL_FOR, _UNLIMITED_FOR = 10.0, 1.0


class PostgresEnqueue(PostgresBase):
    _block, _fetched = _ID_BLOCK, -inf
    _careful_until = 0.0

    def __init__(self, settings: Settings, *, tag: str | None = None, pool_size: int = 8) -> None:
        super().__init__(settings, tag=tag, pool_size=pool_size)
        self._ids: list[int] = []
        self._fetching = asyncio.Lock()
        self._limited: set[str] = set()
        """Jobs that had a limit when we last looked."""
        self._unlimited_until: dict[str, float] = {}
        """Jobs that had none, and until when that is believed."""

    async def enqueue(self, runs: Sequence[NewRun], connection: Any = None) -> list[Enqueued]:
        if connection is not None:
            return await enqueue_within(connection, runs)
        if len(runs) == 1:
            return [await self.enqueue_one(runs[0])]
        # The ids are known before the first try: when the reply to COMMIT is lost, the second try finds them.
        await self._fetch_ids(len(runs))
        return await self._enqueue_as(self._take_ids(len(runs)), runs)

    async def enqueue_one(self, run: NewRun, *, tell: bool = False) -> Enqueued:
        """Most are ready at once, and their key, if they have one, is new: those go by the shortest way there is."""
        now = steady()
        if not self._ids or now > self._fetched + _IDS_KEPT:
            await self._fetch_ids(1)
            now = steady()  # that may have taken long, and what is believed lasts for a second
        run_id, tried = self._ids.pop(), False
        if not (run.delay or run.run_at or run.job_id in self._limited or now < self._careful_until):
            values = (run.job_id, run.priority, run_id, run.parameters, run.key, run.correlation_id, run.parent_id)
            # Where a pooler has us say everything in a transaction, nothing can be said behind it.
            tell = tell and self.route is not Route.TRANSACTION
            surely = not tell and now < self._unlimited_until.get(run.job_id, 0.0)
            _, query = _SURELY_READY if surely else _READY
            told = False
            try:
                if tell:
                    [[made, told]] = await self.pool.fetch(pg.QUERIES["enqueue.told"], *values)
                else:
                    made = await self.pool.execute(query, *values) != _NONE
                if surely or self._unlimited(run.job_id, made, now):
                    return Enqueued(id=run_id, created=True, told=told)
            except pg.TRANSIENT:
                pass
            except _MAYBE_DONE:
                tried = True
            except Exception as error:
                # The run may be committed and only the word have failed, whatever by. A second try tells.
                tried = tell and isinstance(error, asyncpg.PostgresError)
                with pg.translated(self.settings.url):
                    if not tried:
                        raise
        [known] = await self._enqueue_as([run_id], [run], tried=tried)
        return known

    def enqueue_sync(self, runs: Sequence[NewRun], connection: Any) -> list[Enqueued]:
        return enqueue_within_sync(connection, runs)

    async def _enqueue_as(self, ids: Sequence[int], runs: Sequence[NewRun], *, tried: bool = False) -> list[Enqueued]:
        """`tried`: it may be done already."""
        with pg.translated(self.settings.url):
            if not tried:
                known = _FRESH if steady() >= self._careful_until else _CAREFUL
                try:
                    return await pg.retried(lambda: self._enqueue(ids, runs, known))
                except _MAYBE_DONE:
                    pass
            self._careful_until = steady() + _CAREFUL_FOR
            return await pg.retried(lambda: self._enqueue(ids, runs, _KNOWN))

    async def _enqueue(self, ids: Sequence[int], runs: Sequence[NewRun], known: tuple[str, str]) -> list[Enqueued]:
        async with self.pool.use() as connection:
            return await self._make(connection, ids, runs, known)

    async def _make(
        self, connection: Any, ids: Sequence[int], runs: Sequence[NewRun], known: tuple[str, str]
    ) -> list[Enqueued]:
        """One statement for the runs of each job and priority: most often one in all, a transaction by itself."""
        if len(runs) == 1 or len(set(map(_kind, runs))) == 1:
            made = await self._make_kind(connection, ids, runs, known)
        elif connection.is_in_transaction():
            made = await self._make_kinds(connection, ids, runs, known)
        else:
            async with connection.transaction():
                made = await self._make_kinds(connection, ids, runs, known)
        if made == len(runs):
            return [Enqueued(id=n, created=True) for n in ids]
        found = await connection.fetch(
            pg.QUERIES["enqueue.existing"], list(ids), [r.job_id for r in runs], [r.key for r in runs]
        )
        there = {row["n"]: Enqueued(id=row["id"], created=row["created"]) for row in found}
        # What was there a moment ago may have been pruned since: its key is free again.
        gone = [n for n in range(1, len(runs) + 1) if n not in there]
        if gone:
            again = await self._make(connection, [ids[n - 1] for n in gone], [runs[n - 1] for n in gone], known)
            there |= dict(zip(gone, again, strict=True))
        return [there[n] for n in range(1, len(runs) + 1)]

    async def _make_kinds(
        self, connection: Any, ids: Sequence[int], runs: Sequence[NewRun], known: tuple[str, str]
    ) -> int:
        kinds: dict[tuple[str, int], list[tuple[int, NewRun]]] = {}
        for run_id, run in zip(ids, runs, strict=True):
            kinds.setdefault(_kind(run), []).append((run_id, run))
        made = 0
        for members in kinds.values():
            made += await self._make_kind(connection, [n for n, _ in members], [run for _, run in members], known)
        return made

    async def _make_kind(
        self, connection: Any, ids: Sequence[int], runs: Sequence[NewRun], known: tuple[str, str]
    ) -> int:
        job_id, priority = _kind(runs[0])
        one = len(runs) == 1
        values = (ids[0], *_values(runs[0])) if one else (pg.numbers(ids), *pg.arrays(map(_values, runs), _NEW))
        if known is _FRESH and job_id not in self._limited and not any(run.delay or run.run_at for run in runs):
            now = steady()
            made = await connection.execute(_READY[one], job_id, priority, *values[:5])
            if self._unlimited(job_id, made != _NONE, now):
                return len(runs)
        return int(await connection.fetchval(known[one], job_id, priority, *values))

    async def _follow(self, connection: Any, runs: Sequence[NewRun]) -> None:
        """Those that outcomes ask for, in the transaction that accepts them, which it does once."""
        await self._make(connection, await _new_ids(connection, len(runs)), runs, _KNOWN)

    def _unlimited(self, job_id: str, made: bool, asked: float) -> bool:
        """The statement for ready runs makes none where the job has a limit, and is not tried for that job again. That
        there is none is believed for a moment: to look is a twentieth of what it takes to make one run."""
        if not made:
            self._limited.add(job_id)
            return False
        self._unlimited_until[job_id] = asked + _UNLIMITED_FOR
        return True

    def _take_ids(self, count: int) -> list[int]:
        rest = len(self._ids) - count
        taken = self._ids[rest:]
        del self._ids[rest:]
        return taken[::-1]

    async def _fetch_ids(self, count: int) -> None:
        """So that there are as many at least."""
        async with self._fetching:
            now = steady()
            if now > self._fetched + _IDS_KEPT:
                self._ids.clear()
            if len(self._ids) >= count:
                return
            # Whoever uses them up quickly gets more at a time; what is left over at the end is lost.
            self._block = min(2 * self._block, _MOST_IDS) if now < self._fetched + _QUICKLY else _ID_BLOCK
            rows = await self.fetch("enqueue.ids", max(count, self._block))
            self._fetched = now
            self._ids[:0] = [row["id"] for row in reversed(rows)]


async def _new_ids(connection: Any, count: int) -> list[int]:
    return [row["id"] for row in await connection.fetch(pg.QUERIES["enqueue.ids"], count)]
