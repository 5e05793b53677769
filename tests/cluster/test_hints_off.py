"""Without any wake-ups between replicas everything still happens, within a few beats."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.cluster.cluster import BEAT, Cluster, cluster, until

SOON = 8 * BEAT + 10.0
"""A few beats of an idle replica, which are twice as long, and the time that a busy machine takes."""


async def test_the_whole_history_is_right_without_hints(url: str, tmp_path: Path) -> None:
    async with cluster(url, tmp_path, ROTA_HINTS="off") as it:
        await it.replicas[0].kill()
        await it.replace(it.replicas[0])
        await until("some ticks", lambda: _ticks(it, 25))
        await it.verdict()


async def test_an_idle_cluster_notices_what_is_typed_and_enqueued(url: str, tmp_path: Path) -> None:
    it = Cluster(url, tmp_path, ROTA_HINTS="off")
    try:
        await it.lay_out([])
        await it.start(2)
        late = {}
        for what in ("a run", "a run that needs a slot", "a schedule typed in"):
            started = time.monotonic()
            if what == "a schedule typed in":
                await it.sql("insert into scheduler_configs (job_id, name, cron) values ('brief', 'typed', 'every 1s')")
            else:
                await it.enqueue("brief" if what == "a run" else "alone")
            await until(f"{what} has run", lambda: _nothing_waits(it), 90)
            late[what] = round(time.monotonic() - started, 2)
        assert all(seconds < SOON for seconds in late.values()), late
        await _pause_and_change(it)
        await it.stop()
    finally:
        await it.close()


async def test_a_cancellation_is_noticed(url: str, tmp_path: Path) -> None:
    it = Cluster(url, tmp_path, ROTA_HINTS="off")
    try:
        await it.lay_out([])
        await it.start(2)
        run_id = await it.enqueue("nap", seconds=30)
        row = await it.reached(run_id, "running")
        await it.sql(f"insert into cancellations (run_id, replica_id) values ({run_id}, {row['replica_id']})")
        await it.reached(run_id, "cancelled", SOON)
        await it.stop()
    finally:
        await it.close()


async def _pause_and_change(it: Cluster) -> None:
    await it.sql("update scheduler_configs set enabled = false")
    await until("the last run has ended", lambda: _nothing_runs(it), SOON)
    count = await it.value("select count(*) from job_runs")
    await it.sql("update scheduler_configs set enabled = true, cron = 'every 2s'")
    started = time.monotonic()
    await until("the changed schedule has run", lambda: _more_runs(it, count), 90)
    assert time.monotonic() - started < SOON + 2
    # Or it would be due again while the replicas stop, who would leave it to those who come after them.
    await it.sql("update scheduler_configs set enabled = false")
    await until("its last run has ended", lambda: _nothing_runs(it), SOON)


async def _nothing_waits(it: Cluster) -> bool:
    """All that was asked for has run; a schedule at least once."""
    done: Any = await it.sql(
        "select 1 where not exists (select 1 from job_runs where state in ('queued', 'running')) and not exists "
        "(select 1 from scheduler_configs c where not exists (select 1 from job_runs r where r.config_id = c.id))"
    )
    return bool(done)


async def _nothing_runs(it: Cluster) -> bool:
    return not await it.sql("select id from job_runs where state in ('queued', 'running')")


async def _more_runs(it: Cluster, count: int) -> bool:
    return bool(await it.value("select count(*) from job_runs") > count)


async def _ticks(it: Cluster, count: int) -> bool:
    return bool(await it.value("select count(*) from job_runs where due_at is not null") >= count)
