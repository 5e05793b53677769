"""Trust: a period has no gap, whoever looks and whenever."""

from __future__ import annotations

import pytest

from rota import trust as module
from rota.caretaker import SECOND_LOOK
from rota.trust import MOMENT, Trust


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(module, "steady", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_there_is_none_before_the_first_beat(clock: Clock) -> None:
    assert Trust().period == 0


def test_beats_in_time_are_one_period(clock: Clock) -> None:
    trust = Trust()
    for _ in range(5):
        trust.renew(clock.now + 3.5)
        assert trust.period == 1
        clock.now += 3.4
    clock.now += 0.1
    assert trust.period == 0


def test_after_a_gap_it_is_another_period_though_nobody_looked(clock: Clock) -> None:
    trust = Trust()
    trust.renew(clock.now + 3.5)
    clock.now += 10
    trust.renew(clock.now + 3.5)
    assert trust.period == 2


def test_a_beat_that_was_confirmed_too_late_gives_none(clock: Clock) -> None:
    trust = Trust()
    trust.renew(clock.now + 3.5)
    sent, clock.now = clock.now + 1, clock.now + 10
    trust.renew(sent + 3.5)
    assert trust.period == 0


def test_a_lifeline_that_is_back_in_time_costs_nothing(clock: Clock) -> None:
    trust, told = Trust(), []
    trust.shortened = lambda: told.append(trust.until)
    trust.renew(clock.now + 3.5)
    clock.now += 1
    trust.cut()
    trust.cut()
    assert told == [clock.now + MOMENT]
    clock.now += MOMENT - 0.01
    assert trust.period == 1
    trust.renew(clock.now + 3.5)
    clock.now += 1
    assert trust.period == 1


def test_a_lifeline_that_is_not_back_in_time_ends_it_before_the_others_look_again(clock: Clock) -> None:
    trust = Trust()
    trust.renew(clock.now + 3.5)
    trust.cut()
    clock.now += MOMENT
    assert MOMENT < SECOND_LOOK * 0.96
    assert trust.period == 0
    trust.renew(clock.now + 3.5)
    assert trust.period == 2


def test_the_end_of_an_incarnation_is_the_end_of_its_period(clock: Clock) -> None:
    trust, told = Trust(), []
    trust.renew(clock.now + 3.5)
    trust.shortened = lambda: told.append(trust.period)
    trust.end()
    trust.renew(clock.now + 3.5)
    assert (told, trust.period) == ([0], 2)
