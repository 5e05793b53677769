"""By which index Postgres does what, and how many pages it touches, with a million rows. No clock is looked at.

The effort is that of what is taken, not of what is stored: also in a session that made its plans while the tables were
empty.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from rota.store import RunFilter
from rota.stores.postgres import claim, enqueue, runs, ticks
from rota.stores.postgres import connection as pg
from rota.stores.postgres.pool import Connection
from tests.harness import Databases, execute
from tests.store.conftest import POSTGRES, empty
from tests.store.steps import opened


@pytest.fixture(params=POSTGRES)
def url(request: pytest.FixtureRequest, databases: Databases, reused: dict[str, str], tmp_path: Path) -> str:
    """An empty database of each Postgres."""
    return empty(request.param, databases, reused, tmp_path)


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
    "claim_runs.1": claim._claim_query(1),
    "claim_runs.2": claim._claim_query(2),
    "claim_runs.4": claim._claim_query(4),
    "claim_runs.8": claim._claim_query(8),
    "claim_runs.16": claim._claim_query(16),
    "enqueue.ready": enqueue._READY[0],
    "enqueue.ready.one": enqueue._READY[1],
    "enqueue": enqueue._FRESH[0],
    "enqueue.one": enqueue._FRESH[1],
    "enqueue.keyed": enqueue._CAREFUL[0],
    "enqueue.known": enqueue._KNOWN[0],
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
