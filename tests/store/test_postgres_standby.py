"""A commit that waits for a standby: nothing cuts the wait short, and nobody else waits with it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import asyncpg
import pytest

from rota.store import Enqueued, NewRun
from rota.stores.postgres.connection import POOLED
from rota.stores.postgres.store import PostgresStore
from tests.harness import Server, execute, ready
from tests.patience import PATIENCE
from tests.store.steps import JOB, opened

T = TypeVar("T")


class Primary:
    """A server to itself, which can be told to wait for a standby that does not exist."""

    def __init__(self, server: Server) -> None:
        self.server, self.url = server, server.new_database()

    def wait_for(self, standby: str) -> None:
        self.server.psql(f"alter system set synchronous_standby_names = '{standby}'")
        self.server.psql("select pg_reload_conf()")

    async def waiting(self) -> list[int]:
        """The sessions whose commits wait."""
        rows = await execute(self.url, "select pid from pg_stat_activity where wait_event = 'SyncRep'")
        return [int(str(pid)) for (pid,) in rows]

    async def stuck(self, write: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """The first such write whose commit waits: the server's processes learn of the standby one by one."""
        self.wait_for("nobody")
        while True:
            writing = asyncio.create_task(write())
            while not writing.done():
                if await self.waiting():
                    return writing


@pytest.fixture
def primary(own_server: Server) -> Primary:
    return Primary(own_server)


@pytest.mark.parametrize("tell", [True, False])
async def test_a_run_is_made_when_the_standby_has_it_and_not_when_time_is_up(
    primary: Primary, monkeypatch: pytest.MonkeyPatch, tell: bool
) -> None:
    monkeypatch.setitem(POOLED, "statement_timeout", "200ms")
    async with opened(primary.url) as store:
        assert isinstance(store, PostgresStore)
        await store.enqueue_one(NewRun(job_id=JOB))  # and numbers for the next ones

        async def enqueue() -> Enqueued:
            while (await store.pool.fetch("show synchronous_standby_names"))[0][0] != "nobody":
                pass
            return await store.enqueue_one(NewRun(job_id=JOB), tell=tell)

        making = await primary.stuck(enqueue)
        await asyncio.wait({making}, timeout=1.0)  # many times over
        assert not making.done()
        primary.wait_for("")
        made = await making
        assert (made.created, made.told) == (True, False)


async def test_whoever_keeps_all_others_from_notifying_keeps_nobody_from_enqueuing(
    primary: Primary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commit, which has a word to say, does not come to an end."""
    for timeout in ("lock_timeout", "statement_timeout"):
        monkeypatch.setitem(POOLED, timeout, "0")
    async with opened(primary.url) as store, frozen_while_it_notifies(primary), asyncio.timeout(PATIENCE):
        made = await store.enqueue_one(NewRun(job_id=JOB), tell=True)
        assert (made.created, made.told) == (True, False)
        assert await ready(primary.url) == [made.id]


@asynccontextmanager
async def frozen_while_it_notifies(primary: Primary) -> AsyncIterator[None]:
    other = await asyncpg.connect(primary.url)
    await other.execute("create table other (n int)")
    stuck = await primary.stuck(lambda: other.execute("begin; insert into other values (1); notify anything; commit"))
    [pid] = await primary.waiting()
    os.kill(pid, signal.SIGSTOP)
    try:
        primary.wait_for("")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
        await stuck
        await other.close()
