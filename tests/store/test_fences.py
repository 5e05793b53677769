"""What a leader shows with every durable write, on the user's own connection."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import msgspec
import pytest

from rota.contract.roles import Fence
from rota.errors import BadInput, LeadershipLost, StaleWrite, StoreUnavailable
from tests.harness import Databases
from tests.patience import PATIENCE
from tests.store.leading import ROLE, dies, standing, transaction, win, won


async def test_the_fence_of_the_present_term_holds(url: str) -> None:
    async with standing(url) as (store, [first, _]):
        fence = await won(store, first)
        async with transaction(url) as connection:
            await store.check_fence(fence, connection)


@pytest.mark.parametrize("wrong", [{"term": 1}, {"term": 3}, {"nonce": 8}, {"nonce": 0}, {"role": "other"}])
async def test_a_fence_is_compared_for_equality(url: str, wrong: dict[str, Any]) -> None:
    async with standing(url) as (store, [first, _]):
        await won(store, first, nonce=6)
        present = await won(store, first, seen=1, nonce=7)
        async with transaction(url) as connection:
            with pytest.raises(LeadershipLost):
                await store.check_fence(msgspec.structs.replace(present, **wrong), connection)


async def test_no_other_term_begins_before_a_fenced_transaction_ends(url: str) -> None:
    async with standing(url) as (store, [first, second]):
        fence = await won(store, first)
        async with transaction(url) as connection:
            await store.check_fence(fence, connection)
            deposing = asyncio.create_task(win(store, second, nonce=8, force=True))
            done, _ = await asyncio.wait({deposing}, timeout=0.3)
            assert not done
        assert await deposing == Fence(role=ROLE, term=2, nonce=8)


async def test_a_fence_needs_a_transaction_on_a_connection_of_the_stores_kind(url: str) -> None:
    async with standing(url) as (store, [first, _]):
        fence = await won(store, first)
        with pytest.raises(BadInput, match="connection must be a"):
            await store.check_fence(fence, object())
        lite = url.startswith("sqlite")
        connection: Any = apsw.Connection(url.removeprefix("sqlite:///")) if lite else await asyncpg.connect(url)
        with pytest.raises(BadInput, match="in a transaction"):
            await store.check_fence(fence, connection)
        closing = connection.close()
        if closing is not None:
            await closing


async def test_a_fenced_transaction_that_falls_silent_is_ended_by_the_server(
    databases: Databases, tmp_path: Path
) -> None:
    """Its process is frozen, or cut off: it must not keep the others from beginning a term, or from burying it."""
    url = databases.new("postgres", tmp_path)
    async with standing(url) as (store, [first, second]):
        fence = await won(store, first)
        connection = await asyncpg.connect(url)
        try:
            await connection.execute("begin")
            await store.check_fence(fence, connection)
            await dies(store, first)
            async with asyncio.timeout(PATIENCE):
                while True:
                    try:
                        if await win(store, second, seen=1, nonce=8) is not None:
                            break
                    except (StaleWrite, StoreUnavailable):
                        continue
        finally:
            connection.terminate()
