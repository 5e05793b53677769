"""Who goes for the next tick."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from rota.race import AHEAD, BEHIND, Race


def among(replicas: int) -> Race:
    race = Race()
    race.replicas = replicas
    return race


def test_a_new_one_goes_for_the_first_tick() -> None:
    race = among(100)
    assert race.first
    assert race.look_in(30.0) == 30 - AHEAD
    assert race.is_close(AHEAD)


@pytest.mark.parametrize(("replicas", "won"), [(100, True), (1, False)])
def test_the_winner_goes_for_the_next_one_always_and_so_does_the_only_one(replicas: int, won: bool) -> None:
    race = among(replicas)
    for _ in range(1000):
        race.ran(won=won)
        assert race.first


def test_one_that_lost_leaves_most_to_the_others_where_there_are_many() -> None:
    race, first = among(100), 0
    for _ in range(10_000):
        race.ran(won=False)
        first += race.first
        if not race.first:
            assert race.look_in(30.0) == 30 + BEHIND
            assert not race.is_close(0.001)
    assert 30 < first < 300  # 100 are to be expected


@pytest.mark.parametrize("replicas", [2, 3, 100])
def test_a_few_run_and_everybody_wins_now_and_then(replicas: int) -> None:
    races, winners, runners, ticks = [among(replicas) for _ in range(replicas)], Counter[int](), 0, replicas * 100
    for _ in range(ticks):
        first = [n for n, race in enumerate(races) if race.first]
        winner = random.choice(first)
        for n, race in enumerate(races):
            race.ran(won=n == winner)
        winners[winner] += 1
        runners += len(first)
    assert runners / ticks < 4
    assert len(winners) == replicas
    assert max(winners.values()) < 5 * ticks / replicas
