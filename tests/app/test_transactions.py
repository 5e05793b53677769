"""Effects that are exactly once, because they commit with the run; and runs that exist only if the caller commits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest

from rota import BadInput, Context, Retry, Rota, RunFailed
from rota.store import RunFilter
from tests.app.waiting import until
from tests.harness import Databases, execute
from tests.patience import PATIENCE


async def _write(connection: Any, n: int) -> None:
    if isinstance(connection, apsw.Connection):
        connection.execute("insert into effects (n) values (?)", (n,))
    else:
        await connection.execute("insert into rota.effects (n) values ($1)", n)


async def test_effect_and_completion_commit_together_or_not_at_all(url: str) -> None:
    app = Rota(url)

    @app.job(transactional=True, retry=Retry(attempts=1, base=0.01))
    async def book(ctx: Context, n: int) -> None:
        await _write(ctx.connection, n * 10 + ctx.attempt)
        if ctx.attempt == 1 or n == 2:
            raise ValueError("after the write")

    async with app:
        await execute(url, "create table effects (n integer)")
        run = await book.enqueue(1)
        await run.result(PATIENCE)
        assert await execute(url, "select n from effects") == [(12,)]
        failing = await book.enqueue(2)
        with pytest.raises(RunFailed):
            await failing.result(PATIENCE)
        assert await execute(url, "select n from effects") == [(12,)]
        assert await execute(url, "select count(*) from claims") == [(0,)]


async def test_a_transaction_whose_run_was_taken_away_is_rolled_back(url: str) -> None:
    app = Rota(url)
    started, go = asyncio.Event(), asyncio.Event()

    @app.job(transactional=True)
    async def book(ctx: Context) -> None:
        if not started.is_set():
            started.set()
            await go.wait()
        await _write(ctx.connection, ctx.attempt)

    async with app:
        await execute(url, "create table effects (n integer)")
        run = await book.enqueue()
        await started.wait()
        if url.startswith("sqlite"):
            # The handler's own transaction keeps every other writer out: nobody can take the run away meanwhile.
            go.set()
            await run.result(PATIENCE)
            assert await execute(url, "select n from effects") == [(1,)]
            return
        await execute(url, "update job_runs set lock_token = lock_token + 1")
        go.set()
        await until(lambda: _no_attempts(app))
        assert await execute(url, "select n from effects") == []


async def _no_attempts(app: Rota) -> bool:
    return app._worker is not None and not app._worker.holding


async def test_a_run_enqueued_in_the_callers_transaction_lives_and_dies_with_it(url: str) -> None:
    app = Rota(url)

    @app.job()
    async def mail(to: str) -> str:
        return to

    async with app:
        if url.startswith("sqlite"):
            connection = apsw.Connection(url.removeprefix("sqlite:///"))
            connection.set_busy_timeout(10_000)
            connection.execute("begin immediate")
            await mail.using(connection=connection).enqueue("nobody")
            connection.execute("rollback")
            connection.execute("begin immediate")
            run = await mail.using(connection=connection, key="k").enqueue("ada")
            connection.execute("commit")
            connection.close()
        else:
            postgres = await asyncpg.connect(url)
            transaction = postgres.transaction()
            await transaction.start()
            await mail.using(connection=postgres).enqueue("nobody")
            await transaction.rollback()
            async with postgres.transaction():
                run = await mail.using(connection=postgres, key="k").enqueue("ada")
            await postgres.close()
        assert await run.result(PATIENCE) == "ada"
        assert len(await app.store.find_runs(RunFilter(job_id="mail"))) == 1
        with pytest.raises(BadInput, match="connection must be"):
            await mail.using(connection=object()).enqueue("x")  # type: ignore[arg-type]


async def test_what_a_transactional_handler_enqueues_commits_with_it(url: str) -> None:
    app = Rota(url)

    @app.job
    async def mail(n: int) -> None: ...

    @app.job(transactional=True)
    async def order(n: int) -> None:
        await mail.enqueue(n)
        if n % 2:
            raise ValueError("no such order")

    async with app:
        # More at once than there are connections: none may wait for another.
        for run in await order.enqueue_many(order.call(n) for n in range(40)):
            await until(run.finished)
        mails = await app.store.find_runs(RunFilter(job_id="mail"))
        assert sorted(row.parameters for row in mails) == sorted(f'{{"n":{n}}}' for n in range(0, 40, 2))


def test_a_plain_function_cannot_be_transactional() -> None:
    app = Rota("sqlite:///unused.db")
    with pytest.raises(BadInput, match="needs an `async def`"):

        @app.job(transactional=True)
        def plain() -> None: ...


async def test_a_run_of_another_app_is_made_in_that_ones_database(
    url: str, databases: Databases, tmp_path: Path
) -> None:
    kind = "sqlite" if url.startswith("sqlite:") else "postgres"
    (tmp_path / "elsewhere").mkdir()
    here, there = Rota(url), Rota(databases.new(kind, tmp_path / "elsewhere"))

    @there.job()
    async def ship() -> None: ...

    @here.job()
    async def mail() -> None: ...

    @here.job(transactional=True)
    async def book() -> None:
        await ship.enqueue()
        await mail.enqueue()

    async with there.client(), here:
        await (await book.enqueue()).result(PATIENCE)
        assert {row.job_id for row in await here.store.find_runs(RunFilter())} == {"book", "mail"}
        assert [row.job_id for row in await there.store.find_runs(RunFilter())] == ["ship"]
