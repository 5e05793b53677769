"""Runs on Postgres: made, claimed, finished."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from math import inf
from operator import attrgetter
from typing import Any

import asyncpg
import msgspec

from rota.clock import steady
from rota.errors import NotFound, NotOpen, RunLost, TransactionLost, WrongState
from rota.settings import Settings
from rota.store import Claim, Claimed, Enqueued, Finished, NewRun, Outcome, RunFilter, RunRow, State
from rota.stores.postgres import connection as pg
from rota.stores.postgres.base import PostgresBase
from rota.stores.postgres.caller import enqueue_within, enqueue_within_sync
from rota.stores.postgres.front import Front
from rota.stores.postgres.route import Route

_ID_BLOCK, _MOST_IDS, _QUICKLY = 50, 800, 1.0
_IDS_KEPT = 60.0  # runs are looked through and pruned by their ids, so these are to be in the order of time, nearly
_MOST_MERGED = 16
_MOST_CLAIMED = 1000  # their ids fit into one page
_FIRST = -(2**63)
_MANY = 100
_order = attrgetter("rank", "id")
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
_ENDED: pg.Kinds = (*(pg.numbers,) * 2, *(pg.texts,) * 3, *(pg.numbers,) * 3)


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


class PostgresRuns(PostgresBase):
    _block, _fetched = _ID_BLOCK, -inf
    _careful_until = 0.0

    def __init__(self, settings: Settings, *, tag: str | None = None, pool_size: int = 8) -> None:
        super().__init__(settings, tag=tag, pool_size=pool_size)
        self._fronts: dict[tuple[str, ...], Front[int]] = {}
        self._handfuls: dict[tuple[str, ...], float] = {}
        """How many runs of these jobs shared a row when we last looked."""
        self._crowded: set[tuple[str, ...]] = set()
        """Jobs of which more than one run was ready when we last looked."""
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

    async def claim_runs(self, replica_id: int, token: int, jobs: Sequence[str], limit: int) -> Claimed:
        limit = min(limit, _MOST_CLAIMED)
        asked = tuple(jobs)
        front = self._fronts.setdefault(asked, Front(_FIRST))
        start = front.start()
        if start == _FIRST and asked not in self._crowded:
            claimed = await self._claim_one(replica_id, token, asked)
            if not claimed.more:
                return claimed
        claimed = await self._claim(replica_id, token, asked, limit, start)
        if not claimed.claims and start != _FIRST:
            start = _FIRST
            claimed = await self._claim(replica_id, token, asked, limit, start)
        front.note(start, claimed.claims[-1].rank if claimed.more and len(claimed.claims) >= _MANY else None)
        if len(claimed.claims) <= 1 and not claimed.more:
            self._crowded.discard(asked)
        if start != _FIRST:
            return msgspec.structs.replace(claimed, more=True)  # before the start there may be some that others let go
        return claimed

    async def _claim_one(self, replica_id: int, token: int, asked: tuple[str, ...]) -> Claimed:
        [(*run, more)] = await self.fetch("claim_runs.one", token, replica_id, _FIRST, asked)
        if more:
            self._crowded.add(asked)
        return Claimed(claims=_claims(token, [run]) if run[0] is not None else [], more=more)

    async def _claim(self, replica_id: int, token: int, asked: tuple[str, ...], limit: int, start: int) -> Claimed:
        jobs: Sequence[str] = asked
        if len(asked) > _MOST_MERGED:
            jobs = [row["job_id"] for row in await self.fetch("claim_runs.fronts", list(asked), _MOST_MERGED)]
        query, names = _claim_query(len(jobs)), [*jobs, *([None] * _MOST_MERGED)]
        # A row more than it should take: what is locked and not taken is in the way of others.
        rows = min(limit, int(limit / self._handfuls.get(asked, 1.0)) + 1)
        arguments = (token, replica_id, limit, start, rows, *names[: _arms(len(jobs))])
        with pg.translated(self.settings.url):
            *claims, last = await pg.retried(lambda: self.pool.fetch(query, *arguments))
        # What is no run has the columns of one.
        found, runs, busy = last["attempt"], last["losses"], last["slot"]
        self._handfuls[asked] = runs / found if found else 1.0
        unseen = found > 0 and _MOST_MERGED == len(jobs) < len(asked)
        return Claimed(claims=_claims(token, claims), more=found == rows or runs >= limit or unseen, busy=busy)

    async def reclaim(self, replica_id: int, token: int) -> list[Claim]:
        if await self.fetch("claim_runs.void", token, replica_id):
            return []
        return _claims(token, await self.fetch("claim_runs.again", token))

    async def finish_runs(self, outcomes: Sequence[Outcome], closed: Sequence[int]) -> Finished:
        if any(outcome.then for outcome in outcomes):

            async def transition(connection: pg.Connection) -> Finished:
                finished = await self._finish(outcomes, closed, connection)
                follow = [o.then for o in outcomes if o.then and o.id in finished.accepted]
                if follow:
                    await self._make(connection, await _new_ids(connection, len(follow)), follow, _KNOWN)
                return finished

            return await self.whole(transition)
        return await self._finish(outcomes, closed)

    async def _finish(
        self, outcomes: Sequence[Outcome], closed: Sequence[int], on: pg.Connection | None = None
    ) -> Finished:
        if all(o.plain for o in outcomes):
            return await self._finish_plain(outcomes, closed, on)
        values = pg.arrays(
            [(o.id, o.token, o.state, o.result, o.error, o.delay, o.released, o.slot) for o in outcomes], _ENDED
        )
        [row] = await self.fetch("finish_runs", *values, list(closed), True, on=on)
        accepted = frozenset(row["accepted"])
        if len(accepted) == len(outcomes):
            return Finished(accepted=accepted, lost=(), freed=row["freed"])
        return await self._explained(outcomes, accepted, row["freed"], on)

    async def _finish_plain(
        self, outcomes: Sequence[Outcome], closed: Sequence[int], on: pg.Connection | None
    ) -> Finished:
        ids, tokens, slots = [o.id for o in outcomes], [o.token for o in outcomes], [o.id for o in outcomes if o.slot]
        values = pg.numbers(ids), pg.numbers(tokens), pg.numbers(slots), list(closed)
        [row] = await self.fetch("finish_runs.plain", *values, on=on)
        if row["accepted"] is None:
            return Finished(accepted=frozenset(ids), lost=(), freed=row["freed"])
        return await self._explained(outcomes, frozenset(row["accepted"]), row["freed"], on)

    async def _explained(
        self, outcomes: Sequence[Outcome], accepted: frozenset[int], freed: bool, on: pg.Connection | None
    ) -> Finished:
        """Of those that were not accepted: which were recorded before, and which are somebody else's?"""
        rest = [o for o in outcomes if o.id not in accepted]
        already = await self.fetch("finish_runs.already", [o.id for o in rest], [o.token for o in rest], on=on)
        known = {found["id"] for found in already}
        return Finished(accepted=accepted, lost=tuple(o.id for o in rest if o.id not in known), freed=freed)

    @asynccontextmanager
    async def transaction(self, claim: Claim) -> AsyncIterator[tuple[Any, Callable[[Outcome], Any]]]:
        if self._handlers_pool is None:
            raise NotOpen
        with pg.translated(self.settings.url) as boundary:
            async with pg.transaction(self._handlers_pool, self.route) as connection:
                # No timeouts: the handler may wait for other things in here; a frozen one is ended by the caretaker.
                async def finish(outcome: Outcome) -> None:
                    with pg.translated(self.settings.url):
                        await connection.execute("set local idle_in_transaction_session_timeout = '3s'")
                    finished = await self._finish([outcome], [], connection)
                    if outcome.id not in finished.accepted:
                        raise RunLost(f"run {claim.id} was taken over; its transaction is rolled back")

                try:
                    yield connection, finish
                except BaseException as error:
                    # The handler's own error, even if it looks like one of the database's.
                    boundary.spared = error
                    if isinstance(error, Exception) and pg.gone(connection):
                        raise TransactionLost(f"the connection of run {claim.id} was lost: {error}") from error
                    raise

    async def report_progress(self, items: Sequence[tuple[int, int, str]]) -> None:
        await self.fetch("report_progress", *pg.columns(items, 3))

    async def get_runs(self, ids: Sequence[int]) -> list[RunRow]:
        return [_run_row(row) for row in await self.fetch("get_runs", list(ids))]

    async def find_runs(self, which: RunFilter) -> list[RunRow]:
        prefix = None
        if which.key_prefix is not None:
            prefix = which.key_prefix.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
        states = list(which.states) if which.states is not None else None
        followed = which.correlation_id or ""
        root = int(followed) if followed.isdecimal() and len(followed) < 19 else None
        values = (
            which.job_id, which.config_id, states, which.correlation_id, prefix, which.since, which.limit, root,
            which.after_id, which.touched_since,
        )  # fmt: skip
        query = pg.QUERIES["find_runs"]
        if which.longest:
            query = query.replace("order by id desc limit", f"and {pg.QUERIES['find_runs.longest']}")
        async with self.begin() as connection:
            # Which filters are there decides the plan: this one is made anew each time. A few that an index finds are
            # sorted, rather than found by a walk through all in their order.
            await connection.execute("set local plan_cache_mode = force_custom_plan; set local enable_sort = on")
            rows = await connection.fetch(query, *values)
        return [_run_row(row) for row in rows]

    async def running_runs(self) -> list[RunRow]:
        return [_run_row(row) for row in await self.fetch("running_runs")]

    async def cancel_run(self, run_id: int) -> State:
        async def transition(connection: pg.Connection) -> State:
            found = await connection.fetchrow(pg.QUERIES["cancel_run"], run_id)
            if found is None:
                raise NotFound(f"there is no run {run_id}")
            if found["state"] == "cancelled":
                where = (found["rank"], found["run_at"], found["job_id"])
                await connection.fetch(pg.QUERIES["cancel_run.unpark"], run_id, *where)
            state: State = found["state"]
            return state

        return await self.whole(transition)

    async def retry_run(self, run_id: int) -> State:
        async def transition(connection: pg.Connection) -> None:
            if (which := await connection.fetchrow(pg.QUERIES["retry_run.which"], run_id)) is None:
                raise NotFound(f"there is no run {run_id}")
            config_id, *where = which
            await connection.execute(pg.QUERIES["trigger.lock"], config_id)
            # One that was cancelled while others had hold of its row may be there still, without all that it needs.
            # That first, and then the run: others lock in this order too.
            for statement in ("retry_run.fewer", "retry_run.none"):
                await connection.execute(pg.QUERIES[statement], run_id, *where)
            if (found := await connection.fetchrow(pg.QUERIES["retry_run"], run_id)) is None:
                raise NotFound(f"there is no run {run_id}")
            if not found["again"]:
                why = "stands for several missed ticks" if found["missed_count"] is not None else f"is {found['state']}"
                raise WrongState(f"run {run_id} {why}; only a failed, cancelled or skipped run can be retried")
            if found["state"] == "skipped":  # a tick that had made none
                await connection.execute(pg.QUERIES["trigger.counted"], config_id, 1, run_id)

        await self.whole(transition)
        return "queued"

    async def prune(self, keep_days: float, limit: int) -> int:
        return int(await self.fetch_value("prune", keep_days, limit))


def _claims(token: int, rows: Iterable[Any]) -> list[Claim]:
    return sorted([Claim(token, *row) for row in rows], key=_order)


def _arms(jobs: int) -> int:
    """Statements for 1, 2, 4, 8 and 16 jobs are enough; places that are left over are null, and find nothing."""
    return 1 << max(jobs - 1, 0).bit_length()


@cache
def _claim_query(jobs: int) -> str:
    names = [f"${n}" for n in range(6, 6 + _arms(jobs))]
    if jobs <= 1:
        candidates = pg.QUERIES["claim_runs.candidates"]
    else:
        each = [pg.QUERIES["claim_runs.job"].replace("$6", name) for name in names]
        candidates = pg.QUERIES["claim_runs.merged"].replace("/* jobs */", "\n    union all ".join(each))
    claim = pg.QUERIES["claim_runs"].replace("/* names */", ", ".join(f"({name}::text)" for name in names))
    return claim.replace("/* candidates */", candidates)


async def _new_ids(connection: Any, count: int) -> list[int]:
    return [row["id"] for row in await connection.fetch(pg.QUERIES["enqueue.ids"], count)]


def _run_row(row: asyncpg.Record) -> RunRow:
    return RunRow(**dict(row.items()))
