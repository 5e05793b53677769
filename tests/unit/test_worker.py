"""The worker with a store that has all it could want."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import cast

from rota import Rota
from rota.store import Claim, Claimed, Finished, Outcome, Store
from rota.worker import Worker
from tests.patience import PATIENCE


class Plenty:
    """Always as much ready as is asked for; outcomes are answered when somebody lets them."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.large, self.answer = asyncio.Event(), asyncio.Event()

    async def claim_runs(self, replica_id: int, token: int, jobs: Sequence[str], limit: int) -> Claimed:
        await asyncio.sleep(0)
        if not jobs:
            return Claimed(claims=[])
        first = sum(self.asked) + 1
        self.asked.append(limit)
        if limit > 5 * self.asked[0]:
            self.large.set()
        numbers = range(first, first + limit)
        claims = [Claim(token, n, jobs[0], 1, 0, "{}", None, 1, None, "", False, n) for n in numbers]
        return Claimed(claims=claims, more=True)

    async def finish_runs(self, outcomes: Sequence[Outcome], closed: Sequence[int]) -> Finished:
        await self.answer.wait()
        return Finished(accepted=frozenset(o.id for o in outcomes), lost=(), freed=False)


@asynccontextmanager
async def at_work(store: Plenty) -> AsyncIterator[Worker]:
    app = Rota("sqlite:///nowhere.db", concurrency=100)

    @app.job()
    async def quick() -> None: ...

    worker = Worker(
        cast(Store, store), app.settings, app.jobs, standing=lambda: 1, slot_freed=lambda: None,
        finished=lambda: None, emit=lambda event: None, wanted=lambda kind: False,
    )  # fmt: skip
    worker.start()
    worker.wake()
    try:
        async with asyncio.timeout(PATIENCE):
            yield worker
    finally:
        store.answer.set()
        await worker.stop()


async def test_a_backlog_is_taken_in_large_bites_before_the_first_outcome_is_answered() -> None:
    """The first answer may take long: it opens a connection, and plans a statement."""
    store = Plenty()
    async with at_work(store):
        await store.large.wait()
    assert store.asked[0] == 100


async def test_no_more_is_begun_while_the_store_takes_no_outcomes() -> None:
    store = Plenty()
    async with at_work(store) as worker:
        while sum(store.asked) < 10_000:
            await asyncio.sleep(0)
        while worker.holding:
            await asyncio.sleep(0)
        stuck = sum(store.asked)
        assert stuck < 13_000
        offer = worker.offer(5)
        for _ in range(100):
            await asyncio.sleep(0)
        assert sum(store.asked) == stuck
        assert offer.places() is None, "a tick would have been started"
        store.answer.set()
        while sum(store.asked) < 2 * stuck:
            await asyncio.sleep(0)


class Elbows(Plenty):
    """Others are at it the first time that somebody looks."""

    def __init__(self) -> None:
        super().__init__()
        self.looks: list[bool] = []

    async def claim_runs(self, replica_id: int, token: int, jobs: Sequence[str], limit: int) -> Claimed:
        if not jobs:
            return Claimed(claims=[])
        self.looks.append(len(self.looks) < 3)
        if len(self.looks) == 5:
            self.large.set()
        return Claimed(claims=[], busy=self.looks[-1])


async def test_what_others_may_leave_is_looked_for_again_until_nobody_is_at_it() -> None:
    store = Elbows()
    async with at_work(store) as worker:
        while len(store.looks) < 4:
            await asyncio.sleep(0)
        assert store.looks == [True, True, True, False]
        worker.wake()
        await store.large.wait()
        assert len(store.looks) == 5
