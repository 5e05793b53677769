"""Ids as a user makes them: in a handler, in a client, and not without a store."""

from __future__ import annotations

import pytest

from rota import NotOpen, Rota
from tests.harness import execute
from tests.patience import PATIENCE


async def test_a_handler_and_a_client_make_ids(url: str) -> None:
    app = Rota(url)

    @app.job()
    async def order() -> int:
        return await app.ids.next()

    async with app:
        first = await (await order.enqueue()).result(PATIENCE)
        assert isinstance(first, int)
        second = await app.ids.next()
    async with app.client():
        third, fourth = await app.ids.many(2)
    assert first < second < third < fourth
    # Opened again within the minute, it goes on with its node.
    assert await execute(url, "select count(*) from nodes") == [(1,)]


async def test_without_a_store_there_are_no_ids(url: str) -> None:
    app = Rota(url)
    with pytest.raises(NotOpen):
        await app.ids.next()
    async with app.client():
        await app.ids.next()
    for make in (app.ids.next(), app.ids.many(0)):
        with pytest.raises(NotOpen):
            await make
