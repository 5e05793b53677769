"""Where the next look begins: behind what was taken, and now and then at the beginning."""

from __future__ import annotations

import pytest

from rota.stores.postgres import front
from rota.stores.postgres.front import Front


@pytest.mark.parametrize(("took", "pause"), [(0.001, 0.1), (0.05, 1.0), (60.0, 5.0)])
def test_a_look_at_all_of_it_is_a_twentieth_of_the_time_at_most_and_comes_within_five_seconds(
    monkeypatch: pytest.MonkeyPatch, took: float, pause: float
) -> None:
    now = [100.0]
    monkeypatch.setattr(front, "steady", lambda: now[0])
    mine = Front(0)
    for wait in (0.1, pause):  # one alone is no reason to look less often
        now[0] += 0.001
        assert mine.start() == 0
        now[0] += took
        mine.note(0, 7)
        now[0] += wait
    now[0] -= pause * 0.01
    assert mine.start() == 7
    mine.note(7, 9)
    now[0] += pause * 0.02
    assert mine.start() == 0


def test_where_there_was_less_than_asked_for_the_next_look_is_at_all_of_it() -> None:
    mine = Front(0)
    mine.note(mine.start(), 7)
    mine.note(mine.start(), None)
    assert mine.start() == 0
