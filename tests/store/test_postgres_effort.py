"""What Postgres does for a batch, counted: statements, transactions, pages, and by which index. No clock is looked at.

A statement that is sent is a round trip, and a transaction that writes is a wait for the disk: a batch takes as many as
one run does. And the effort is that of what is taken, not of what is stored: also in a session that made its plans
while the tables were empty.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from rota import Rota, hinter
from rota.contract.places import Places
from rota.scheduler import Scheduler
from rota.store import Claim, Fired, JobRow, NewRun, Outcome, RunFilter
from rota.stores.postgres import connection as pg
from rota.stores.postgres import runs, ticks
from rota.stores.postgres.pool import Connection
from rota.stores.postgres.route import STATEMENTS
from rota.stores.postgres.store import PostgresStore
from tests.harness import KINDS, Databases, execute
from tests.store.conftest import emptied
from tests.store.steps import JOB, count, decide, opened, set_clock

POSTGRES = [kind for kind in KINDS if kind != "sqlite"]


@pytest.fixture(params=POSTGRES)
def url(request: pytest.FixtureRequest, databases: Databases, reused: dict[str, str], tmp_path: Path) -> str:
    """An empty database of each Postgres."""
    kind = request.param
    if kind not in reused:
        reused[kind] = databases.new(kind, tmp_path)
    asyncio.run(emptied(reused[kind]))
    return reused[kind]


# -- statements and transactions of a batch ----------------------------------------------------------


class Sent:
    """The statements that a store sends, on whatever connection."""

    def __init__(self) -> None:
        self._log: list[str] = []
        self._names = {sql: name for name, sql in pg.QUERIES.items()}
        self._names |= dict.fromkeys(runs._ENQUEUES, "enqueue")
        self._names |= {runs._claim_query(jobs): "claim_runs" for jobs in (1, 2, 4, 8, 16)}
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
    monkeypatch.setattr(runs, "_QUICKLY", quickly)
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
    monkeypatch.setattr(runs, "_QUICKLY", 0.0)
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
            [runs._READY[0], runs._claim_query(1), pg.QUERIES["finish_runs.plain"], pg.QUERIES["agenda"]],
        )
        assert [tuple(row) for row in used] == [(11, 0)] * 4


def test_the_driver_keeps_every_statement_prepared() -> None:
    """It prepares those above 15 KiB each time anew, and forgets the oldest of more than it is told to keep.

    Those of a diagnosis are asked on a connection of its own, which prepares nothing ahead.
    """
    statements = {
        *(sql for name, sql in pg.QUERIES.items() if not name.startswith("diagnose.")),
        *runs._ENQUEUES,
        *(runs._claim_query(n) for n in (1, 2, 4, 8, 16)),
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


# -- a full database -----------------------------------------------------------------------------------


FINISHED, UNKNOWN, KNOWN, DELAYED, WAITING, SCHEDULES = 400_000, 300_000, 50_000, 50_000, 10_000, 200_000
BEFORE_FILLING = [
    # No plan is made again because statistics came, and nothing is written twice.
    f"alter table rota.{table} set (autovacuum_enabled = off); alter table rota.{table} set unlogged"
    for table in ("job_runs", "ready", "delayed", "waiting", "scheduler_configs", "scheduler_locks")
]
FILL = f"""
insert into rota.jobs (job_id) select 'known-' || x from generate_series(0, 199) as x;

insert into rota.scheduler_configs (job_id, name, cron, priority, next_run_at)
select 'known-' || x % 200, x, '0 0 * * *', 4 + x % 2, '2040-01-01' from generate_series(1, {SCHEDULES}) as x;

insert into rota.job_runs
    (job_id, config_id, idempotency_key, correlation_id, state, run_at, created_at, started_at, finished_at)
select 'known-' || x % 200, case when x <= {SCHEDULES} then x end, case when x <= {SCHEDULES} then 'schedule:2020' end,
       x::text, 'succeeded', at, at, at, at
from generate_series(1, {FINISHED}) as x, (select timestamptz '2020-01-01' as at) as past;

