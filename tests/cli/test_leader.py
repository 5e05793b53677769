"""`rota leader` and `rota singletons`, as a person or a script meets them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from pathlib import Path

from rota import Rota, Singleton
from tests.app.waiting import until
from tests.cli.test_commands import rota


def nothing() -> dict[str, int]:
    return {}


def service(url: str, name: str) -> Rota:
    app = Rota(url, replica=name)

    @app.leader_only
    async def lead() -> None:
        await asyncio.Event().wait()

    @app.singleton(state=nothing)
    async def importer(me: Singleton[dict[str, int]]) -> None:
        me.state = {"offset": me.state.get("offset", 0) + 1}
        await asyncio.Event().wait()

    return app


@asynccontextmanager
async def running(url: str, *names: str) -> AsyncIterator[Rota]:
    """Replicas of the service; both roles are led."""
    async with AsyncExitStack() as stack:
        apps = [await stack.enter_async_context(service(url, name)) for name in names]

        async def all_led() -> bool:
            seats, candidates = await apps[0].store.look_roles()
            rows = await apps[0].store.list_singletons()
            return len(candidates) == len(names) and all(seat.alive for seat in seats) and bool(rows and rows[0].state)

        await until(all_led)
        yield apps[0]


async def ask(*arguments: str, folder: Path, url: str) -> tuple[int, str]:
    done = await asyncio.to_thread(rota, *arguments, folder=folder, ROTA_URL=url)
    return done.returncode, done.stdout + done.stderr


async def test_roles_are_listed_and_shown(url: str, tmp_path: Path) -> None:
    async with running(url, "first"):
        code, said = await ask("leader", "list", "--json", folder=tmp_path, url=url)
        rows = {row["role"]: row for row in json.loads(said)}
        assert code == 0
        assert {role: (row["leader"], row["term"]) for role, row in rows.items()} == {
            "leader": ("first", 1), "singleton:importer": ("first", 1),
        }  # fmt: skip
        code, said = await ask("leader", "show", "leader", folder=tmp_path, url=url)
        assert (code, "first" in said) == (0, True), said
        code, said = await ask("leader", "show", "leader", "--json", folder=tmp_path, url=url)
        shown = json.loads(said)
        assert shown["candidates"] == [{"name": "first", "replica_id": shown["replica_id"]}]
        assert [name for name in shown if not name.isidentifier()] == []
        assert datetime.fromisoformat(shown["won_at"]).tzinfo is not None
        code, said = await ask("leader", "show", "nothing", folder=tmp_path, url=url)
        assert (code, "there is no role 'nothing'; there are: leader, singleton:importer" in said) == (1, True)
    code, _ = await ask("leader", "show", "leader", folder=tmp_path, url=url)
    assert code == 3


async def test_a_role_is_moved_to_the_replica_that_is_named(url: str, tmp_path: Path) -> None:
    async with running(url, "first", "second") as app:
        [seat] = [seat for seat in (await app.store.look_roles())[0] if seat.role == "leader"]
        other = "second" if seat.holder == "first" else "first"
        code, said = await ask("leader", "step-down", "leader", "--to", other, folder=tmp_path, url=url)
        assert (code, f"{other} is to lead next" in said) == (0, True), said

        async def moved() -> bool:
            [now] = [seat for seat in (await app.store.look_roles())[0] if seat.role == "leader"]
            return now.holder == other and now.alive

        await until(moved)
        code, said = await ask("leader", "step-down", "leader", "--to", "nobody", folder=tmp_path, url=url)
        assert (code, "'nobody' cannot take 'leader'" in said) == (1, True)


async def test_a_singleton_is_listed_shown_and_reset(url: str, tmp_path: Path) -> None:
    async with running(url, "first") as app:
        code, said = await ask("singletons", "list", "--json", folder=tmp_path, url=url)
        [row] = json.loads(said)
        assert (code, row["name"], row["replica"], row["healthy"]) == (0, "importer", "first", True)
        code, said = await ask("singletons", "show", "importer", "--json", folder=tmp_path, url=url)
        shown = json.loads(said)
        assert shown["state"] == {"offset": 1}
        assert [name for name in shown if not name.isidentifier()] == []
        assert datetime.fromisoformat(shown["started_at"]).tzinfo is not None
        code, said = await ask("singletons", "reset", "importer", "--yes", folder=tmp_path, url=url)
        assert (code, said.strip()) == (0, "'importer' begins anew")

        async def anew() -> bool:
            [row] = await app.store.list_singletons()
            [seat] = [seat for seat in (await app.store.look_roles())[0] if seat.role == "singleton:importer"]
            return seat.term == 2 and row.state == '{"offset":1}'

        await until(anew)
        code, said = await ask("singletons", "show", "importer", folder=tmp_path, url=url)
        assert (code, "reset by hand" in said) == (0, True), said
        code, said = await ask("singletons", "show", "nothing", folder=tmp_path, url=url)
        assert (code, "there is no singleton 'nothing'; there are: importer" in said) == (1, True)


async def test_a_singleton_moves_with_its_state(url: str, tmp_path: Path) -> None:
    async with running(url, "first", "second") as app:
        code, said = await ask("singletons", "move", "importer", folder=tmp_path, url=url)
        assert code == 0, said

        async def moved() -> bool:
            [row] = await app.store.list_singletons()
            return row.state == '{"offset":2}'

        await until(moved)
