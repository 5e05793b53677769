"""Hints that are sent together: how long the moment is, and who goes first. By a clock that nobody has to wait for."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from rota import hinter
from rota.errors import StoreUnavailable
from rota.hinter import Hinter
from rota.store import Hint, Store

_yield = asyncio.sleep


class Timed:
    """A store that takes so long for each hint, and the clock by which it does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *took: float) -> None:
        self._took, self.now = list(took), 100.0
        self.sent: list[tuple[float, float]] = []
        """From when to when."""
        monkeypatch.setattr(hinter, "steady", lambda: self.now)
        monkeypatch.setattr(asyncio, "sleep", self._pass)
        self.hinter = Hinter(cast(Store, self))

    async def _pass(self, seconds: float) -> None:
        await _yield(0)
        self.now += seconds

    async def hint(self, kind: Hint) -> None:
        began = self.now
        self.now += self._took.pop(0)
        self.sent.append((began, self.now))

    @property
    def pauses(self) -> list[float]:
        return [round(later[0] - sooner[1], 6) for sooner, later in zip(self.sent, self.sent[1:], strict=False)]


@pytest.mark.parametrize(
    ("took", "pause"),
    [
        ((0.001, 0.001, 0.001), 0.005),
        ((0.001, 1.0, 0.001), 0.005),
        ((0.005, 0.005, 0.001), 0.005),
        ((0.005, 0.005, 0.005, 0.001), 0.085),
        ((1.0, 1.0, 0.001), 0.1),
    ],
)
async def test_hints_wait_for_each_other_where_they_usually_take_long(
    monkeypatch: pytest.MonkeyPatch, took: tuple[float, ...], pause: float
) -> None:
    store = Timed(monkeypatch, *took)
    for _ in took:
        store.hinter.hint("ready")
        await store.hinter.close()
    assert store.pauses[-1] == pause


async def test_what_is_hinted_while_a_hint_is_sent_waits_for_the_moment_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a stream there is always something: it would be one hint after the other."""

    class Echo(Timed):
        async def hint(self, kind: Hint) -> None:
            await super().hint(kind)
            if len(self.sent) == 1:
                self.hinter.hint("ready")

    store = Echo(monkeypatch, 0.0, 0.0)
    store.hinter.hint("ready")
    await store.hinter.close()
    assert store.pauses == [0.005]


@pytest.mark.parametrize(("hinted", "moment"), [(5, 0.005), (6, 0.01)])
async def test_the_moment_is_longer_while_much_is_hinted(
    monkeypatch: pytest.MonkeyPatch, hinted: int, moment: float
) -> None:
    store = Timed(monkeypatch, 0.0, 0.0)
    for _ in range(hinted):
        store.hinter.hint("ready")
    await store.hinter.close()
    store.hinter.hint("ready")
    await store.hinter.close()
    assert store.pauses == [moment]


async def test_whoever_comes_when_all_is_quiet_leads_and_the_others_wait_for_the_moment_to_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Timed(monkeypatch, 0.0)
    led_at = store.now
    assert [store.hinter.lead(), store.hinter.lead()] == [True, False]
    store.hinter.hint("ready")
    await store.hinter.close()
    assert store.sent == [(led_at + 0.005, led_at + 0.005)]
    assert not store.hinter.lead(), "a moment has begun"
    store.now += 0.005
    assert store.hinter.lead()


async def test_a_hint_whose_leader_failed_goes_out_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Timed(monkeypatch, 0.0)
    assert store.hinter.lead()
    store.hinter.failed("ready")
    assert not store.hinter.lead(), "it is on its way"
    await store.hinter.close()
    assert store.sent == [(100.0, 100.0)]
    store.now += 9
    assert not store.hinter.lead(), "it would fail again"
    store.now += 1
    assert store.hinter.lead()


async def test_a_leader_that_fails_late_does_not_end_the_pause_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Timed(monkeypatch, 0.0, 0.0)
    assert store.hinter.lead()
    store.hinter.hint("ready")
    await store.hinter.close()
    store.hinter.failed("ready")
    await store.hinter.close()
    assert store.pauses == [0.005]


async def test_nobody_leads_past_a_hint_that_is_still_to_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one before it could not be sent."""

    class Broken(Timed):
        async def hint(self, kind: Hint) -> None:
            await super().hint(kind)
            self.hinter.hint("schedules")
            raise StoreUnavailable("gone")

    store = Broken(monkeypatch, 0.0)
    store.hinter.hint("ready")
    await store.hinter.close()
    assert not store.hinter.lead()