with made as (
    insert into rota.job_runs (job_id, correlation_id, run_at)
    select case when x = 1 then 'lonely' when x <= {UNKNOWN} then 'unknown' else 'known-' || x % 200 end, x::text,
        '2020-01-01'
    from generate_series(1, {UNKNOWN + KNOWN}) as x
    returning id, job_id, run_at
)
insert into rota.ready (rank, id, job_id, slot, ids)
select rota.rank(run_at, 5), min(id), job_id, false, array_agg(id) from made group by run_at, job_id, rota.handful(id);

with made as (
    insert into rota.job_runs (job_id, idempotency_key, correlation_id, run_at)
    select 'known-' || x % 200, 'key-' || x, x::text, '2040-01-01' from generate_series(1, {DELAYED}) as x
    returning id, run_at
)
insert into rota.delayed (run_at, id) select run_at, id from made;

with made as (
    insert into rota.job_runs (job_id, config_id, idempotency_key, correlation_id, run_at)
    select 'known-' || x % 200, x % 1000 + 1, 'schedule:2021-' || x, x::text, '2020-01-01'
    from generate_series(1, {WAITING}) as x
    returning id, job_id, config_id, run_at
)
insert into rota.waiting (rank, id, job_id, config_id, by_config, by_job)
select rota.rank(run_at, 5), id, job_id, config_id, true, false from made;
insert into rota.scheduler_locks (config_id, lock_token, expires_at)
select x, {FINISHED} + x, 'infinity' from generate_series(1, 100) as x;
"""

JOBS = ", ".join(f"'known-{n}'" for n in range(200))
COMPOSED = {
    "claim_runs.1": runs._claim_query(1),
    "claim_runs.2": runs._claim_query(2),
    "claim_runs.4": runs._claim_query(4),
    "claim_runs.8": runs._claim_query(8),
    "claim_runs.16": runs._claim_query(16),
    "enqueue.ready": runs._READY[0],
    "enqueue.ready.one": runs._READY[1],
    "enqueue": runs._FRESH[0],
    "enqueue.one": runs._FRESH[1],
    "enqueue.keyed": runs._CAREFUL[0],
    "enqueue.known": runs._KNOWN[0],
    "fire_due.coming": ticks._COMING,
}

# The tables that grow with what there is to do or was done. The others have a row per job, replica or batch.
LARGE = {"job_runs", "ready", "delayed", "waiting", "scheduler_configs", "scheduler_locks"}

# One replica reads all slots that are taken, every five seconds; one that starts, all schedules of its jobs.
READS_ALL = {"bury.runs": {"scheduler_locks"}, "declare.outdated": {"scheduler_configs"}}

# What finds the rows.
INDEXES = {
    "claim_runs.1": {"ready_pkey", "job_runs_pkey", "scheduler_locks_pkey"},
    "claim_runs.2": {"ready_pkey", "job_runs_pkey", "scheduler_locks_pkey"},
    "claim_runs.4": {"ready_pkey", "job_runs_pkey", "scheduler_locks_pkey"},
    "claim_runs.8": {"ready_pkey", "job_runs_pkey", "scheduler_locks_pkey"},
    "claim_runs.16": {"ready_pkey", "job_runs_pkey", "scheduler_locks_pkey"},
    "claim_runs.one": set(),  # a function, whose plans are not told: see how much it touches
    "claim_runs.fronts": {"ready_pkey"},
    "claim_runs.again": {"claims_pkey", "job_runs_pkey"},
    "finish_runs.plain": {"job_runs_pkey", "claims_pkey", "scheduler_locks_pkey"},
    "finish_runs": {"job_runs_pkey", "claims_pkey", "scheduler_locks_pkey"},
    "finish_runs.already": {"job_runs_pkey"},
    "report_progress": {"job_runs_pkey"},
    "enqueue.ready": {"jobs_pkey"},
    "enqueue.ready.one": {"jobs_pkey"},
    "enqueue": {"jobs_pkey"},
    "enqueue.one": {"jobs_pkey"},
    "enqueue.keyed": {"jobs_pkey"},
    "enqueue.known": {"jobs_pkey"},
    "fire_due.claim": {"scheduler_configs_due"},
    "fire_due.taken": {"scheduler_locks_config", "waiting_for_config", "jobs_pkey"},
    "fire_due.coming": {"scheduler_configs_due"},
    "fire_due.plain": set(),  # a function, too
    "fire_due.awaited": set(),
    "fire_due.write": {"job_runs_tick", "scheduler_configs_pkey"},
    "promote_due": {"delayed_pkey", "job_runs_pkey", "scheduler_configs_pkey", "jobs_pkey"},
    "admit_waiting": {"waiting_for_config", "waiting_for_job", "waiting_pkey", "job_runs_pkey"},
    "admit_waiting.jobs": {"waiting_for_job"},
    "agenda": {"scheduler_configs_due", "delayed_pkey", "waiting_pkey"},
    "admit_waiting.schedules": {"waiting_for_config", "scheduler_configs_pkey"},
    "bury.runs": {"job_runs_pkey"},
    "enqueue.existing": {"job_runs_pkey", "job_runs_key"},
    "declare.existing": {"scheduler_configs_job_id_name_key"},
    "declare.outdated": {"scheduler_configs_job_id_name_key"},
    "beat": {"scheduler_configs_due", "delayed_pkey", "waiting_pkey", "ready_pkey", "replicas_pkey"},
    "cancel_run": {"job_runs_pkey"},
    "cancel_run.unpark": {"ready_pkey", "delayed_pkey", "waiting_pkey", "scheduler_locks_pkey"},
    "retry_run": {"job_runs_pkey"},
    "get_runs": {"job_runs_pkey"},
    "prune": {"job_runs_pkey", "job_runs_tick"},
    "trigger.lock": {"scheduler_configs_pkey"},
    "trigger.existing": {"job_runs_tick"},
    "mark_unknown": {"scheduler_configs_due"},
}

TEN_TICKS = (
    f"'{{{', '.join(str(2000 * n) for n in range(1, 11))}}}', '{{{', '.join('0' * 10)}}}', "
    f"'{{{', '.join(['2e9'] * 10)}}}', '{{{', '.join('0' * 10)}}}', 7, 1, '', '{{known-0}}', '{{0}}'"
)

# (statement, its values, the most pages that it may touch)
EFFORTS = [
    ("claim_runs.1", "7, 1, 10, 0, 10, 'known-7'", 200),
    ("claim_runs.4", "7, 1, 10, 0, 10, 'known-7', 'known-8', 'known-9', null", 200),
    ("claim_runs.8", "7, 1, 10, 0, 10, " + ", ".join(f"'known-{n}'" for n in range(8)), 250),
    ("claim_runs.16", "7, 1, 10, 0, 10, " + ", ".join(f"'known-{n}'" for n in range(16)), 300),
    ("claim_runs.one of one", "7, 1, 0, '{lonely}'", 50),
    ("claim_runs.one of many", f"7, 1, 0, array[{JOBS}]", 50),
    ("claim_runs.fronts", f"array[{JOBS}], 16", 1000),
    ("finish_runs.plain", "'{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}', '{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}', '{}', '{1}'", 100),
    ("get_runs", "'{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}'", 100),
    ("cancel_run.unpark", "1, 0, '2020-01-01', 'known-1'", 50),
    ("promote_due", "1000", 50),
    ("agenda", f"array[{JOBS}]", 100),
    ("bury.runs", "'{}', 1, 5", 2000),
    ("enqueue.existing", "'{1, 2, 3}', '{known-1, known-2, known-3}', '{a, b, c}'", 100),
    ("declare.existing", "'{known-1}', '{1}'", 100),
    ("beat", f"1, false, true, {pg.CARETAKER}, {pg.REPLICAS}, 5, true", 50),
    ("fire_due.claim of 100", f"array[{JOBS}], '{{}}', 100, true, {pg.NAMESPACE}, -1, '0001-01-01', 0, 0", 400),
    ("fire_due.coming of 100", f"array[{JOBS}], '{{}}', 101, false, {pg.NAMESPACE}, -1, '0001-01-01', 0, 0.02", 400),
    ("fire_due.plain of 10", TEN_TICKS, 700),
    ("fire_due.awaited of 10", f"'2020-01-01', '2090-01-01', {TEN_TICKS}, true, {pg.NAMESPACE}", 800),
]
EMPTY, FILLED, ANALYZED = "when the tables were empty", "when they had been filled", "when they had been analyzed"


class Found:
    def __init__(self) -> None:
        self.plans: dict[tuple[str, str], dict[str, Any]] = {}
        self.pages: dict[tuple[str, str], int] = {}


@pytest.fixture(scope="module", params=POSTGRES)
def found(request: pytest.FixtureRequest, databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What sessions like those of the pool plan, before and after the tables are filled, and what they touch then."""
    url = databases.new(request.param, tmp_path_factory.mktemp("full"))
    return asyncio.run(_found(url))


