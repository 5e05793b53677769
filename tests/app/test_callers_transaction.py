"""Runs that are part of the caller's transaction, in every library that a caller may use."""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rota import Rota
from rota.settings import Settings
from rota.store import JobRow, NewRun, RunFilter
from rota.stores import open_store
from tests.app.callers import APSW, CASES, AsyncpgOfAPool, Caller, Django, PlainCaller, Psycopg, SQLite3, calling
from tests.harness import Databases, execute, ready
from tests.patience import PATIENCE

# So seldom is the store looked at without being told: what is picked up in time was told.
UNHURRIED: dict[str, Any] = {"beat": 100.0, "lease": 250.0, "dead_after": 300.0}
EVERY_KIND = [
    NewRun(job_id="free", parameters='{"text":"100% \\u0000 ? :a $1 ünï"}', correlation_id="c-%s", parent_id=7),
    NewRun(job_id="free", priority=1, key="it's %(a)s"),
    NewRun(job_id="limited", priority=9),
    NewRun(job_id="free", run_at=datetime(2020, 1, 1, 12, 30, 0, 123456, tzinfo=UTC)),
    NewRun(job_id="free", run_at=datetime(2999, 1, 1, tzinfo=UTC), delay=5.0),
    NewRun(job_id="free", priority=1, key="it's %(a)s"),
    NewRun(job_id="limited", delay=3600.0),
]
PLACES = """
select j.job_id, j.idempotency_key, j.priority, j.parent_id, j.state, j.attempt, cast(j.parameters as text),
       case when j.correlation_id = cast(j.id as text) then 'own' else j.correlation_id end,
       case when j.run_at = j.created_at then 'now' when j.job_id = 'limited' then 'soon'
            else cast(j.run_at as text) end,
       (select count(*) from ready r where {is_one_of} and r.job_id = j.job_id),
       (select count(*) from delayed d where d.id = j.id and d.run_at = j.run_at),
       (select count(*) from waiting w where w.id = j.id and w.job_id = j.job_id)
from job_runs j order by j.id
"""


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0].__name__}-{case[1]}")
def case(request: pytest.FixtureRequest, databases: Databases, tmp_path: Path) -> tuple[type[Caller], str]:
    kind, store = request.param
    return kind, databases.new(store, tmp_path)


async def _mail(to: str) -> str:
    return to


async def _prepared(url: str) -> None:
    """The tables are there, and nobody has the file open."""
    async with Rota(url).client() as app:
        await app.store.declare([JobRow(job_id="limited", concurrency_limit=1)], [])


async def test_a_rollback_leaves_nothing_and_a_commit_is_picked_up_at_once(case: tuple[type[Caller], str]) -> None:
    kind, url = case
    app = Rota(url, **UNHURRIED)
    mail = app.job("mail")(_mail)
    await _prepared(url)
    second_copy = url.startswith("sqlite") and kind is not APSW
    async with AsyncExitStack() as stack:
        if not second_copy:
            await stack.enter_async_context(app)
        async with calling(kind, url) as caller:
            await caller.begin()
            await caller.enqueue(mail, "nobody")
            await caller.rollback()
            await caller.begin()
            run = await caller.enqueue(mail, "ada")
            await caller.commit()
        if second_copy:
            await stack.enter_async_context(app)
        assert await run.result(PATIENCE) == "ada"
        assert [row.id for row in await app.store.find_runs(RunFilter(job_id="mail"))] == [run.id]


async def test_a_caller_makes_what_the_store_itself_would_make(case: tuple[type[Caller], str]) -> None:
    kind, url = case
    await _prepared(url)
    store = open_store(Settings(url=url))
    await store.open()
    made = await store.enqueue(EVERY_KIND)
    await store.close()
    places = PLACES.format(is_one_of="r.id = j.id" if url.startswith("sqlite") else "j.id = any(r.ids)")
    wanted = await execute(url, places)
    await execute(url, "delete from job_runs")
    for place in ("ready", "delayed", "waiting"):
        await execute(url, f"delete from {place}")
    async with calling(kind, url) as caller:
        await caller.begin()
        again = await caller.make(open_store(Settings(url=url)), EVERY_KIND)
        await caller.commit()
    assert await execute(url, places) == wanted
    assert [run.created for run in again] == [run.created for run in made] == [True] * 5 + [False, True]
    assert again[5].id == again[1].id
    assert [run.id for run in again if run.created] == [
        row[0] for row in await execute(url, "select id from job_runs order by id")
    ]


async def test_a_key_makes_one_run_within_a_transaction_and_after_it(case: tuple[type[Caller], str]) -> None:
    kind, url = case
    app = Rota(url)
    mail = app.job("mail")(_mail)
    await _prepared(url)
    async with calling(kind, url) as caller:
        await caller.begin()
        first = await caller.enqueue(mail, "a", key="k")
        second = await caller.enqueue(mail, "b", key="k")
        await caller.commit()
        await caller.begin()
        third = await caller.enqueue(mail, "c", key="k")
        await caller.commit()
    assert {first.id, second.id, third.id} == {first.id}
    assert (first.created, second.created, third.created) == (True, False, False)
    assert len(await ready(url)) == 1


async def test_one_that_fails_takes_the_others_of_its_call_with_it(case: tuple[type[Caller], str]) -> None:
    kind, url = case
    await _prepared(url)
    store = open_store(Settings(url=url))
    async with calling(kind, url) as caller:
        await caller.begin()
        kept = []
        if url.startswith("sqlite"):
            # There a failed statement does not end the transaction.
            kept = await caller.make(store, [NewRun(job_id="free")])
        with pytest.raises(Exception, match=r"(?i)json"):
            await caller.make(store, [NewRun(job_id="free"), NewRun(job_id="limited", parameters="{")])
        await (caller.commit() if kept else caller.rollback())
    for table in ("job_runs", "ready"):
        assert await execute(url, f"select id from {table}") == [(run.id,) for run in kept]
    assert await execute(url, "select id from waiting") == []


@pytest.mark.parametrize("kind", [Django, APSW, SQLite3, Psycopg, AsyncpgOfAPool])
async def test_outside_of_a_transaction_it_is_all_or_none_by_itself(
    kind: type[Caller], databases: Databases, tmp_path: Path
) -> None:
    for store in kind.stores:
        url = databases.new(store, tmp_path)
        await _prepared(url)
        async with calling(kind, url) as caller:
            if isinstance(caller, PlainCaller):
                await caller.do(caller.autocommit)
            with pytest.raises(Exception, match=r"(?i)json"):
                await caller.make(
                    open_store(Settings(url=url)), [NewRun(job_id="free"), NewRun(job_id="free", parameters="{")]
                )
            [made] = await caller.make(open_store(Settings(url=url)), [NewRun(job_id="free")])
        assert await execute(url, "select id from job_runs") == [(made.id,)]
        assert await ready(url) == [made.id]
