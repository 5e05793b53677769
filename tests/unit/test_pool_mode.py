"""The mode of a pooler, told by the process ids that two connections see."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest

from rota.errors import PooledConnection, StoreUnavailable
from rota.stores.postgres import route, session
from rota.stores.postgres.route import Route, local, options, pool_mode


class Scripted:
    """A connection that sees these process ids, one after the other; and overhears another, or somebody else."""

    def __init__(self, *pids: int | Exception, beside: Scripted | None = None, overhears: str | None = "") -> None:
        self._pids: Iterator[int | Exception] = iter(pids)
        self._beside, self._overhears = beside, overhears
        self.said = ""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        yield

    async def execute(self, query: str) -> None:
        self.said = query

    async def fetchrow(self, query: str, *of: int) -> tuple[Any, ...]:
        pid = next(self._pids)
        if pid == 0:
            await asyncio.sleep(60)
        if isinstance(pid, Exception):
            raise pid
        if not of:
            return "0", pid
        return pid, self._beside.said if self._beside and self._overhears == "" else self._overhears


@pytest.mark.parametrize(
    ("first", "second", "mode"),
    [
        ((7, 7, 7, 7, 7, 7), (8, 8, 8, 8, 8), Route.SESSION),
        ((7, 9), (8,), Route.TRANSACTION),
        ((7, 7, 7, 7, 7, 9), (8, 8, 8, 8, 8), Route.TRANSACTION),
        ((7, 9), (7,), Route.TRANSACTION),
        ((7, 0), (8,), Route.TRANSACTION),
    ],
    ids=["own sessions", "another at once", "another at last", "the other has it", "it waits for the other"],
)
async def test_a_session_that_changes_is_not_ones_own(
    monkeypatch: pytest.MonkeyPatch, first: tuple[int, ...], second: tuple[int, ...], mode: Route
) -> None:
    monkeypatch.setattr(route, "_PATIENCE", 0.05)
    a = Scripted(*first)
    assert await _mode(a, Scripted(*second, beside=a)) is mode


@pytest.mark.parametrize(
    ("overhears", "mode"),
    [("select of_a_third", Route.TRANSACTION), (None, Route.SESSION)],
    ids=["a third one used it in between", "the server does not tell"],
)
async def test_a_session_that_comes_back_is_not_ones_own_either(overhears: str | None, mode: Route) -> None:
    a = Scripted(*[7] * 6)
    assert await _mode(a, Scripted(*[8] * 5, beside=a, overhears=overhears)) is mode


async def test_a_pooler_with_nothing_free_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route, "_PATIENCE", 0.05)
    with pytest.raises(StoreUnavailable, match="no server connection free"):
        await _mode(Scripted(7), Scripted(0))


async def test_statement_mode_is_refused() -> None:
    told = asyncpg.ProtocolViolationError("transaction blocks not allowed in statement pooling mode")
    with pytest.raises(PooledConnection, match="statement mode, which has no transactions"):
        await _mode(Scripted(told), Scripted())


def test_a_connection_is_told_only_what_its_way_takes() -> None:
    settings = {"lock_timeout": "5s", "plan_cache_mode": "auto", "tcp_user_timeout": "1", "idle_session_timeout": "5s"}
    assert options(Route.DIRECT, "me", settings)["server_settings"] == settings | {"application_name": "me"}
    assert options(Route.TRANSACTION, "me", settings) == {
        "server_settings": {"application_name": "me"},
        "statement_cache_size": 0,
    }
    assert local(settings) == "set local lock_timeout = '5s'"


async def _mode(first: Any, second: Any) -> Route:
    return await pool_mode(first, second)


def test_our_end_of_the_control_connection_has_keepalives_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        transport = SimpleNamespace(get_extra_info=lambda _: ours)
        session.keep_alive(SimpleNamespace(_transport=transport))
        assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 2
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 5000
