"""Runs on Postgres: finished, listed, cancelled, wanted again, pruned. enqueue.py makes them, claim.py takes them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from rota.errors import NotFound, NotOpen, RunLost, TransactionLost, WrongState
from rota.store import Claim, Finished, Outcome, RunFilter, RunRow, State
from rota.stores.postgres import connection as pg
from rota.stores.postgres.claim import PostgresClaim
from rota.stores.postgres.enqueue import PostgresEnqueue

_ENDED: pg.Kinds = (*(pg.numbers,) * 2, *(pg.texts,) * 3, *(pg.numbers,) * 3)


class PostgresRuns(PostgresEnqueue, PostgresClaim):
    async def finish_runs(self, outcomes: Sequence[Outcome], closed: Sequence[int]) -> Finished:
        if any(outcome.then for outcome in outcomes):

            async def transition(connection: pg.Connection) -> Finished:
                finished = await self._finish(outcomes, closed, connection)
                follow = [o.then for o in outcomes if o.then and o.id in finished.accepted]
                if follow:
                    await self._follow(connection, follow)
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


def _run_row(row: asyncpg.Record) -> RunRow:
    return RunRow(**dict(row.items()))
