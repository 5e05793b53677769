"""Queue: very many ready runs, put there by the database itself. How they are enqueued is measured elsewhere."""

from __future__ import annotations

from tests.harness import execute

_POSTGRES = (
    """
    insert into rota.job_runs (job_id, correlation_id, parameters, run_at)
    select 'noop', n::text, json_build_object('n', n), rota.rota_now() from generate_series(1, {count}) n
    """,
    """
    insert into rota.ready (rank, id, job_id, slot, ids)
    select rota.rank(run_at, priority), min(id), job_id, false, array_agg(id) from rota.job_runs
    group by run_at, priority, job_id, rota.handful(id)
    """,
    "vacuum analyze rota.job_runs",
    "vacuum analyze rota.ready",
)
_SQLITE = (
    """
    with recursive n (i) as (select 1 union all select i + 1 from n where i < {count})
    insert into job_runs (job_id, correlation_id, parameters, run_at)
    select 'noop', i, json_object('n', i), strftime('%Y-%m-%d %H:%M:%f000', 'now') from n
    """,
    """
    insert into ready (rank, id, job_id, slot)
    select cast(strftime('%s', run_at) as integer) * 1000000 + priority * 30000000, id, job_id, 0 from job_runs
    """,
    "analyze",
)


async def fill_queue(url: str, store: str, count: int) -> None:
    """So many runs of `noop` in an empty database."""
    for statement in _SQLITE if store == "sqlite" else _POSTGRES:
        await execute(url, statement.format(count=count))
