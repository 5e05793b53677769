"""Runs on SQLite: made, claimed, looked at, cancelled, retried, pruned. How they end is in finish.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rota.errors import NotFound, WrongState
from rota.store import Claim, Claimed, Enqueued, NewRun, RunFilter, RunRow, State
from rota.stores.sqlite.base import SQLiteBase
from rota.stores.sqlite.caller import enqueue_within, enqueue_within_sync
from rota.stores.sqlite.enqueue import enqueue
from rota.stores.sqlite.session import QUERIES, Record, Session, decode, decode_rows, encode
from rota.stores.sqlite.times import microseconds, shifted, to_text

_CONDITIONS = {
    "job_id": "job_id = :job_id",
    "config_id": "config_id = :config_id",
    "states": "state in (select value from json_each(:states))",
    "correlation_id": "correlation_id = :correlation_id",
    "key_prefix": "substr(idempotency_key, 1, length(:key_prefix)) = :key_prefix",
    "since": "created_at >= :since",
    "after_id": "id > :after_id",
    "touched_since": "(created_at >= :touched_since or started_at >= :touched_since or finished_at >= :touched_since)",
}
_MOST_ARMS = 50  # SQLite merges up to 500, but plans them ever longer


class SQLiteRuns(SQLiteBase):
    async def enqueue(self, runs: Sequence[NewRun], connection: Any = None) -> list[Enqueued]:
        if connection is not None:
            return await enqueue_within(connection, self.path, runs)
        if not runs:
            return []
        return await self.write(lambda db: enqueue(db, runs))

    def enqueue_sync(self, runs: Sequence[NewRun], connection: Any) -> list[Enqueued]:
        return enqueue_within_sync(connection, self.path, runs)

    async def claim_runs(self, replica_id: int, token: int, jobs: Sequence[str], limit: int) -> Claimed:
        names = encode(list(jobs))

        def transition(db: Session) -> list[Claim]:
            now, present = db.only("claim_runs.look", (names,))
            return _claim(db, replica_id, token, _best(db, decode(present), limit), now)

        claims = await self.write(transition, unless=lambda db: None if db.value("claim_runs.any", (names,)) else [])
        return Claimed(claims=claims, more=len(claims) == limit)

    async def reclaim(self, replica_id: int, token: int) -> list[Claim]:
        def transition(db: Session) -> list[Claim]:
            if db.changed(QUERIES["claim_runs.void"], (token, replica_id)):
                return []
            return _claimed_before(db, token)

        return await self.write(transition)

    async def report_progress(self, items: Sequence[tuple[int, int, str]]) -> None:
        if items:
            await self.write(lambda db: db.each("report_progress", items))

    async def get_runs(self, ids: Sequence[int]) -> list[RunRow]:
        return await self.read(lambda db: db.structs(RunRow, "get_runs", (encode(list(ids)),)))

    async def find_runs(self, which: RunFilter) -> list[RunRow]:
        values = {name: getattr(which, name) for name in _CONDITIONS if getattr(which, name) is not None}
        conditions = " and ".join(_CONDITIONS[name] for name in values) or "true"
        if which.states is not None:
            values["states"] = encode(list(which.states))
        values |= {name: to_text(values[name]) for name in ("since", "touched_since") if name in values}
        sql = QUERIES["find_runs"].replace("/* conditions */", conditions)
        if which.longest:
            sql = sql.replace("order by id desc limit", f"and {QUERIES['find_runs.longest']}")
        return await self.read(lambda db: db.structs(RunRow, "find_runs", values | {"limit": which.limit}, sql))

    async def running_runs(self) -> list[RunRow]:
        return await self.read(lambda db: db.structs(RunRow, "running_runs"))

    async def cancel_run(self, run_id: int) -> State:
        def transition(db: Session) -> State:
            found = db.all("cancel_run.find", (run_id,))
            if not found:
                raise NotFound(f"there is no run {run_id}")
            state: State
            [(state, replica_id, job_id, rank, run_at)] = found
            if state == "running":
                db.all("cancel_run.ask", (run_id, replica_id, db.now()))
            if state != "queued":
                return state
            db.all("cancel_run", (run_id, db.now()))
            db.all("cancel_run.free", (run_id,))
            db.all("cancel_run.ready", (run_id, job_id, rank))
            db.all("cancel_run.delayed", (run_id, run_at))
            db.all("cancel_run.waiting", (run_id,))
            return "cancelled"

        return await self.write(transition)

    async def retry_run(self, run_id: int) -> State:
        def transition(db: Session) -> State:
            found = db.all("retry_run.find", (run_id,))
            if not found:
                raise NotFound(f"there is no run {run_id}")
            [(state, missed_count, config_id)] = found
            if state not in ("failed", "cancelled", "skipped") or missed_count is not None:
                why = "stands for several missed ticks" if missed_count is not None else f"is {state}"
                raise WrongState(f"run {run_id} {why}; only a failed, cancelled or skipped run can be retried")
            now = db.now()
            db.all("retry_run", (run_id, now))
            db.all("enqueue.delayed", (now, run_id))
            if state == "skipped":  # a tick that had made none
                db.all("trigger.counted", (config_id, 1, run_id))
            elif state == "failed":
                db.all("retry_run.forgiven", (config_id,))
            return "queued"

        return await self.write(transition)

    async def prune(self, keep_days: float, limit: int) -> int:
        def old(db: Session, most: int) -> list[int]:
            found: list[int] = []
            before = shifted(db.now(), -86400 * keep_days)
            for run_id, may_be_old, is_old in db.connection.execute(QUERIES["prune.old"], (before,)):
                if not may_be_old or len(found) >= most:
                    break
                if is_old:
                    found.append(run_id)
            return found

        def transition(db: Session) -> int:
            ids = old(db, limit)
            db.all("prune", (encode(ids),))
            return len(ids)

        return await self.write(transition, unless=lambda db: None if old(db, 1) else 0)


def _best(db: Session, names: list[str], limit: int) -> list[Record]:
    """What is ready of these jobs, best rank first."""
    found: list[Record] = []
    for first in range(0, len(names), _MOST_ARMS):
        some = names[first : first + _MOST_ARMS]
        arms = " union all ".join([QUERIES["claim_runs.arm"]] * len(some))
        row = db.first(QUERIES["claim_runs.best"].replace("/* arms */", arms), (*some, limit))
        assert row is not None  # an array of them, though it may be empty
        found += decode_rows(row[0])
    if len(names) > _MOST_ARMS:
        found.sort(key=lambda row: (row[2], row[0]))
        del found[limit:]
    return found


def _claim(db: Session, replica_id: int, token: int, best: list[Record], now: str) -> list[Claim]:
    # What was taken of a job is the beginning of what it has.
    last = {row[1]: row for row in best}
    db.each("claim_runs.pop", [(job, rank, run_id) for run_id, job, rank, *_ in last.values()])
    claims = [
        Claim(token, n, job, attempt, losses, parameters, key, microseconds(due), config, correlation, slot == 1, rank)
        for n, job, rank, slot, attempt, losses, parameters, key, due, config, correlation in best
        if attempt is not None
    ]
    take(db, replica_id, token, claims, now)
    return claims


def take(db: Session, replica_id: int, token: int, claims: Sequence[Claim], now: str) -> None:
    """These queued runs are this replica's from now on."""
    if claims:
        ids = encode([claim.id for claim in claims])
        db.all("claim_runs", {"token": token, "replica_id": replica_id, "now": now, "ids": ids})
        db.all("claim_runs.batch", (token, replica_id, ids))
        if held := [claim.id for claim in claims if claim.slot]:
            db.all("claim_runs.hold", (replica_id, now, encode(held)))


def _claimed_before(db: Session, token: int) -> list[Claim]:
    return [
        Claim(token, i, j, a, n, p, k, microseconds(d), c, o, bool(s), r)
        for i, j, a, n, p, k, d, c, o, s, r in db.all("claim_runs.again", (token,))
    ]  # fmt: skip
