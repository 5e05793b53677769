"""The end of an attempt on SQLite: recorded only with the token of its claim, with everything that hangs on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import apsw
import msgspec

from rota.errors import BadInput, RunLost
from rota.settings import Settings
from rota.store import Claim, Finished, Outcome
from rota.stores.sqlite.base import SQLiteBase
from rota.stores.sqlite.connection import translated
from rota.stores.sqlite.enqueue import enqueue
from rota.stores.sqlite.session import Session, decode, decode_rows, encode
from rota.stores.sqlite.times import shifted


class Done(NamedTuple):
    """An outcome that was accepted, with what the ledger knows of its run."""

    outcome: Outcome
    job_id: str
    config_id: int | None
    started_at: str

    @property
    def went_wrong(self) -> bool:
        return self.outcome.state == "failed" or self.outcome.error is not None


class SQLiteFinish(SQLiteBase):
    def __init__(self, settings: Settings, *, tag: str | None = None) -> None:
        super().__init__(settings, tag=tag)
        self._turn = asyncio.Lock()

    async def finish_runs(self, outcomes: Sequence[Outcome], closed: Sequence[int]) -> Finished:
        if not outcomes and not closed:
            return Finished(accepted=frozenset(), lost=(), freed=False)
        return await self.write(lambda db: _finish(db, outcomes, closed))

    @asynccontextmanager
    async def transaction(self, claim: Claim) -> AsyncIterator[tuple[Any, Callable[[Outcome], Any]]]:
        # There is one writer at a time: those of this process wait here for each other, not at the file.
        async with self._turn:
            worker = self.new_worker()
            try:
                with translated(self.path):
                    connection = await worker.run(_begin)

                async def finish(outcome: Outcome) -> None:
                    with translated(self.path):
                        finished = await worker.run(lambda db: _finish_within(db, outcome))
                    if outcome.id not in finished.accepted:
                        raise RunLost(f"run {claim.id} was taken over; its transaction is rolled back")

                yield connection, finish
                with translated(self.path):
                    await worker.run(lambda db: db.execute("commit") if db.connection.in_transaction else [])
            finally:
                # Closing rolls back what was not committed, also when the caller was cancelled while we began.
                await asyncio.shield(worker.close())


def _begin(db: Session) -> apsw.Connection:
    db.execute("begin immediate")
    return db.connection


def _finish_within(db: Session, outcome: Outcome) -> Finished:
    if not db.connection.in_transaction:
        raise BadInput("the handler ended the transaction that rota began: leave COMMIT and ROLLBACK to rota")
    return _finish(db, [outcome], [])


def _finish(db: Session, outcomes: Sequence[Outcome], closed: Sequence[int]) -> Finished:
    now, unwanted = db.only("finish_runs.look")
    plain: dict[int, list[int]] = {}
    rest: list[Outcome] = []
    for o in outcomes:
        if o.plain:
            plain.setdefault(o.token, []).append(o.id)
        else:
            rest.append(o)
    accepted, refused = _record_plain(db, plain, now)
    done = _record(db, rest, now) if rest else []
    recorded = {(d.outcome.id, d.outcome.token) for d in done}
    refused += [(o.id, o.token) for o in rest if (o.id, o.token) not in recorded]
    accepted.update(run_id for run_id, _ in recorded)
    freed = _free(db, [o.id for o in outcomes if o.slot and o.id in accepted])
    if closed:
        db.all("finish_runs.close", (encode(list(closed)),))
    if accepted and unwanted:
        db.all("finish_runs.answer", (encode(list(accepted)),))
    if counted := [d for d in done if not d.outcome.released]:
        _count_failures(db, [d for d in counted if d.config_id is not None and d.went_wrong])
        _judge(db, counted, now)
    if follow := [d.outcome.then for d in done if d.outcome.then]:
        enqueue(db, follow)
    known = {run_id for (run_id,) in db.each("finish_runs.already", refused)} if refused else set()
    lost = tuple(run_id for run_id, _ in refused if run_id not in known)
    return Finished(accepted=frozenset(accepted), lost=lost, freed=freed)


def _record_plain(db: Session, by_token: dict[int, list[int]], now: str) -> tuple[set[int], list[tuple[int, int]]]:
    """Successes that leave nothing but the fact, a claim at a time; and those whose run has another token by now."""
    accepted: set[int] = set()
    refused: list[tuple[int, int]] = []
    for token, ids in by_token.items():
        mine = set(ids)
        if gone := decode(db.value("finish_runs.refused", (encode(list(mine)), token))):
            mine.difference_update(gone)
            refused += [(run_id, token) for run_id in gone]
        db.all("finish_runs.plain", (encode(list(mine)), now))
        accepted |= mine
    return accepted, refused


def _unless_unwanted(db: Session, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
    """One that somebody wants to stop is not tried again."""
    if all(o.state != "queued" for o in outcomes):
        return outcomes
    unwanted = {run_id for (run_id,) in db.all("finish_runs.unwanted")}
    return [
        msgspec.structs.replace(o, state="cancelled") if o.state == "queued" and o.id in unwanted else o
        for o in outcomes
    ]


def _record(db: Session, outcomes: Sequence[Outcome], now: str) -> list[Done]:
    """The outcomes whose run still has the token; retries are parked until their time."""
    rows = decode_rows(db.value("finish_runs.held", (encode([o.id for o in outcomes]),)))
    held = {(run_id, token): row for run_id, token, *row in rows}
    done: list[Done] = []
    # Runs that ended alike are written together; most of a batch did.
    alike: dict[tuple[Any, ...], list[int]] = {}
    for o in _unless_unwanted(db, outcomes):
        # Popped: of two outcomes for one run the first is recorded.
        if (row := held.pop((o.id, o.token), None)) is not None:
            done.append(Done(o, *row))
            delay = o.delay if o.state == "queued" else None
            alike.setdefault((o.state, o.result, o.error, o.released, delay), []).append(o.id)
    ends = []
    for (*ended, delay), ids in alike.items():
        again = None if delay is None else shifted(now, delay)
        ends.append((encode(ids), *ended, now if again is None else None, again))
        if again is not None:
            db.each("enqueue.delayed", [(again, run_id) for run_id in ids])
    db.each("finish_runs", ends)
    return done


def _free(db: Session, ids: list[int]) -> bool:
    """Whether somebody waits for one of the slots that these held."""
    freed = db.all("finish_runs.free", (encode(ids),)) if ids else []
    if not freed:
        return False
    configs = {config_id for config_id, _ in freed if config_id is not None}
    jobs = {job_id for _, job_id in freed if job_id is not None}
    return bool(db.value("finish_runs.wanted", (encode(list(configs)), encode(list(jobs)))))


def _count_failures(db: Session, done: list[Done]) -> None:
    """The metadata of the schedules; the newest error is the last one to be written."""
    db.each("finish_runs.count", [
        (d.config_id, d.outcome.state == "failed", d.outcome.error) for d in sorted(done, key=lambda d: d.started_at)
    ])  # fmt: skip


def _judge(db: Session, done: list[Done], now: str) -> None:
    """The breakers of the jobs."""
    failures: dict[str, int] = {}
    worked: set[str] = set()
    for d in done:
        failed = d.outcome.error is not None and d.outcome.state in ("failed", "queued")
        failures[d.job_id] = failures.get(d.job_id, 0) + failed
        if d.outcome.state == "succeeded":
            worked.add(d.job_id)
    db.each("finish_runs.judge", [
        {"job_id": job_id, "failures": count, "worked": job_id in worked, "now": now}
        for job_id, count in failures.items()
    ])  # fmt: skip
