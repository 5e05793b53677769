"""The beat that terms live by: when it was sent, and what its failure ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rota.errors import StoreUnavailable
from rota.replica import Heart
from rota.settings import Settings
from rota.store import Pulse
from rota.trust import Trust

ME = 1


class Body:
    """A replica whose beats take as long as they are told, or fail."""

    def __init__(self, clock: list[float]) -> None:
        self.clock, self.settings, self.takes = clock, Settings(), 0.0
        self.error: Exception | None = None
        self.alive, self.leads, self.id, self.jobs = True, True, ME, ()
        self.trusted_until, self.why, self.trust = 0.0, "", Trust()
        self.store, self.crew, self.lost = self, SimpleNamespace(holding=False), None

    async def join(self, *_: object, **__: object) -> Any:
        return self

    async def beat(self, *, holding: bool) -> Pulse:
        self.clock[0] += self.takes
        if self.error is not None:
            raise self.error
        return Pulse(alive=self.alive)

    async def close(self) -> None: ...

    def joined(self, _: object) -> None: ...

    def take_in(self, _: object) -> None: ...

    def cut_off(self, why: str) -> None:
        self.why = why


@pytest.fixture
def body(monkeypatch: pytest.MonkeyPatch) -> Body:
    now = [1000.0]
    for module in ("replica", "trust"):
        monkeypatch.setattr(f"rota.{module}.steady", lambda: now[0])
    return Body(now)


async def test_trust_is_counted_from_the_sending_of_a_beat(body: Body) -> None:
    body.takes = 2.0
    heart = Heart(cast(Any, body), lambda _: None)
    assert await heart.step() == body.settings.beat
    assert body.trusted_until == 1000.0 + body.settings.lease
    assert heart.attached


@pytest.mark.parametrize("error", [StoreUnavailable("cut"), RuntimeError("the driver's own")])
async def test_a_beat_that_fails_cuts_off_whatever_is_led(body: Body, error: Exception) -> None:
    heart = Heart(cast(Any, body), lambda _: None)
    await heart.step()
    body.error = error
    with pytest.raises(type(error)):
        await heart.step()
    assert "lost" in body.why
    assert not heart.attached


async def test_one_that_was_deposed_is_cut_off(body: Body) -> None:
    body.alive = False
    heart = Heart(cast(Any, body), lambda _: None)
    await heart.step()
    assert (body.trusted_until, body.why) == (0.0, "this replica was deposed")
    assert not heart.attached


@pytest.mark.parametrize("elector", ["advisory", "lease"])
async def test_a_cut_connection_frees_nothing_where_there_is_no_session_lock(body: Body, elector: str) -> None:
    body.settings = Settings(url="postgresql://localhost/x", elector=elector)
    heart = Heart(cast(Any, body), lambda _: None)
    await heart.step()
    before = body.trust.until
    body.error = StoreUnavailable("cut")
    with pytest.raises(StoreUnavailable):
        await heart.step()
    assert (body.trust.until == before) == (elector == "lease")
