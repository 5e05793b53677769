"""Which elector an app gets, and what it says about it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rota import Rota
from rota.events import ElectorReplaced, LeadershipWon
from rota.settings import Elector
from tests.app.waiting import until


def led_app(url: str, elector: Elector, won: list[LeadershipWon]) -> Rota:
    app = Rota(url, elector=elector)
    app.events.subscribe(LeadershipWon, won.append)

    @app.leader_only
    async def lead() -> None:
        await asyncio.Event().wait()

    return app


@pytest.mark.parametrize("elector", ["", "lease", "standalone"])
async def test_the_elector_is_chosen_by_a_setting_and_stored_with_the_term(url: str, elector: Elector) -> None:
    won: list[LeadershipWon] = []
    app = led_app(url, elector, won)
    expected = elector or ("file" if url.startswith("sqlite") else "advisory")
    async with app:
        await until(lambda: asyncio.sleep(0, app.leads()))
        [seat] = (await app.store.look_roles())[0]
    assert (seat.elector, [event.elector for event in won]) == (expected, [expected])


async def test_without_a_cluster_the_store_decides_and_says_so(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    won: list[LeadershipWon] = []
    replaced: list[ElectorReplaced] = []
    app = led_app(url, "kubernetes", won)
    app.events.subscribe(ElectorReplaced, replaced.append)
    async with app:
        await until(lambda: asyncio.sleep(0, app.leads()))
    own = "file" if url.startswith("sqlite") else "advisory"
    assert [(event.elector, event.instead) for event in replaced] == [("kubernetes", own)]
    assert [event.elector for event in won] == [own]
