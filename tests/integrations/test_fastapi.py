"""The FastAPI example on real stores: the lifespan is a replica."""

from __future__ import annotations

import asyncio
from types import ModuleType

import httpx
import pytest

from tests.integrations.examples import EXAMPLES, imported
from tests.patience import PATIENCE


@pytest.fixture
def service(url: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return imported(EXAMPLES / "fastapi" / "api.py", url, monkeypatch)


async def test_a_request_enqueues_and_the_job_runs_while_the_lifespan_lasts(service: ModuleType) -> None:
    api, rota = service.api, service.rota
    async with api.router.lifespan_context(api):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://shop") as client:
            answer = await client.post("/orders/7")
            assert answer.status_code == 202
            assert (await client.post("/orders/7")).json() == answer.json()
            run = answer.json()["run"]
            assert await rota.run(run).result(PATIENCE) == "order 7 is on its way"
            assert (await client.get(f"/runs/{run}")).json() == {
                "state": "succeeded",
                "result": '"order 7 is on its way"',
            }
            assert (await client.get("/runs/99")).status_code == 404
            assert len(await rota.store.list_replicas()) == 1
    async with rota.client():
        assert await rota.store.list_replicas() == []


async def test_a_plain_endpoint_waits_from_its_thread(service: ModuleType) -> None:
    api, rota = service.api, service.rota

    def plain(number: int) -> str:  # FastAPI runs it in a thread, while the loop is the app's
        run = rota.wait(service.ship.enqueue(number), timeout=PATIENCE)
        return str(rota.wait(run.result(), timeout=PATIENCE))

    api.add_api_route("/plain/{number}", plain, methods=["POST"])
    async with asyncio.timeout(PATIENCE), api.router.lifespan_context(api):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://shop") as client:
            assert (await client.post("/plain/8")).json() == "order 8 is on its way"
