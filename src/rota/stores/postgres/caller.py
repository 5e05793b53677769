"""Runs made on a caller's own connection to Postgres, by whatever driver, as part of its transaction.

What goes wrong there comes out as the driver's own error, which the caller's code knows how to handle; only where
rota's tables are missing does rota say so. The transaction is over then, as after any statement that fails on Postgres.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import msgspec

from rota.caller import Awaited, Bridged, Caller, Record, caller_of, in_place, type_name
from rota.errors import BadInput, SchemaMismatch
from rota.store import Enqueued, NewRun
from rota.stores.postgres.connection import QUERIES

Talk: TypeAlias = Generator[tuple[str, str], list[Record], list[Enqueued]]
"""Says a statement with its one value and is given the rows; whether somebody awaits them is not its business."""

_NO_TABLES = {"42P01", "42703", "42883", "3F000"}


async def enqueue_within(connection: Any, runs: Sequence[NewRun]) -> list[Enqueued]:
    caller = _caller(connection)
    with _explained():
        if isinstance(caller, Bridged):
            return await caller.run(lambda here: _say(_making(runs), here))
        if isinstance(caller, Caller):
            return _say(_making(runs), caller)
        return await _say_and_wait(_making(runs), caller)


def enqueue_within_sync(connection: Any, runs: Sequence[NewRun]) -> list[Enqueued]:
    with _explained():
        return _say(_making(runs), in_place(_caller(connection)))


def _caller(connection: Any) -> Caller | Awaited | Bridged:
    caller = caller_of(connection)
    if caller is None:
        raise BadInput(
            "connection must be one of asyncpg, psycopg, psycopg2, SQLAlchemy or Django, "
            f"not {type_name(connection)}; of a pool or an engine, pass the connection that it gives you"
        )
    return caller


def _making(runs: Sequence[NewRun]) -> Talk:
    if not runs:
        return []
    made = yield QUERIES["enqueue.given"], _text(
        [
            {
                "job_id": run.job_id, "parameters": run.parameters, "priority": run.priority, "key": run.key,
                "run_at": run.run_at, "delay": run.delay or None, "correlation_id": run.correlation_id,
                "parent_id": run.parent_id,
            }
            for run in runs
        ]
    )  # fmt: skip
    ids = {n: run_id for n, run_id, created, _ in made if created}
    missing = [{"n": n, "job_id": run.job_id, "key": run.key} for n, run in enumerate(runs, 1) if n not in ids]
    there: dict[int, int] = {}
    if missing:
        there = dict((yield QUERIES["enqueue.given_existing"], _text(missing)))
    found = {n: Enqueued(id=run_id, created=True) for n, run_id in ids.items()}
    found |= {n: Enqueued(id=run_id, created=False) for n, run_id in there.items()}
    # What was there a moment ago may have been pruned since: its key is free again.
    gone = [n for n in range(1, len(runs) + 1) if n not in found]
    found |= dict(zip(gone, (yield from _making([runs[n - 1] for n in gone])), strict=True))
    return [found[n] for n in sorted(found)]


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _say(talk: Talk, caller: Caller) -> list[Enqueued]:
    if caller.database != "postgresql":
        raise BadInput(
            f"connection leads to {caller.database}, but the app's url to Postgres: pass one to that database"
        )
    try:
        sql, value = next(talk)
        while True:
            sql, value = talk.send(caller.execute(sql, (value,)))
    except StopIteration as end:
        made: list[Enqueued] = end.value
        return made


async def _say_and_wait(talk: Talk, caller: Awaited) -> list[Enqueued]:
    try:
        sql, value = next(talk)
        while True:
            sql, value = talk.send(await caller.execute(sql, (value,)))
    except StopIteration as end:
        made: list[Enqueued] = end.value
        return made


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if _sqlstate(error) in _NO_TABLES:
            [why, *_] = str(error).splitlines()
            raise SchemaMismatch(
                f"the database of this connection lacks rota's tables ({why}): run `rota migrate` on it, or pass a "
                "connection to the database that the app's url names"
            ) from error
        raise


def _sqlstate(error: BaseException | None) -> str | None:
    """As the driver has it, also where SQLAlchemy or Django have wrapped its error."""
    while error is not None:
        state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        if state:
            return str(state)
        error = getattr(error, "orig", None) or error.__cause__
    return None
