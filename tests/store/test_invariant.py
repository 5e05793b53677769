"""The invariant of the ledger: every tick that an independent enumeration gives is there once, whatever happens."""

from __future__ import annotations

import asyncio
import itertools
import random
from bisect import bisect_left
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pytest

from rota.store import RunRow, ScheduleRow, Store
from tests.enumeration import ticks
from tests.harness import execute
from tests.store.steps import JOB, START, claim, fire, held, ledger, opened, outcome, scheduled, set_clock

INSTANT = timedelta(microseconds=1)
POLICIES: list[dict[str, Any]] = [
    {"catch_up": catch_up, "overlap": overlap, "concurrency_limit": limit}
    for catch_up, overlap, limit in itertools.product(
        ("latest", "all", "skip"), ("skip", "queue", "queue_one", "cancel"), (0, 1, 2)
    )
]
TIMES = [("*/7 * * * *", None), ("20 */3 * * *", "Europe/Paris"), ("every 25m", None), ("5 1,13 * * 1-5", "Asia/Tokyo")]


class Enumeration:
    """All ticks of an expression from START on, counted once; stretches are cut out of them."""

    def __init__(self, cron: str, timezone: str | None, until: datetime) -> None:
        self.all = ticks(cron, timezone, START, until)

    def stretch(self, first: datetime, before: datetime) -> list[datetime]:
        return self.all[bisect_left(self.all, first) : bisect_left(self.all, before)]

    def of_ledger(self, rows: list[RunRow]) -> list[datetime]:
        """The ticks that the rows stand for. A summary is spelled out, and must have counted right."""
        found: list[datetime] = []
        for row in rows:
            assert row.due_at is not None
            if row.missed_count is None:
                found.append(row.due_at)
                continue
            assert row.state == "skipped"
            assert row.missed_from == row.due_at
            assert row.missed_to is not None
            missed = self.stretch(row.due_at, row.missed_to + INSTANT)
            assert len(missed) == row.missed_count
            found += missed
        return found


class Cluster:
    """Two replicas, an operator, and a clock that runs in leaps."""

    def __init__(self, url: str, stores: list[Store], chance: random.Random) -> None:
        self.url, self.stores, self.chance = url, stores, chance
        self.schedules: list[ScheduleRow] = []
        self.now = START

    async def leap(self) -> None:
        far = self.chance.choice([timedelta(minutes=3), timedelta(minutes=40), timedelta(hours=5), timedelta(hours=30)])
        self.now += far * self.chance.uniform(0.5, 1)
        await set_clock(self.url, self.now)

    async def tick(self) -> None:
        await asyncio.gather(*(fire(store, limit=self.chance.choice([7, 50])) for store in self.stores))

    async def hold(self) -> None:
        async with held(self.url, self.chance.choice(self.schedules).id):
            await self.tick()

    async def work(self) -> None:
        store = self.chance.choice(self.stores)
        await store.promote_due(100)
        await store.admit_waiting()
        taken = await claim(store, self.chance.randint(1, 60))
        ended = [outcome(each, self.chance.choice(["succeeded", "failed", "queued"])) for each in taken]
        await store.finish_runs(ended, closed=[])

    async def pause_or_resume(self) -> None:
        some = self.chance.sample([each.id for each in self.schedules], 9)
        await execute(self.url, f"update scheduler_configs set enabled = not enabled where id in {tuple(some)}")


@pytest.mark.parametrize("seed", [1, 2])
async def test_runs_and_skipped_and_missed_ticks_are_all_ticks(url: str, seed: int) -> None:
    chance = random.Random(seed)
    async with opened(url) as store, opened(url) as other:
        cluster = Cluster(url, [store, other], chance)
        await set_clock(url, START)
        for number, policy in enumerate(POLICIES):
            cron, timezone = TIMES[(number + seed) % len(TIMES)]
            older = chance.choice([7200, 86400])
            cluster.schedules.append(
                await scheduled(
                    store, name=f"n{number}", cron=cron, timezone=timezone, skip_if_older_than_seconds=older, **policy
                )
            )
        steps = [cluster.tick, cluster.tick, cluster.hold, cluster.work, cluster.work, cluster.pause_or_resume]
        for _ in range(25):
            await cluster.leap()
            await chance.choice(steps)()
        await execute(url, "update scheduler_configs set enabled = true")
        while (await fire(store)).schedules:
            pass
        rows = await ledger(store)
        assert len({row.reason for row in rows} & {"catch_up", "stale", "paused", "overlap"}) >= 3
        ends = {row.id: row.next_run_at for row in await store.list_schedules(job_id=JOB)}
        known = {(cron, zone): Enumeration(cron, zone, cluster.now + timedelta(days=4)) for cron, zone in TIMES}
        for each in cluster.schedules:
            first, end = each.next_run_at, ends[each.id]
            assert first is not None
            assert end is not None
            enumeration = known[each.cron, each.timezone]
            mine = [row for row in rows if row.config_id == each.id]
            entered, expected = Counter(enumeration.of_ledger(mine)), Counter(enumeration.stretch(first, end))
            # The differences only: a comparison of thousands of ticks takes pytest minutes to explain.
            assert (list(expected - entered), list(entered - expected)) == ([], []), each
