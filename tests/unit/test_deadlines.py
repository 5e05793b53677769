"""Deadlines: who is told, and what is kept."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import cast

import pytest

from rota.attempt import Attempt
from rota.deadlines import Deadlines
from tests.patience import PATIENCE


@dataclass
class Claimed:
    id: int


class Tried:
    """As much of an attempt as a deadline knows."""

    def __init__(self, number: int) -> None:
        self.claim, self.settled = Claimed(number), False


async def passed(attempts: list[Tried], seconds: list[float], now: list[float]) -> list[int]:
    """Those whose time is over, as soon as the last one's is."""
    told: list[int] = []
    mine = Deadlines(lambda attempt: told.append(attempt.claim.id))
    for attempt, each in zip(attempts, seconds, strict=True):
        mine.set(cast(Attempt, attempt), each)
    attempts[0].settled = True
    now[0] += max(seconds)
    sweeper = asyncio.create_task(mine.run())
    await asyncio.sleep(0)
    sweeper.cancel()
    return told


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [100.0]
    monkeypatch.setattr("rota.deadlines.time.monotonic", lambda: clock[0])
    return clock


def test_whoever_is_not_settled_in_time_is_told_in_the_order_of_the_deadlines(now: list[float]) -> None:
    assert asyncio.run(passed([Tried(n) for n in range(4)], [1.0, 30.0, 2.0, 10.0], now)) == [2, 3, 1]


async def test_a_later_one_that_is_over_sooner_is_not_kept_waiting() -> None:
    over: asyncio.Queue[int] = asyncio.Queue()
    mine = Deadlines(lambda attempt: over.put_nowait(attempt.claim.id))
    sweeper = asyncio.create_task(mine.run())
    mine.set(cast(Attempt, Tried(1)), 3600.0)
    await asyncio.sleep(0)
    mine.set(cast(Attempt, Tried(2)), 0.001)
    assert await asyncio.wait_for(over.get(), PATIENCE) == 2
    sweeper.cancel()


def test_what_is_settled_is_not_kept_until_its_time() -> None:
    async def used() -> int:
        mine = Deadlines(lambda attempt: None)
        for number in range(10_000):
            attempt = Tried(number)
            mine.set(cast(Attempt, attempt), 3600.0)
            attempt.settled = True
        return len(mine._heap)

    assert asyncio.run(used()) < 500
