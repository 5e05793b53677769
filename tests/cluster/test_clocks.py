"""Replicas in other time zones, with clocks hours apart: the same ticks, under the same keys."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.cluster.cluster import Cluster

WRONG = [("Pacific/Chatham", 0.0), ("America/New_York", 5 * 3600.0), ("Asia/Kathmandu", -26 * 3600.0 - 1234.5)]


async def test_zones_and_clocks_of_replicas_decide_nothing(url: str, tmp_path: Path) -> None:
    it = Cluster(url, tmp_path)
    try:
        await it.lay_out()
        # Each of them alone for a while, so that each makes ticks; then all together.
        for zone, ahead in WRONG:
            former, it.replicas = it.replicas, []
            await it.start(1, TZ=zone, ROTA_TEST_SKEW=str(ahead))
            await asyncio.gather(*(replica.terminate() for replica in former))
            await asyncio.sleep(1.5)
        for zone, ahead in WRONG[:2]:
            await it.start(1, TZ=zone, ROTA_TEST_SKEW=str(ahead))
        await asyncio.sleep(2.0)
        await it.verdict()
    finally:
        await it.close()