async def _found(url: str) -> Found:
    found = Found()
    async with opened(url):
        pass
    owner = await asyncpg.connect(url)
    early = await asyncpg.connect(url, server_settings=pg.POOLED)
    late = await asyncpg.connect(url, server_settings=pg.POOLED)
    await owner.execute(";".join(BEFORE_FILLING))
    await _plan(early, EMPTY, found)
    await owner.execute(FILL)
    await _plan(late, FILLED, found)
    for when, session in ((EMPTY, early), (FILLED, late)):
        for name, values, _ in EFFORTS:
            if name.startswith("fire_due"):
                await owner.execute("update rota.scheduler_configs set next_run_at = '2020-01-01' where id % 2000 = 0")
            execution = f'execute "{name.split()[0]}" ({values})'
            found.pages[when, name] = await _pages(owner, session, execution)
        await owner.execute("update rota.scheduler_configs set next_run_at = '2040-01-01' where id % 2000 = 0")
        # What was due for one session is in no other's way.
        await owner.execute("vacuum (index_cleanup on) rota.scheduler_configs")
    await owner.execute("analyze")
    last = await asyncpg.connect(url, server_settings=pg.POOLED)
    await _plan(last, ANALYZED, found)
    for session in (owner, early, late, last):
        await session.close()
    return found


