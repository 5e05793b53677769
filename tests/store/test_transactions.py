"""Transactional runs: what the handler writes and how its run ended are one commit."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from rota.errors import BadInput, RunLost
from rota.store import NewRun
from tests.harness import execute
from tests.store.steps import JOB, claim_one, count, enqueue, finish, get, ledger, opened, outcome, running


async def table_of_effects(url: str) -> str:
    """A table of the user's, by the name that every session knows it by."""
    name = "main.effects" if url.startswith("sqlite") else "public.effects"
    await execute(url, f"create table {name} (n integer)")
    return name


async def say(connection: Any, sql: str) -> None:
    """SQL on the connection that a handler gets, whether its driver is async or not."""
    said = connection.execute(sql)
    if inspect.isawaitable(said):
        await said


async def test_a_transaction_commits_the_handlers_writes_with_the_outcome(url: str) -> None:
    async with opened(url) as store:
        effects = await table_of_effects(url)
        held = await running(store)
        async with store.transaction(held) as (connection, done):
            await say(connection, f"insert into {effects} values (1)")
            [then] = await store.enqueue([NewRun(job_id=JOB, key="from inside")], connection=connection)
            await done(outcome(held, result="1"))
            assert await count(url, effects) == 0
            assert await store.get_runs([then.id]) == []
        assert await count(url, effects) == 1
        assert (await get(store, held.id)).state == "succeeded"
        assert (await claim_one(store)).id == then.id


async def test_an_exception_rolls_the_transaction_back(url: str) -> None:
    async with opened(url) as store:
        effects = await table_of_effects(url)
        held = await running(store)

        async def handler() -> None:
            async with store.transaction(held) as (connection, done):
                await say(connection, f"insert into {effects} values (1)")
                await store.enqueue([NewRun(job_id=JOB, key="from inside")], connection=connection)
                await done(outcome(held))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await handler()
        assert await count(url, effects) == 0
        assert len(await ledger(store)) == 1
        assert (await get(store, held.id)).state == "running"
        assert held.id in (await finish(store, held)).accepted


async def test_a_lost_run_takes_its_transaction_with_it(url: str) -> None:
    async with opened(url) as store:
        effects = await table_of_effects(url)
        held = await running(store)
        await store.bury([])  # The claim belongs to no replica.
        taken = await claim_one(store)
        assert taken.id == held.id

        async def handler() -> None:
            async with store.transaction(held) as (connection, done):
                await say(connection, f"insert into {effects} values (1)")
                await done(outcome(held))

        with pytest.raises(RunLost):
            await handler()
        assert await count(url, effects) == 0
        assert taken.id in (await finish(store, taken)).accepted


@pytest.mark.parametrize("error", [OSError("the printer is on fire"), TimeoutError("mine"), KeyError("k")], ids=repr)
async def test_the_handlers_own_error_comes_out_as_it_is(url: str, error: Exception) -> None:
    async with opened(url) as store:
        held = await running(store)
        with pytest.raises(type(error)) as caught:
            async with store.transaction(held):
                raise error
        assert caught.value is error


async def test_a_statement_of_the_handler_that_fails_is_not_blamed_on_rotas_tables(url: str) -> None:
    async with opened(url) as store:
        held = await running(store)
        with pytest.raises(Exception, match="no_such_table") as caught:
            async with store.transaction(held) as (connection, _):
                await say(connection, "insert into no_such_table values (1)")
        assert "rota" not in str(caught.value)
        assert (await get(store, held.id)).state == "running"


async def test_the_store_goes_on_while_a_handler_is_in_its_transaction(url: str) -> None:
    async with opened(url) as store, opened(url) as other:
        held = await running(store)
        async with store.transaction(held) as (_, done):
            assert (await get(store, held.id)).state == "running"
            assert (await get(other, held.id)).state == "running"
            await done(outcome(held))
        assert await enqueue(other) != held.id


async def test_a_connection_of_another_kind_is_refused(url: str) -> None:
    async with opened(url) as store:
        with pytest.raises(BadInput, match="connection"):
            await store.enqueue([NewRun(job_id=JOB)], connection=object())
