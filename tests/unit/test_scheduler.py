"""The scheduler's rounds, with a store that only counts what it is asked."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rota.scheduler import Scheduler
from rota.store import Agenda, Fired, Store


class Counting:
    """As many schedules are due as it is told; a delayed run comes up when it is told."""

    most_locked = 500

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.due = 0
        self.delayed = False

    async def agenda(self, _: object) -> Agenda:
        self.asked["agenda"] += 1
        return Agenda(due=self.due > 0, delayed=self.delayed, next_in=None, waiting=False)

    async def fire_due(self, _: object, *, limit: int, **more: Any) -> Fired:
        self.asked["fire_due"] += 1
        fired = min(self.due, limit)
        self.due -= fired
        return Fired(schedules=fired, runs=fired, ready=fired)

    async def promote_due(self, _: int) -> int:
        self.asked["promote_due"] += 1
        self.delayed = False
        return 1

    async def admit_waiting(self) -> int:
        return 0


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [1000.0]
    monkeypatch.setattr("rota.scheduler.time", SimpleNamespace(monotonic=lambda: clock[0]))
    return clock


def scheduler(store: Counting) -> Scheduler:
    return Scheduler(
        cast(Store, store), decide=lambda *_: [], jobs=["work"], advisory=True, made_ready=lambda _: None,
        emit=lambda _: None,
    )  # fmt: skip


async def test_many_due_schedules_are_fired_without_asking_each_time(now: list[float]) -> None:
    store = Counting()
    store.due, rounds = 2000, scheduler(store)
    for _ in range(4):
        assert await rounds.step() == 0
    assert (store.asked["agenda"], store.asked["fire_due"], store.due) == (1, 4, 0)


async def test_a_delayed_run_does_not_wait_until_all_schedules_are_fired(now: list[float]) -> None:
    store = Counting()
    store.due, rounds = 1_000_000, scheduler(store)
    await rounds.step()
    store.delayed = True
    await rounds.step()
    assert "promote_due" not in store.asked
    now[0] += 0.2
    await rounds.step()
    assert store.asked["promote_due"] == 1


async def test_what_was_known_of_a_rush_is_forgotten_after_it(now: list[float]) -> None:
    store = Counting()
    store.due, rounds = 500, scheduler(store)
    await rounds.step()
    await rounds.step()  # finds nothing more
    store.due += 1
    assert await rounds.step() == 0
    assert store.asked["fire_due"] == 3


async def test_after_a_rush_it_asks_again(now: list[float]) -> None:
    store = Counting()
    store.due, rounds = 600, scheduler(store)
    assert [await rounds.step() for _ in range(2)] == [0, 0]
    assert store.due == 0
    await rounds.step()
    assert store.asked == {"agenda": 2, "fire_due": 2}
