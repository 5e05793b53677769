"""kill -9 of one of three replicas, at random instants."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from tests.cluster.cluster import ROUNDS, cluster


async def test_killed_replicas_lose_no_tick_and_double_none(url: str, tmp_path: Path, rng: random.Random) -> None:
    async with cluster(url, tmp_path) as it:
        for _ in range(ROUNDS):
            await asyncio.sleep(rng.uniform(0.0, 0.7))
            victim = rng.choice(it.replicas)
            await victim.kill()
            await it.replace(victim)
        await it.verdict()
        assert it.count("ReplicasBuried") > 0
        assert await it.value("select coalesce(sum(losses), 0) from job_runs") > 0, "no kill hit anything"
