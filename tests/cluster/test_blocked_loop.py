"""A handler that keeps the event loop from turning costs the replica nothing, and is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.cluster import DEAD_AFTER, SCHEDULES, cluster
from tests.cluster.judge import Schedule


def without_transactions(url: str) -> list[Schedule]:
    """SQLite has one writer: a transaction that is open while the loop stands still makes everybody wait.

    The page on operations says so; it is not what is tested here.
    """
    return [s for s in SCHEDULES if s.job != "ledger" or not url.startswith("sqlite")]


@pytest.mark.parametrize("job", ["block", "spin"])
async def test_a_blocked_loop_loses_nothing(url: str, tmp_path: Path, job: str) -> None:
    seconds = 4 * DEAD_AFTER
    async with cluster(url, tmp_path, schedules=without_transactions(url)) as it:
        before = {replica.pid: replica.replica_id for replica in it.replicas}
        run_id = await it.enqueue(job, seconds=seconds)
        running = await it.reached(run_id, "running")
        holder = next(r for r in it.replicas if r.replica_id == running["replica_id"])
        told = await holder.said("LoopBlocked", seconds=seconds)
        assert [run_id, job] in told["runs"]
        ticks = await it.value("select count(*) from job_runs where due_at is not null")
        done = await it.reached(run_id, "succeeded", seconds + 10)
        assert (done["attempt"], done["losses"], done["replica_id"]) == (1, 0, running["replica_id"])
        assert await it.value("select count(*) from job_runs where due_at is not null") > ticks + 5, "ticks stood still"
        assert {replica.pid: replica.replica_id for replica in it.replicas} == before
        await it.verdict()
        assert it.count("ReplicaDeposed") == it.count("ReplicasBuried") == 0


async def test_a_blocked_loop_in_the_only_replica(url: str, tmp_path: Path) -> None:
    """Its own scheduler goes on making ticks; they run when the loop turns again."""
    async with cluster(url, tmp_path, count=1, schedules=without_transactions(url)) as it:
        run_id = await it.enqueue("block", seconds=3 * DEAD_AFTER)
        await it.reached(run_id, "running")
        ticks = await it.value("select count(*) from job_runs where due_at is not null")
        await it.replicas[0].said("LoopBlocked")
        assert (await it.run(run_id))["state"] == "running"
        done = await it.reached(run_id, "succeeded")
        assert await it.value("select count(*) from job_runs where due_at is not null") > ticks
        assert (done["attempt"], done["losses"]) == (1, 0)
        await it.verdict()
        assert it.count("ReplicaDeposed") == 0
