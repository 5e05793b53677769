"""Probes, over real HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
import time
import urllib.error
import urllib.request
from typing import Any

import pytest

from rota import Misconfigured, Rota, Singleton
from tests.app.waiting import until
from tests.harness import move_clock
from tests.patience import PATIENCE


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def ask(port: int, path: str) -> tuple[int, Any]:
    def get() -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    return await asyncio.to_thread(get)


async def test_the_replica_that_owns_an_unhealthy_singleton_is_not_ready(url: str) -> None:
    port = free_port()
    app, execute = Rota(url, probes=f"127.0.0.1:{port}"), asyncio.Event()

    @app.singleton(expect_every=60)
    async def importer(me: Singleton[None]) -> None:
        await execute.wait()
        await me.executed()

    async with app:
        await until(lambda: app.store.list_singletons("importer"))
        assert await ask(port, "/livez") == (200, {"alive": True})
        assert await ask(port, "/readyz") == (200, {"ready": True, "reasons": []})
        await move_clock(url, 125)
        reasons = ["singleton 'importer' is unhealthy"]
        assert await ask(port, "/readyz") == (503, {"ready": False, "reasons": reasons})
        assert (await ask(port, "/livez"))[0] == 200
        execute.set()

        async def ready() -> bool:
            # Moved for longer than two heartbeats as well: it beats once more.
            [row] = await app.store.list_singletons("importer")
            await app.store.beat_singleton("importer", app.leadership("singleton:importer").fence)  # type: ignore[union-attr]
            return bool(row.run_count) and (await ask(port, "/readyz"))[0] == 200

        await until(ready)
        assert (await ask(port, "/metrics"))[0] == 404


async def test_a_blocked_loop_does_not_change_the_answers(url: str) -> None:
    port, answers = free_port(), []
    app = Rota(url, probes=f"127.0.0.1:{port}")
    async with app:
        asking = asyncio.ensure_future(asyncio.to_thread(lambda: answers.append(asyncio.run(ask(port, "/readyz")))))
        await asyncio.sleep(0)
        deadline = time.monotonic() + PATIENCE
        while not answers and time.monotonic() < deadline:
            time.sleep(0.01)  # noqa: ASYNC251 - a handler that should not
        await asking
    assert answers == [(200, {"ready": True, "reasons": []})]


async def test_an_address_that_cannot_be_had_is_said(url: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Misconfigured, match=f"probes cannot listen on {address}"):
            async with Rota(url, probes=address):
                pass
    with pytest.raises(Misconfigured, match="is not HOST:PORT"):
        Rota(url, probes="8080")
