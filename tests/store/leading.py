"""Replicas that would lead, and what happens to them: the steps of the tests of roles and fences."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import apsw
import asyncpg

from rota.contract.roles import Fence, Seat
from rota.store import Lifeline, Store
from tests.harness import execute
from tests.store.steps import eventually, several

ROLE = "leader"


@asynccontextmanager
async def standing(url: str, count: int = 2) -> AsyncIterator[tuple[Store, list[Lifeline]]]:
    """A store, and replicas that would lead."""
    async with AsyncExitStack() as stack:
        stores = await stack.enter_async_context(several(url, count))
        lines = [await store.join(f"r{n}", "host", n, []) for n, store in enumerate(stores)]
        for line in lines:
            stack.push_async_callback(line.close)
            await stores[0].stand(line.replica_id, [ROLE])
        yield stores[0], lines


async def seat(store: Store, role: str = ROLE) -> Seat:
    [found] = [seat for seat in (await store.look_roles())[0] if seat.role == role]
    return found


async def win(store: Store, line: Lifeline, *, seen: int = 0, nonce: int = 7, **more: Any) -> Fence | None:
    return await store.win_role(ROLE, line.replica_id, seen=seen, nonce=nonce, elector="test", **more)


async def won(store: Store, line: Lifeline, **more: Any) -> Fence:
    fence = await win(store, line, **more)
    assert fence is not None
    return fence


async def dies(store: Store, line: Lifeline) -> None:
    """Its process is killed: nothing is said, and its session lock is free."""
    await line.close()

    async def dead() -> bool:
        return not (await seat(store)).alive

    await eventually(dead)


async def silent(url: str, line: Lifeline, seconds: float) -> None:
    """It has not beaten for so long."""
    if url.startswith("sqlite"):
        moment = f"strftime('%Y-%m-%d %H:%M:%f000', 'now', '-{seconds} seconds')"
    else:
        moment = f"clock_timestamp() - interval '{seconds} seconds'"
    await execute(url, f"update replicas set beat_at = {moment} where id = {line.replica_id}")


@asynccontextmanager
async def transaction(url: str) -> AsyncIterator[Any]:
    """One of the user's own."""
    if url.startswith("sqlite"):
        lite = apsw.Connection(url.removeprefix("sqlite:///"))
        lite.set_busy_timeout(5000)
        try:
            lite.execute("begin immediate")
            yield lite
            lite.execute("commit")
        finally:
            lite.close()
        return
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()
