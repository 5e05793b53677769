"""The scheduler's rounds, with a store that only counts what it is asked."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rota.offer import NOBODY, Hands, Offer
from rota.race import AHEAD, BEHIND
from rota.scheduler import Scheduler
from rota.store import Agenda, Claim, Fired, Store


class Counting:
    """As many schedules are due as it is told, or will be; a delayed run comes up when it is told."""

    most_locked = 500

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.waits: list[float] = []
        self.due = 0
        self.due_in: float | None = None
        self.delayed_in: float | None = None
        self.delayed = self.waiting = self.starts = False

    async def agenda(self, _: object) -> Agenda:
        self.asked["agenda"] += 1
        due = self.due > 0 and self.due_in is None
        return Agenda(
            due=due, delayed=self.delayed, due_in=self.due_in, delayed_in=self.delayed_in, waiting=self.waiting
        )

    async def fire_due(self, _: object, *, limit: int, wait: float, **more: Any) -> Fired:
        self.waits.append(wait)
        await asyncio.sleep(wait)
        self.asked["fire_due"] += 1
        fired = min(self.due, limit)
        self.due -= fired
        if self.starts:
            return Fired(schedules=fired, runs=fired, claims=cast(tuple[Claim, ...], (None,) * fired))
        return Fired(schedules=fired, runs=fired, ready=fired)

    async def promote_due(self, _: int) -> int:
        self.asked["promote_due"] += 1
        self.delayed = False
        return 1

    async def admit_waiting(self) -> int:
        self.asked["admit_waiting"] += 1
        return 0


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [1000.0]
    monkeypatch.setattr("rota.scheduler.time", SimpleNamespace(monotonic=lambda: clock[0]))
    return clock


class Watching:
    """A worker that knows how much the store was asked by the time it is."""

    def __init__(self, store: Counting) -> None:
        self.store, self.offered, self.filled = store, list[dict[str, int]](), list[object]()

    def offer(self, most: int) -> Offer:
        self.offered.append(dict(self.store.asked))
        return Offer(most)

    def fill(self, offer: Offer, claims: Sequence[Claim] | None) -> None:
        self.filled.append(claims)


def scheduler(store: Counting, hands: Hands = NOBODY) -> Scheduler:
    return Scheduler(
        cast(Store, store), decide=lambda *_: [], jobs=["work"], advisory=True, made_ready=lambda _: None,
        emit=lambda _: None, hands=hands,
    )  # fmt: skip


def one_of_very_many(rounds: Scheduler) -> None:
    """Who leaves the next tick to the others."""
    rounds.race.replicas = 10**9
    rounds.race.ran(won=False)


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


# -- the instant of a tick -------------------------------------------------------------------------


async def test_it_is_awake_a_moment_before_a_tick_and_does_not_ask_when_it_is_due(now: list[float]) -> None:
    store = Counting()
    rounds = scheduler(store)
    store.due, store.due_in = 1, 30.0
    assert await rounds.step() == pytest.approx(30 - AHEAD)
    now[0] += 30 - AHEAD
    store.due_in = AHEAD
    assert await rounds.step() == 0
    assert store.asked == {"agenda": 2, "fire_due": 1}


async def test_the_worker_says_what_it_has_room_for_before_the_tick_is_due(now: list[float]) -> None:
    store = Counting()
    hands = Watching(store)
    store.due, store.due_in, rounds = 1, 2 * AHEAD, scheduler(store, hands)
    stepping = asyncio.create_task(rounds.step())
    while not hands.offered:
        await asyncio.sleep(0)
    assert not hands.filled
    await stepping
    assert hands.offered == [{"agenda": 1}]
    assert store.waits == [2 * AHEAD]
    assert len(hands.filled) == 1


async def test_what_is_cut_short_while_it_waits_for_a_tick_keeps_no_places(now: list[float]) -> None:
    store = Counting()
    hands = Watching(store)
    store.due, store.due_in = 1, 2 * AHEAD
    stepping = asyncio.create_task(scheduler(store, hands).step())
    while not hands.offered:
        await asyncio.sleep(0)
    stepping.cancel()
    await asyncio.wait([stepping])
    assert (stepping.cancelled(), hands.filled, store.asked["fire_due"]) == (True, [None], 0)


async def test_whoever_made_the_last_tick_is_first_at_the_next(now: list[float]) -> None:
    store = Counting()
    rounds = scheduler(store)
    one_of_very_many(rounds)
    store.due, store.due_in = 1, 60.0
    await rounds.step()
    now[0] += 60 + BEHIND
    store.due_in = None
    assert await rounds.step() == 0, "nobody else has made it"
    store.due_in = 20.0
    assert await rounds.step() == pytest.approx(20 - AHEAD)


async def test_one_that_leaves_ticks_to_others_looks_when_they_are_made(now: list[float]) -> None:
    store = Counting()
    rounds = scheduler(store)
    one_of_very_many(rounds)
    for _ in range(3):
        store.due_in = 10.0
        assert await rounds.step() == pytest.approx(10 + BEHIND)
        now[0] += 10 + BEHIND
    assert store.asked == {"agenda": 3}


class Late(Counting):
    """The first time that it is to fire, there is nothing to be had; then this is said of what is due."""

    def __init__(self, due: int, due_in: float | None) -> None:
        super().__init__()
        self._then, self.due_in = (due, due_in), AHEAD

    async def fire_due(self, _: object, *, limit: int, wait: float, **more: Any) -> Fired:
        fired = await super().fire_due(_, limit=limit, wait=wait, **more)
        if self.asked["fire_due"] == 1:
            self.due, self.due_in = self._then
        return fired


async def test_where_somebody_else_is_at_it_there_is_a_moment_before_the_next_question(now: list[float]) -> None:
    store = Late(1, None)
    rounds = scheduler(store)
    assert await rounds.step() == BEHIND
    assert store.asked == {"agenda": 2, "fire_due": 1}


async def test_where_somebody_else_has_made_it_the_next_one_is_slept_for(now: list[float]) -> None:
    store = Late(1, 30.0)
    rounds = scheduler(store)
    rounds.race.replicas, store.due_in = 10**9, 60.0
    await rounds.step()
    store.due_in = AHEAD
    assert await rounds.step() == pytest.approx(30 + BEHIND)
    assert store.asked == {"agenda": 3, "fire_due": 1}
    assert not rounds.race.first


async def test_whoever_comes_too_soon_by_the_clock_of_the_store_makes_the_tick_in_its_time(now: list[float]) -> None:
    store = Late(1, 0.001)
    rounds = scheduler(store)
    rounds.race.replicas = 10**9
    assert await rounds.step() == 0
    assert store.asked == {"agenda": 2, "fire_due": 2}


async def test_nobody_comes_too_soon_for_ever(now: list[float]) -> None:
    store = Late(0, AHEAD)
    rounds = scheduler(store)
    assert await rounds.step() == BEHIND
    assert store.asked == {"agenda": 2, "fire_due": 2}


async def test_a_question_in_between_is_no_tick_that_was_left_to_others(now: list[float]) -> None:
    store = Counting()
    rounds = scheduler(store)
    for left in (30.0, 20.0, 10.0):
        store.due_in = left
        assert await rounds.step() == pytest.approx(left - AHEAD)
        now[0] += 10


async def test_what_waits_for_a_slot_is_not_asked_about_without_end_before_a_tick(now: list[float]) -> None:
    store = Counting()
    rounds = scheduler(store)
    store.waiting, store.due_in = True, AHEAD / 2
    assert await rounds.step() == pytest.approx(AHEAD / 2)


async def test_a_delayed_run_that_comes_before_a_tick_does_not_wait_for_it(now: list[float]) -> None:
    store = Counting()
    rounds = scheduler(store)
    store.due, store.due_in, store.delayed_in = 1, AHEAD, AHEAD / 4
    assert await rounds.step() == pytest.approx(AHEAD / 4)
    assert store.asked == {"agenda": 1}


async def test_a_tick_that_has_begun_does_not_wait_for_a_slot(now: list[float]) -> None:
    store = Counting()
    store.due, store.starts, rounds = 1, True, scheduler(store)
    assert await rounds.step() == 0
    assert store.asked == {"agenda": 1, "fire_due": 1}


@pytest.mark.parametrize(("rests", "due_in", "woken"), [(60.0, 0.5, True), (60.0, -5.0, True), (0.5, 0.5, False)])
async def test_a_beat_wakes_it_only_for_what_it_would_be_late_for(
    now: list[float], rests: float, due_in: float, woken: bool
) -> None:
    store = Counting()
    rounds = scheduler(store)
    rounds.rests_until = now[0] + rests
    rounds.look_within(due_in)
    assert rounds._wake._flag.is_set() is woken
