"""What Postgres does for a batch, counted: statements, transactions, updates. No clock is looked at.

A statement that is sent is a round trip, and a transaction that writes is a wait for the disk: a batch takes as many as
one run does.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from rota import Rota, hinter
from rota.contract.places import Places
from rota.scheduler import Scheduler
from rota.store import Claim, Fired, JobRow, NewRun, Outcome
from rota.stores.postgres import claim, enqueue, ticks
from rota.stores.postgres import connection as pg
from rota.stores.postgres.pool import Connection
from rota.stores.postgres.route import STATEMENTS
from rota.stores.postgres.store import PostgresStore
from tests.harness import Databases, execute
from tests.store.conftest import POSTGRES, empty
from tests.store.steps import JOB, count, decide, opened, set_clock


@pytest.fixture(params=POSTGRES)
def url(request: pytest.FixtureRequest, databases: Databases, reused: dict[str, str], tmp_path: Path) -> str:
    """An empty database of each Postgres."""
    return empty(request.param, databases, reused, tmp_path)


# -- statements and transactions of a batch ----------------------------------------------------------


class Sent:
    """The statements that a store sends, on whatever connection."""

    def __init__(self) -> None:
        self._log: list[str] = []
        self._names = {sql: name for name, sql in pg.QUERIES.items()}
        self._names |= dict.fromkeys(enqueue._ENQUEUES, "enqueue")
        self._names |= {claim._claim_query(jobs): "claim_runs" for jobs in (1, 2, 4, 8, 16)}
        self._names[ticks._COMING] = "fire_due.coming"

    def note(self, query: Any) -> None:
        self._log.append(self._names.get(query.query) or query.query.split()[0].strip(";").lower())

    async def take(self) -> list[str]:
        """Those since the last call."""
        await asyncio.sleep(0)  # the driver tells at the next turn of the loop
        taken, self._log = self._log, []
        return taken


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    found, connect = Sent(), asyncpg.connect

    async def connected(*arguments: Any, **more: Any) -> Connection:
        connection: Connection = await connect(*arguments, **more)
        if "application_name" in more.get("server_settings", {}):  # not the test's own
            connection.add_query_logger(found.note)
        return connection

    monkeypatch.setattr(asyncpg, "connect", connected)
    return found


async def fresh(url: str, sent: Sent) -> None:
    """After a first use, which prepares the statement: the tables are empty again, and nothing was sent."""
    await execute(url, "truncate job_runs, ready, claims, scheduler_locks, scheduler_configs")
    await sent.take()


async def transactions(url: str, *tables: str) -> int:
    """How many transactions wrote the rows that are there."""
    each = " union ".join(f"select distinct xmin::text from {table}" for table in tables)
    return await count(url, f"({each}) as x")


def new(number: int, jobs: int = 1) -> list[NewRun]:
    return [NewRun(job_id=f"job-{n % jobs}") for n in range(number)]


def outcomes(claims: list[Claim], **more: Any) -> list[Outcome]:
    return [Outcome(id=c.id, token=c.token, state="succeeded", slot=c.slot, **more) for c in claims]


@pytest.mark.parametrize("number", [1, 1000])
async def test_an_enqueue_is_one_statement_once_ids_are_in_hand(url: str, sent: Sent, number: int) -> None:
    async with opened(url) as store:
        assert isinstance(store, PostgresStore)
        await store.enqueue(new(number))
        await fresh(url, sent)
        store._ids = []
        await store.enqueue(new(number))
        assert await sent.take() == ["enqueue.ids", "enqueue"]
        assert await transactions(url, "job_runs", "ready") == 1
        store._ids = list(range(10_000, 10_000 + number))
        await store.enqueue(new(number))
        assert await sent.take() == ["enqueue"]
        assert await transactions(url, "job_runs", "ready") == 2


async def test_the_others_are_told_of_one_run_in_the_same_trip(url: str, sent: Sent) -> None:
    async with opened(url) as store:
        await store.enqueue_one(NewRun(job_id=JOB), tell=True)
        await sent.take()
        assert (await store.enqueue_one(NewRun(job_id=JOB), tell=True)).told
        assert await sent.take() == ["enqueue.told"]


async def test_a_client_tells_of_its_first_run_as_it_makes_it_and_of_the_next_together(
    url: str, sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hinter, "steady", lambda: 100.0)  # all of it is one moment,
    monkeypatch.setattr(hinter, "_MOMENT", 0.5)  # at whose end everything is made
    app = Rota(url)

    @app.job
    async def quick() -> None: ...

    async with app.client():
        for _ in range(3):
            await quick.enqueue()
    told = [name for name in await sent.take() if name in ("enqueue", "enqueue.told", "hint")]
    assert told == ["enqueue.told", "enqueue", "enqueue", "hint"]


@pytest.mark.parametrize(("quickly", "times"), [(0.0, 8), (60.0, 4)], ids=["slowly", "quickly"])
async def test_ids_are_fetched_for_50_runs_and_for_more_where_they_are_used_up_quickly(
    url: str, sent: Sent, monkeypatch: pytest.MonkeyPatch, quickly: float, times: int
) -> None:
    monkeypatch.setattr(enqueue, "_QUICKLY", quickly)
    async with opened(url) as store:
        for run in new(400):
            await store.enqueue([run])
        assert (await sent.take()).count("enqueue.ids") == times


async def test_those_who_need_ids_at_once_fetch_them_together(url: str, sent: Sent) -> None:
    async with opened(url) as store:
        made = await asyncio.gather(*(store.enqueue([run]) for run in new(50)))
        assert (await sent.take()).count("enqueue.ids") == 1
        assert len({run.id for [run] in made}) == 50


async def test_that_a_job_has_a_limit_is_found_out_once(url: str, sent: Sent) -> None:
    async with opened(url) as store:
        await store.declare([JobRow(job_id="job-0", concurrency_limit=1)], [])
        for statements in (2, 1):
            await sent.take()
            await store.enqueue(new(2))
            assert (await sent.take()).count("enqueue") == statements
        assert (await count(url, "waiting"), await count(url, "ready")) == (4, 0)


async def test_an_enqueue_of_several_jobs_is_one_statement_for_each(url: str, sent: Sent) -> None:
    async with opened(url) as store:
        await store.enqueue(new(600, jobs=3))
        await fresh(url, sent)
        await store.enqueue(new(600, jobs=3))
        assert await sent.take() == ["enqueue.ids", "begin", "enqueue", "enqueue", "enqueue", "commit"]
        assert await transactions(url, "job_runs", "ready") == 1


@pytest.mark.parametrize("jobs", [1, 4, 16, 17])
async def test_a_claim_of_500_is_one_statement(url: str, sent: Sent, jobs: int) -> None:
    expected = ["claim_runs"] if jobs <= 16 else ["claim_runs.fronts", "claim_runs"]
    names = [f"job-{n}" for n in range(jobs)]
    async with opened(url) as store:
        await store.enqueue(new(2, jobs))
        await store.claim_runs(1, 7, names, 1)
        await fresh(url, sent)
        await store.enqueue(new(600, jobs))
        await sent.take()
        claims = (await store.claim_runs(1, 8, names, 500)).claims
        assert (len(claims), await sent.take()) == (500, expected)
        assert await transactions(url, "(select xmin from job_runs where state = 'running') as r", "claims") == 1


@pytest.mark.parametrize("jobs", [1, 4, 16, 17])
async def test_where_runs_come_one_by_one_a_claim_is_half_the_work(url: str, sent: Sent, jobs: int) -> None:
    names = [f"job-{n}" for n in range(jobs)]
    async with opened(url) as store:
        await store.enqueue(new(1))
        await store.claim_runs(1, 7, names, 500)
        await fresh(url, sent)
        assert (await store.claim_runs(1, 8, names, 500)).claims == []
        assert await sent.take() == ["claim_runs.one"]
        await store.enqueue(new(1))
        await sent.take()
        assert len((await store.claim_runs(1, 9, names, 500)).claims) == 1
        assert await sent.take() == ["claim_runs.one"]
        assert await transactions(url, "(select xmin from job_runs where state = 'running') as r", "claims") == 1
        # The first look finds that there are more; those after it know, until there are no more.
        looks = []
        for number, token in ((2, 10), (3, 20), (1, 30), (1, 40)):
            await store.enqueue(new(number))
            await sent.take()
            assert len((await store.claim_runs(1, token, names, 500)).claims) == number
            looks.append("claim_runs.one" in await sent.take())
        assert looks == [True, False, False, True]


@pytest.mark.parametrize(("name", "more"), [("finish_runs.plain", {"plain": True}), ("finish_runs", {"result": "42"})])
async def test_500_outcomes_are_one_statement(url: str, sent: Sent, name: str, more: dict[str, Any]) -> None:
    async with opened(url) as store:
        for number in (1, 500):
            await fresh(url, sent)
            await store.enqueue(new(number))
            claims = (await store.claim_runs(1, number, ["job-0"], 500)).claims
            await sent.take()
            finished = await store.finish_runs(outcomes(claims, **more), [number])
            assert len(finished.accepted) == number
        assert await sent.take() == [name]
        assert await transactions(url, "job_runs") == 1
        assert await count(url, "job_runs where state = 'succeeded'") == 500
        assert await count(url, "claims") == 0


DUE = (
    "insert into scheduler_configs (job_id, name, cron, next_run_at) "
    "select 'a', x, '* * * * *', date_trunc('minute', rota.rota_now()) from generate_series(1, 250) as x"
)


async def test_250_ticks_are_three_statements_in_one_transaction(url: str, sent: Sent) -> None:
    async with opened(url) as store:
        for _ in range(2):
            await fresh(url, sent)
            await execute(url, DUE)
            fired = await store.fire_due(decide, jobs=["a"], limit=250, advisory=True, leave=[])
            assert (fired.schedules, fired.ready) == (250, 250)
        assert await sent.take() == ["begin", "fire_due.claim", "fire_due.taken", "fire_due.plain", "commit"]
        assert await transactions(url, "job_runs", "ready", "scheduler_locks", "scheduler_configs") == 1


async def test_250_ticks_that_start_take_no_more(url: str, sent: Sent) -> None:
    async with opened(url) as store:

        async def fire(token: int) -> Fired:
            places = Places(replica_id=1, token=token, lanes=((frozenset("a"), 1000),))
            return await store.fire_due(decide, jobs=["a"], limit=250, advisory=True, leave=[], start=lambda: places)

        for token in (1, 2):
            await fresh(url, sent)
            await execute(url, DUE)
            fired = await fire(token)
            assert (fired.schedules, fired.ready, len(fired.claims)) == (250, 0, 250)
        assert await sent.take() == ["begin", "fire_due.claim", "fire_due.taken", "fire_due.plain", "commit"]
        assert await transactions(url, "job_runs", "claims", "scheduler_locks", "scheduler_configs") == 1
        assert await count(url, "ready") == 0


async def test_a_tick_that_is_awaited_is_one_statement_when_it_is_due(url: str, sent: Sent) -> None:
    async with opened(url) as store:
        await execute(url, DUE.replace("generate_series(1, 250)", "generate_series(1, 100)"))
        await execute(url, "update scheduler_configs set concurrency_limit = 0")
        await store.fire_due(decide, jobs=["a"], limit=250, advisory=True, leave=[])
        while await count(url, "job_runs") == 100:  # again where the machine was too slow for it
            await sent.take()
            await set_clock(url, await _next(url) - timedelta(seconds=0.3))
            await store.fire_due(decide, jobs=["a"], limit=250, advisory=True, leave=[], wait=0.3)
        assert await sent.take() == ["fire_due.coming", "fire_due.taken", "fire_due.awaited"]
        assert await count(url, "job_runs") == 200
        assert await transactions(url, "(select xmin from job_runs where id > 100) as r", "scheduler_configs") == 1


async def _next(url: str) -> datetime:
    [(at,)] = await execute(url, "select min(next_run_at) from scheduler_configs")
    assert isinstance(at, datetime)
    return at


async def test_a_replica_with_nothing_to_do_sends_one_statement_at_a_time(url: str, sent: Sent) -> None:
    async with opened(url) as store:
        scheduler = Scheduler(
            store, decide=decide, jobs=["a"], advisory=True, made_ready=lambda _: None, emit=lambda _: None
        )
        lifeline = await store.join("a", "host", 1, ["a"])
        try:
            for _ in range(3):
                await sent.take()
                await lifeline.beat(holding=False)
                beating = await sent.take()
                await store.bury([])
                burying = await sent.take()
                await scheduler.step()
                stepping = await sent.take()
        finally:
            await lifeline.close()
        assert (beating, burying, stepping) == (["beat"], ["bury.runs"], ["agenda"])


# -- sessions ------------------------------------------------------------------------------------------


async def test_a_session_is_handed_on_as_it_is(url: str, sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enqueue, "_QUICKLY", 0.0)
    session = "select pg_backend_pid(), current_setting('rota.mark', true), count(*) from pg_prepared_statements"
    async with opened(url) as store:
        assert isinstance(store, PostgresStore)

        async def cycle(token: int) -> None:
            await store.enqueue(new(50))
            claims = (await store.claim_runs(1, token, ["job-0"], 50)).claims
            await store.finish_runs(outcomes(claims, plain=True), [token])
            await store.agenda(["job-0"])

        await cycle(1)
        await store.pool.fetch("select set_config('rota.mark', 'here', false)")
        before = await store.pool.fetch(session)
        await sent.take()
        for token in range(2, 12):
            await cycle(token)
        assert await sent.take() == ["enqueue.ids", "enqueue", "claim_runs", "finish_runs.plain", "agenda"] * 10
        after = await store.pool.fetch(session)
        assert (after[0][0], after[0][1]) == (before[0][0], "here")
        # Each was prepared once, and planned for any values.
        used = await store.pool.fetch(
            "select generic_plans, custom_plans from pg_prepared_statements where statement = any($1)",
            [enqueue._READY[0], claim._claim_query(1), pg.QUERIES["finish_runs.plain"], pg.QUERIES["agenda"]],
        )
        assert [tuple(row) for row in used] == [(11, 0)] * 4


def test_the_driver_keeps_every_statement_prepared() -> None:
    """It prepares those above 15 KiB each time anew, and forgets the oldest of more than it is told to keep.

    Those of a diagnosis are asked on a connection of its own, which prepares nothing ahead.
    """
    statements = {
        *(sql for name, sql in pg.QUERIES.items() if not name.startswith("diagnose.")),
        *enqueue._ENQUEUES,
        *(claim._claim_query(n) for n in (1, 2, 4, 8, 16)),
        ticks._COMING,
    }
    assert max(len(sql) for sql in statements) < 15 * 1024
    assert len(statements) < STATEMENTS


# -- updates within the page ---------------------------------------------------------------------------


async def test_both_updates_of_a_run_stay_within_its_page(url: str) -> None:
    async with opened(url) as store:
        assert isinstance(store, PostgresStore)
        for token in range(1, 5):
            await store.enqueue(new(500))
            claims = (await store.claim_runs(1, token, ["job-0"], 500)).claims
            await store.finish_runs(outcomes(claims, plain=token % 2 == 0), [token])
        # Each session keeps its own counts for a while; there is one.
        await store.pool.fetch("select pg_stat_force_next_flush()")
        [(updates, within)] = await execute(
            url, "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relid = 'rota.job_runs'::regclass"
        )
        assert isinstance(updates, int)
        assert isinstance(within, int)
        assert updates == 4000
        assert within >= 0.99 * updates


async def test_a_tick_finds_room_in_the_indexes_beside_the_entry_that_it_replaces(url: str) -> None:
    """The row of a schedule moves with its due time, and has an entry for each version in every index."""
    async with opened(url) as store:
        await execute(
            url,
            "insert into rota.scheduler_configs (job_id, name, cron, next_run_at) "
            "select 'a', to_char(x, 'FM00000'), '0 0 1 1 *', now() from generate_series(1, 5000) as x",
        )
        unique = "pg_index where indrelid = 'rota.scheduler_configs'::regclass and indisunique"
        pages = f"generate_series(1, (select sum(pg_relation_size(indexrelid)) / 8192 from {unique}))"
        before = await count(url, pages)
        fired = 0
        while more := (await store.fire_due(decide, jobs=["a"], limit=500, advisory=True, leave=[])).schedules:
            fired += more
        assert fired == 5000
        assert await count(url, pages) <= before + 2, "the last page of either was still being filled"


async def test_a_tick_and_its_success_write_what_they_must(url: str) -> None:
    """A run, the schedule's next due time, a slot that is taken and given back; nothing to keep count."""
    async with opened(url) as store:
        assert isinstance(store, PostgresStore)
        await execute(
            url,
            "insert into rota.scheduler_configs (job_id, name, cron, next_run_at) "
            "select 'job-0', x, '0 0 1 1 *', now() from generate_series(1, 100) as x",
        )
        places = Places(replica_id=1, token=7, lanes=((frozenset(["job-0"]), 100),))
        fired = await store.fire_due(decide, jobs=["job-0"], limit=100, advisory=True, leave=[], start=lambda: places)
        assert len(fired.claims) == 100
        await store.finish_runs(outcomes(list(fired.claims), plain=True), [7])
        await store.pool.fetch("select pg_stat_force_next_flush()")
        written = await execute(
            url,
            "select relname::text, n_tup_ins, n_tup_upd, n_tup_del from pg_stat_user_tables "
            "where schemaname = 'rota' and n_tup_ins + n_tup_upd + n_tup_del >= 100 order by relname",
        )
        assert [tuple(row) for row in written] == [
            ("job_runs", 100, 100, 0),
            ("scheduler_configs", 100, 100, 0),
            ("scheduler_locks", 100, 0, 100),
        ]
