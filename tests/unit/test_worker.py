"""The worker with a store that has all it could want."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import cast

import pytest

from rota import Rota
from rota.errors import StoreUnavailable
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
async def at_work(store: Plenty, *, plain: bool = False) -> AsyncIterator[Worker]:
    app = Rota("sqlite:///nowhere.db", concurrency=100)

    @app.job("quick")
    async def quick() -> None: ...

    if plain:
        app.job("plain")(lambda: None)

    worker = Worker(
        cast(Store, store), app.settings, app.jobs, standing=lambda: 1, slot_freed=lambda: None,
        finished=lambda: None, tell=lambda: None, emit=lambda event: None, wanted=lambda kind: False,
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
            assert sum(store.asked) < 13_000
            await asyncio.sleep(0)
        stuck = sum(store.asked)
        offer = worker.offer(5)
        for _ in range(100):
            await asyncio.sleep(0)
        assert sum(store.asked) == stuck
        assert offer.places() is None, "a tick would have been started"
        store.answer.set()
        while sum(store.asked) < 2 * stuck:
            await asyncio.sleep(0)


@pytest.mark.parametrize(("plain", "places"), [(False, 100), (True, 16)])
async def test_a_run_has_room_where_every_kind_has_a_place(plain: bool, places: int) -> None:
    """Nobody else is told of a run that is believed to have one here."""
    store = Plenty()
    async with at_work(store, plain=plain) as worker:
        assert worker.room() == places


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


class Aside(Plenty):
    """What there is of one kind is not answered."""

    def __init__(self, silent: str) -> None:
        super().__init__()
        self._silent = silent
        self.aside, self.other = asyncio.Event(), asyncio.Event()

    async def claim_runs(self, replica_id: int, token: int, jobs: Sequence[str], limit: int) -> Claimed:
        if jobs != [self._silent]:
            self.other.set()
            return Claimed(claims=[])
        self.aside.set()
        await self.answer.wait()
        return Claimed(claims=[])


@pytest.mark.parametrize("silent", ["quick", "plain"])
async def test_no_kind_waits_for_an_answer_about_the_other(silent: str) -> None:
    store = Aside(silent)
    async with at_work(store, plain=True) as worker:
        await store.aside.wait()
        for _ in range(3):
            store.other.clear()
            worker.wake()
            await store.other.wait()


class Unlucky(Elbows):
    """Others are at it, and the look that comes while one waits for them goes wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.late = asyncio.Event()

    async def claim_runs(self, replica_id: int, token: int, jobs: Sequence[str], limit: int) -> Claimed:
        self.looks.append(not self.looks)
        if len(self.looks) == 2:
            self.late.set()
            await self.answer.wait()
            raise StoreUnavailable("cut")
        if len(self.looks) == 3:
            self.large.set()
        return Claimed(claims=[], busy=self.looks[-1])

    async def reclaim(self, replica_id: int, token: int) -> list[Claim]:
        return []


async def test_what_others_may_leave_is_not_forgotten_with_a_claim_that_failed() -> None:
    store = Unlucky()
    async with at_work(store) as worker:
        while not store.looks:
            await asyncio.sleep(0)
        [claimer] = worker._claimers
        claimer.wake()
        await store.late.wait()
        while claimer._soon is not None:  # the moment passes
            await asyncio.sleep(0)
        store.answer.set()
        await store.large.wait()


class Deaf(Plenty):
    """The claim is made, but neither its reply nor that to the first question about it arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens: list[int] = []
        self.recorded = asyncio.Event()

    async def claim_runs(self, replica_id: int, token: int, jobs: Sequence[str], limit: int) -> Claimed:
        if self.tokens:
            return Claimed(claims=[])
        self.tokens.append(token)
        raise StoreUnavailable("cut")

    async def reclaim(self, replica_id: int, token: int) -> list[Claim]:
        self.tokens.append(token)
        if len(self.tokens) == 2:
            raise StoreUnavailable("cut again")
        return [Claim(token, 1, "quick", 1, 0, "{}", None, 1, None, "", False, 1)]

    async def finish_runs(self, outcomes: Sequence[Outcome], closed: Sequence[int]) -> Finished:
        self.recorded.set()
        return Finished(accepted=frozenset(o.id for o in outcomes), lost=(), freed=False)


async def test_a_claim_is_asked_about_until_there_is_an_answer() -> None:
    store = Deaf()
    async with at_work(store):
        await store.recorded.wait()
    assert store.tokens == store.tokens[:1] * 3


class Nothing(Plenty):
    def __init__(self) -> None:
        super().__init__()
        self.looked: list[str] = []

    async def claim_runs(self, replica_id: int, token: int, jobs: Sequence[str], limit: int) -> Claimed:
        self.looked += jobs
        return Claimed(claims=[])


async def test_both_kinds_are_looked_for_one_after_the_other_when_there_may_be_something() -> None:
    store = Nothing()
    async with at_work(store, plain=True) as worker:
        for _ in range(3):
            for _ in range(20):
                await asyncio.sleep(0)
            store.looked.clear()
            worker.wake()
            while len(store.looked) < 2:
                await asyncio.sleep(0)
            assert store.looked == ["quick", "plain"]
