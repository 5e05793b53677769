"""Hints that are sent together: how long the moment is."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from rota import hinter
from rota.hinter import Hinter
from rota.store import Hint, Store


class Slow:
    """A store that takes so long for each hint, by a clock that nobody has to wait for."""

    def __init__(self, *took: float) -> None:
        self._took, self.now, self.sent_at = list(took), 0.0, list[float]()

    async def hint(self, kind: Hint) -> None:
        self.sent_at.append(asyncio.get_running_loop().time())
        self.now += self._took.pop(0)


async def pause_after(store: Slow) -> float:
    """Between the last hint and one that was wanted while it was sent."""
    hints, count = Hinter(cast(Store, store)), len(store._took)
    for n in range(count):
        hints.hint("ready")
        while len(store.sent_at) <= n:
            await asyncio.sleep(0.001)
    await hints.close()
    return store.sent_at[-1] - store.sent_at[-2]


@pytest.mark.parametrize(
    ("took", "least", "most"),
    [
        ((0.001, 0.001, 0.001), 0.005, 0.05),
        ((0.001, 1.0, 0.001), 0.005, 0.05),
        ((0.005, 0.005, 0.001), 0.005, 0.05),
        ((0.005, 0.005, 0.005, 0.001), 0.08, 1.0),
        ((1.0, 1.0, 0.001), 0.1, 1.0),
    ],
)
def test_hints_wait_for_each_other_where_they_usually_take_long(
    monkeypatch: pytest.MonkeyPatch, took: tuple[float, ...], least: float, most: float
) -> None:
    store = Slow(*took)
    monkeypatch.setattr(hinter, "steady", lambda: store.now)
    assert least * 0.9 < asyncio.run(pause_after(store)) < most


def test_what_is_hinted_while_a_hint_is_sent_waits_for_the_moment_to_end() -> None:
    """In a stream there is always something: it would be one hint after the other."""

    class Echo(Slow):
        async def hint(self, kind: Hint) -> None:
            await super().hint(kind)
            if len(self.sent_at) == 1:
                hints.hint("ready")
                await asyncio.sleep(0)

    store = Echo(0.0, 0.0)
    hints = Hinter(cast(Store, store))

    async def stream() -> None:
        hints.hint("ready")
        await hints.close()

    asyncio.run(stream())
    first, second = store.sent_at
    assert second - first >= 0.0045


@pytest.mark.parametrize(("hinted", "moment"), [(5, 0.005), (6, 0.01)])
def test_the_moment_is_longer_while_much_is_hinted(monkeypatch: pytest.MonkeyPatch, hinted: int, moment: float) -> None:
    pauses, pause = list[float](), asyncio.sleep

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await pause(0)

    monkeypatch.setattr(asyncio, "sleep", noted)
    hints = Hinter(cast(Store, Slow(0.0)))

    async def burst() -> None:
        for _ in range(hinted):
            hints.hint("ready")
        await hints.close()

    asyncio.run(burst())
    assert pauses == [moment]
