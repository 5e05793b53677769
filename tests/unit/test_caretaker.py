"""What the caretaker of an idle cluster asks of the store, and how often. The clock is the test's."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rota.caretaker import Caretaker
from rota.store import Buried, Pulse, Store


class Counting:
    """Nobody is dead, and nothing is to be tidied."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        async def answer(*_: object) -> Any:
            self.asked[name] += 1
            return Buried() if name == "bury" else 0 if name == "sweep_locks" else []

        return answer


def pulse(**more: Any) -> Pulse:
    return cast(Pulse, SimpleNamespace(**({"caretaker": True, "suspects": (), "stale": (), "due_in": None} | more)))


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [1000.0]
    monkeypatch.setattr("rota.caretaker.time", SimpleNamespace(monotonic=lambda: clock[0]))
    return clock


def caretaker(store: Counting) -> Caretaker:
    made = Caretaker(cast(Store, store), keep_days=0, freed=lambda _: None, emit=lambda _: None)
    made.observe(pulse())
    return made


@pytest.mark.parametrize(("due_in", "marked"), [(None, {}), (0.1, {}), (0.0, {"mark_unknown": 12})])
async def test_an_idle_minute_takes_a_quarter_of_a_statement_a_second(
    now: list[float], due_in: float | None, marked: dict[str, int]
) -> None:
    """Only what is overdue may be of a job that nobody knows."""
    store = Counting()
    service, end = caretaker(store), now[0] + 60
    while now[0] < end:
        service.observe(pulse(due_in=due_in))
        pause = await service.step()
        assert pause is not None
        now[0] += pause
    assert store.asked == {"bury": 12, "expire_states": 2, "sweep_locks": 2} | marked


async def test_after_a_death_what_it_left_is_swept_at_once(now: list[float]) -> None:
    store = Counting()
    service = caretaker(store)
    await service.step()
    now[0] += 1
    service.observe(pulse(stale=(3,)))
    await service.step()
    assert store.asked["sweep_locks"] == 2
