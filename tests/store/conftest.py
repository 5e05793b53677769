"""One Postgres database of each kind serves all these tests, emptied in between: to make hundreds takes far longer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import pytest

from tests.harness import KINDS, Databases
from tests.patience import PATIENCE

POSTGRES = [kind for kind in KINDS if kind != "sqlite"]
OTHERS = "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and usename is not null"


@pytest.fixture(scope="session")
def reused() -> dict[str, str]:
    return {}


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, databases: Databases, reused: dict[str, str], tmp_path: Path) -> str:
    """An empty database of each kind."""
    return empty(request.param, databases, reused, tmp_path)


def empty(kind: str, databases: Databases, reused: dict[str, str], tmp_path: Path) -> str:
    if kind == "sqlite":
        return databases.new(kind, tmp_path)
    if kind not in reused:
        reused[kind] = databases.new(kind, tmp_path)
    asyncio.run(emptied(reused[kind]))
    return reused[kind]


async def emptied(url: str) -> None:
    """The last test's sessions may not have ended yet, and would keep their locks."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("set client_min_messages = warning")
        async with asyncio.timeout(PATIENCE):
            while await connection.fetchval(f"select count(pg_terminate_backend(pid)) {OTHERS}"):
                await asyncio.sleep(0.005)
        await connection.execute("drop schema if exists rota cascade; drop table if exists public.effects")
    finally:
        await connection.close()
