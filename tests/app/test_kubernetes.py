"""Apps whose leader a Kubernetes Lease decides, with real stores behind them."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

from rota import LeadershipLost, Rota
from rota.events import LeadershipEnded
from tests.app.waiting import until
from tests.electors.apiserver import ApiServer
from tests.patience import PATIENCE

QUICK = {"kubernetes_lease_duration": 3.0, "kubernetes_renew_deadline": 2.0, "kubernetes_retry_period": 0.2}


def service(url: str, server: ApiServer, folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Rota:
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(folder, name)))
    monkeypatch.delenv("POD_NAME", raising=False)
    settings: dict[str, Any] = {"elector": "kubernetes", "replica": name} | QUICK
    app = Rota(url, **settings)

    @app.leader_only
    async def lead() -> None:
        await asyncio.Event().wait()

    return app


async def test_a_lease_decides_and_the_store_has_the_term(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ApiServer() as server:
        first, second = (service(url, server, tmp_path, name, monkeypatch) for name in ("first", "second"))
        async with first:
            await until(lambda: asyncio.sleep(0, first.leads()))
            async with second:
                [seat] = (await second.store.look_roles())[0]
                assert (seat.term, seat.holder, seat.elector) == (1, "first", "kubernetes")
                await second.store.ask_step_down("leader")
                await until(lambda: asyncio.sleep(0, second.leads()))
                assert not first.leads()
                [seat] = (await second.store.look_roles())[0]
                assert (seat.term, seat.holder) == (2, "second")


async def test_a_leader_that_cannot_renew_its_lease_steps_down(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ApiServer() as server:
        app, ended = service(url, server, tmp_path, "first", monkeypatch), asyncio.Event()
        loop = asyncio.get_running_loop()

        def heard(event: LeadershipEnded) -> None:
            if event.lost:
                loop.call_soon_threadsafe(ended.set)

        app.events.subscribe(LeadershipEnded, heard)
        async with app:
            await until(lambda: asyncio.sleep(0, app.leads()))
            me = app.leadership()
            assert me is not None
            assert me.trusted_for < math.inf
            server.faults["first"] = "mute"
            await asyncio.wait_for(ended.wait(), PATIENCE)
            with pytest.raises(LeadershipLost):
                me.check()
            server.faults.clear()