async def _plan(session: Connection, when: str, found: Found) -> None:
    for name in INDEXES:
        await session.execute(f'prepare "{name}" as {COMPOSED.get(name) or pg.QUERIES[name]}')
        number = await session.fetchval(
            "select cardinality(parameter_types) from pg_prepared_statements where name = $1", name
        )
        values = f"({', '.join(['null'] * number)})" if number else ""
        explained = await session.fetchval(f'explain (format json) execute "{name}" {values}')
        found.plans[when, name] = json.loads(explained)[0]["Plan"]


async def _pages(owner: Connection, session: Connection, execution: str) -> int:
    """How many pages of tables and indexes a session touches; what it does is undone."""
    touched = (
        "select sum(coalesce(heap_blks_hit, 0) + coalesce(heap_blks_read, 0) + coalesce(idx_blks_hit, 0) "
        "+ coalesce(idx_blks_read, 0))::bigint from pg_statio_user_tables where schemaname = 'rota'"
    )
    for each in (owner, session):
        await each.execute("select pg_stat_force_next_flush()")
    before = await owner.fetchval(touched)
    await session.execute(f"begin; {execution}; rollback")
    await session.execute("select pg_stat_force_next_flush()")
    return int(await owner.fetchval(touched) - before)


def nodes(plan: dict[str, Any], above: dict[str, Any] | None = None) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each node with the one above it."""
    yield plan, above or {}
    for below in plan.get("Plans", []):
        yield from nodes(below, plan)


def walks(plan: dict[str, Any], large: set[str]) -> list[str]:
    """Where more of a large table is read than is looked for."""
    bad = []
    for node, above in nodes(plan):
        kind, table, index = node["Node Type"], node.get("Relation Name"), node.get("Index Name")
        first_only = above.get("Node Type") == "Limit" or node.get("Parent Relationship") == "InitPlan"
        if kind == "Bitmap Index Scan":
            table = above["Relation Name"]
        if table in large and (
            kind == "Seq Scan"
            # From one end of the index to the other: most schedules are enabled.
            or (index is not None and node.get("Index Cond") in (None, "(enabled = true)") and not first_only)
            # All of it before the first is given out.
            or (kind == "Bitmap Heap Scan" and first_only)
        ):
            bad.append(f"{kind} of {table} by {index}")
        if "Sort" in kind:
            bad += [f"{kind} of {each}" for each in sorted(large & _unlimited(node))]
    return bad


def _unlimited(plan: dict[str, Any]) -> set[str]:
    """The tables from which any number of rows may come."""
    if plan["Node Type"] == "Limit":
        return set()
    return {plan.get("Relation Name", "")}.union(*(_unlimited(below) for below in plan.get("Plans", [])))


async def test_schedules_that_have_just_been_advanced_are_in_nobodys_way(url: str) -> None:
    """While somebody holds a snapshot, nobody may clean the index of what they were."""
    async with opened(url):
        pass
    await execute(
        url,
        "insert into rota.scheduler_configs (job_id, name, cron, priority, next_run_at) "
        "select 'work', x, '0 0 1 1 *', 4 + x % 2, '2020-01-01' from generate_series(1, 10000) as x",
    )
    owner, session = [await asyncpg.connect(url, server_settings=pg.POOLED) for _ in range(2)]
    holder = await asyncpg.connect(url)
    await holder.execute("begin isolation level repeatable read; select from rota.scheduler_configs limit 1")
    await owner.execute("update rota.scheduler_configs set next_run_at = '2040-01-01'")
    assert await _pages(owner, session, "select from rota.priorities") < 20
    assert [tuple(row) for row in await session.fetch("select * from rota.priorities")] == [(4,), (5,)]
    for each in (holder, owner, session):
        await each.close()


async def test_runs_that_have_been_claimed_are_in_no_beats_way(url: str) -> None:
    """Nor may anybody clean the index of those, while somebody holds a snapshot."""
    async with opened(url):
        pass
    await execute(
        url,
        "insert into rota.ready (rank, id, job_id, slot, ids) "
        "select x, x, 'work', false, array[x] from generate_series(1, 10000) x",
    )
    owner, session = [await asyncpg.connect(url, server_settings=pg.POOLED) for _ in range(2)]
    holder = await asyncpg.connect(url)
    await holder.execute("begin isolation level repeatable read; select from rota.ready limit 1")
    await owner.execute("delete from rota.ready where id < 10000")
    await session.execute(f"prepare beat as {pg.QUERIES['beat']}")
    beat = f"execute beat (1, false, true, {pg.CARETAKER}, {pg.REPLICAS}, 5, true)"
    assert await _pages(owner, session, beat) < 50
    for each in (holder, owner, session):
        await each.close()


@pytest.mark.parametrize("when", [EMPTY, FILLED, ANALYZED])
@pytest.mark.parametrize("name", INDEXES)
def test_the_hot_statements_walk_their_index(found: Found, name: str, when: str) -> None:
    plan = found.plans[when, name]
    assert walks(plan, LARGE - READS_ALL.get(name, set())) == []
    used = {node["Index Name"] for node, _ in nodes(plan) if "Index Name" in node}
    assert INDEXES[name] <= used


@pytest.mark.parametrize("when", [EMPTY, FILLED])
@pytest.mark.parametrize(("name", "most"), [(name, most) for name, _, most in EFFORTS])
def test_the_effort_is_that_of_what_is_taken(found: Found, name: str, most: int, when: str) -> None:
    assert 0 < found.pages[when, name] < most


async def test_the_runs_that_follow_one_are_found_by_their_index(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(url) as store:
        await execute(
            url,
            "insert into rota.job_runs (job_id, correlation_id, state, run_at) "
            "select 'work', x::text, 'succeeded', '2020-01-01' from generate_series(1, 20000) as x",
        )
        await execute(url, "analyze rota.job_runs")
        monkeypatch.setitem(pg.QUERIES, "find_runs", f"explain {pg.QUERIES['find_runs']}")
        monkeypatch.setattr(runs, "_run_row", lambda row: row[0])
        for root in ("7", "an-order"):
            plan = [str(line) for line in await store.find_runs(RunFilter(correlation_id=root))]
            assert any("job_runs_correlation" in line for line in plan), plan
