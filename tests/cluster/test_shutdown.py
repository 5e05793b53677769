"""A replica that is asked to stop: what runs ends or is given back, and nothing stays behind."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

from tests.cluster.cluster import ROUNDS, Cluster, cluster, until
from tests.harness import execute


async def test_running_work_finishes_before_the_replica_leaves(url: str, tmp_path: Path) -> None:
    it = Cluster(url, tmp_path)
    try:
        await it.lay_out([])
        [replica] = await it.start(1)
        runs = [await it.enqueue("nap", seconds=1.0), await it.enqueue("stubborn", seconds=1.0)]
        for run_id in runs:
            await it.reached(run_id, "running")
        replica.send(signal.SIGTERM)
        await replica.said("Stopping")
        late = await it.enqueue("brief")
        await it.stop_all_but_queued([late])
        for run_id in runs:
            row = await it.run(run_id)
            assert (row["state"], row["attempt"], row["losses"]) == ("succeeded", 1, 0)
        row = await it.run(late)
        assert (row["state"], row["attempt"]) == ("queued", 0), "a replica that stops claims no more"
        await it.start(1)
        await it.reached(late, "succeeded")
        await it.stop()
        await _no_sessions_left(url)
    finally:
        await it.close()


async def test_what_does_not_end_in_time_is_given_back_uncounted(url: str, tmp_path: Path) -> None:
    it = Cluster(url, tmp_path, ROTA_SHUTDOWN_TIMEOUT="0.2")
    try:
        await it.lay_out([])
        first = (await it.start(1))[0]
        run_id = await it.enqueue("nap", seconds=2.0)
        stubborn = await it.enqueue("stubborn", seconds=20.0)
        await it.reached(run_id, "running")
        await it.reached(stubborn, "running")
        await it.start(1)
        assert await first.terminate() == 0
        it.replicas.remove(first)
        row = await it.reached(run_id, "succeeded")
        assert (row["attempt"], row["losses"]) == (1, 0), "an interrupted attempt does not count"
        row = await it.reached(stubborn, "running")
        assert row["losses"] == 0
        assert row["replica_id"] == it.replicas[0].replica_id, "what cannot be stopped goes to somebody else"
        await it.replicas[0].kill()
    finally:
        await it.close()


async def test_rolling_restarts_lose_nothing(url: str, tmp_path: Path, rng: random.Random) -> None:
    async with cluster(url, tmp_path, ROTA_SHUTDOWN_TIMEOUT="0.1") as it:
        for _ in range(ROUNDS // 2):
            leaving = rng.choice(it.replicas)
            await asyncio.sleep(rng.uniform(0.0, 0.3))
            joining = await it.spawn()
            assert await leaving.terminate() == 0
            it.replicas.remove(leaving)
            await joining.said("Ready")
        await it.verdict(interrupted=True)
        await _no_sessions_left(url)
        assert await it.value("select coalesce(sum(losses), 0) from job_runs") == 0, "somebody was taken for dead"
        assert it.count("ReplicasBuried") == 0


async def _no_sessions_left(url: str) -> None:
    """No session on the server, no lock file beside the database."""
    if url.startswith("sqlite"):
        folder = Path(url.removeprefix("sqlite:///")).parent
        assert not [name for _, _, names in os.walk(folder) for name in names if name.endswith(".lock")]
        return

    async def none() -> bool:
        mine = "application_name like 'rota-%' and datname = current_database()"
        return not await execute(url, f"select pid from pg_stat_activity where {mine}")

    await until("no session is left", none, 3.0)
