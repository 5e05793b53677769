"""What is particular to Postgres: replies that never come, rows that somebody has locked."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from rota.clock import steady
from rota.contract.places import nowhere
from rota.errors import BadInput, StaleWrite
from rota.store import Enqueued, JobRow, NewRun
from rota.stores.postgres import caller, enqueue, ticks
from rota.stores.postgres.connection import POOLED, QUERIES
from rota.stores.postgres.pool import Pool
from rota.stores.postgres.store import PostgresStore
from tests.app.waiting import until
from tests.harness import Databases, execute, ready
from tests.store.steps import JOB, decide, hour, opened, scheduled, set_clock, several, tick


@pytest.mark.parametrize("other", [JOB, "other"], ids=["one statement", "a transaction"])
async def test_an_enqueue_whose_reply_is_lost_makes_each_run_once(
    databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    url, real, calls = databases.new("postgres", tmp_path), PostgresStore._make, 0

    async def cut_after_commit(*arguments: Any) -> list[Enqueued]:
        nonlocal calls
        calls += 1
        made = await real(*arguments)
        if calls == 1:
            raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")
        return made

    async with opened(url) as store:
        monkeypatch.setattr(PostgresStore, "_make", cut_after_commit)
        made = await store.enqueue([NewRun(job_id=JOB), NewRun(job_id=JOB, key="k"), NewRun(job_id=other)])
        assert (calls, [each.created for each in made]) == (2, [True, True, True])
        assert await execute(url, "select id from job_runs order by id") == [(each.id,) for each in made]
        assert await ready(url) == [each.id for each in made]


@pytest.mark.parametrize("count", [1, 2])
async def test_ids_that_were_fetched_long_ago_are_not_used(
    databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Or a run of today would have an id of last month: at the far end of every list, and in the way of pruning."""
    url = databases.new("postgres", tmp_path)
    async with opened(url) as store, opened(url) as other:
        ahead = 0.0
        monkeypatch.setattr(enqueue, "steady", lambda: steady() + ahead)
        [first] = await store.enqueue([NewRun(job_id=JOB)])
        made = await other.enqueue([NewRun(job_id=JOB)] * 100)
        [soon] = await store.enqueue([NewRun(job_id=JOB)])
        ahead = 61.0
        late = await store.enqueue([NewRun(job_id=JOB)] * count)
        assert first.id < soon.id < min(each.id for each in made)
        assert max(each.id for each in made) < min(each.id for each in late)


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("done", [True, False])
async def test_one_run_whose_reply_is_lost_is_made_once(
    databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str | None, done: bool
) -> None:
    url, real = databases.new("postgres", tmp_path), Pool.execute

    async def cut(pool: Pool, query: str, *arguments: Any) -> Any:
        if done or query not in enqueue._ENQUEUES:
            said = await real(pool, query, *arguments)
        if query not in enqueue._ENQUEUES:
            return said
        raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")

    async with opened(url) as store:
        monkeypatch.setattr(Pool, "execute", cut)
        [made] = await store.enqueue([NewRun(job_id=JOB, key=key)])
        assert made.created
        assert await execute(url, "select id from job_runs") == [(made.id,)]
        assert await ready(url) == [made.id]


@pytest.mark.parametrize("done", [True, False])
async def test_one_run_that_is_told_of_and_whose_reply_is_lost_is_made_once(
    databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    url, real = databases.new("postgres", tmp_path), Pool.fetch

    async def cut(pool: Pool, query: str, *arguments: Any) -> Any:
        if done or query != QUERIES["enqueue.told"]:
            answer = await real(pool, query, *arguments)
        if query == QUERIES["enqueue.told"]:
            raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")
        return answer

    async with opened(url) as store:
        monkeypatch.setattr(Pool, "fetch", cut)
        made = await store.enqueue_one(NewRun(job_id=JOB), tell=True)
        assert (made.created, made.told) == (True, False)
        assert await execute(url, "select id from job_runs") == [(made.id,)]
        assert await ready(url) == [made.id]


async def no_word_goes_out(url: str, code: str) -> None:
    """From now on, to tell the others of a run fails with this error."""
    [(source,)] = await execute(url, "select pg_get_functiondef('rota.enqueue_told'::regproc)")
    told = "perform pg_notify('rota', 'ready');"
    await execute(url, str(source).replace(told, f"raise exception using errcode = '{code}';"))


async def test_the_word_goes_out_behind_the_commit(databases: Databases, tmp_path: Path) -> None:
    """As a part of it, it would make commits wait for one another."""
    url = databases.new("postgres", tmp_path)
    async with opened(url):
        await no_word_goes_out(url, "XX000")
        with pytest.raises(asyncpg.InternalServerError):
            await execute(url, "call rota.enqueue_told('job', 5, 1, '{}', null, null, null, null, null)")
        assert await ready(url) == [1]


@pytest.mark.parametrize("code", ["57P01", "54000", "55P03", "53100", "XX000"])
async def test_a_run_of_which_the_others_could_not_be_told_is_made_once(
    databases: Databases, tmp_path: Path, code: str
) -> None:
    url = databases.new("postgres", tmp_path)
    async with opened(url) as store:
        await no_word_goes_out(url, code)
        made = await store.enqueue_one(NewRun(job_id=JOB), tell=True)
        assert (made.created, made.told) == (True, False)
        assert await execute(url, "select id from job_runs") == [(made.id,)]
        assert await ready(url) == [made.id]


async def test_a_bad_run_that_is_to_be_told_of_is_refused(databases: Databases, tmp_path: Path) -> None:
    url = databases.new("postgres", tmp_path)
    async with opened(url) as store:
        with pytest.raises(BadInput, match="json"):
            await store.enqueue_one(NewRun(job_id=JOB, parameters="no json"), tell=True)
        assert await execute(url, "select count(*) from job_runs") == [(0,)]


@pytest.mark.parametrize("key", [None, "k"])
async def test_one_run_that_is_told_of_has_its_limit_and_its_key(
    databases: Databases, tmp_path: Path, key: str | None
) -> None:
    url = databases.new("postgres", tmp_path)
    async with opened(url) as store:
        await store.declare([JobRow(job_id="limited", concurrency_limit=1)], [])
        limited = await store.enqueue_one(NewRun(job_id="limited", key=key), tell=True)
        assert await execute(url, "select id, by_job from waiting") == [(limited.id, True)]
        assert not limited.told
        first = await store.enqueue_one(NewRun(job_id=JOB, key=key, correlation_id="c", priority=2), tell=True)
        second = await store.enqueue_one(NewRun(job_id=JOB, key=key), tell=True)
        assert (second.id == first.id) is (key is not None)
        assert second.created is (key is None)
        [row] = await store.get_runs([first.id])
        assert (row.correlation_id, row.priority, row.idempotency_key, row.state) == ("c", 2, key, "queued")


async def test_one_run_whose_key_somebody_is_making_waits_for_them_again(
    databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They took longer than a lock is waited for."""
    monkeypatch.setitem(POOLED, "lock_timeout", "50ms")
    url, real = databases.new("postgres", tmp_path), Pool.execute
    async with opened(url) as store:
        other = await asyncpg.connect(url)
        await other.execute("begin")
        theirs = await other.fetchval(
            "insert into rota.job_runs (job_id, correlation_id, idempotency_key, run_at) "
            f"values ('{JOB}', '', 'k', now()) returning id"
        )

        async def in_vain(*arguments: Any) -> Any:
            try:
                return await real(*arguments)
            finally:
                await other.execute("commit")

        monkeypatch.setattr(Pool, "execute", in_vain)
        [made] = await store.enqueue([NewRun(job_id=JOB, key="k")])
        assert (made.id, made.created) == (theirs, False)
        await other.close()


async def test_a_job_that_gets_a_limit_has_it_within_a_second(
    databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = databases.new("postgres", tmp_path)
    async with several(url, 2) as (store, other):
        await store.enqueue_one(NewRun(job_id=JOB))
        await other.declare([JobRow(job_id=JOB, concurrency_limit=1)], [])
        later = steady() + 1
        monkeypatch.setattr(enqueue, "steady", lambda: later)
        limited = await store.enqueue_one(NewRun(job_id=JOB))
        assert await execute(url, "select id, by_job from waiting") == [(limited.id, True)]


async def test_a_job_that_gets_a_limit_while_ids_are_fetched_has_it(
    databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process may freeze there for a minute: what it believed before is not believed behind it."""
    url, real, ahead = databases.new("postgres", tmp_path), PostgresStore._fetch_ids, 0.0

    async def slowly(store: PostgresStore, count: int) -> None:
        nonlocal ahead
        await real(store, count)
        await other.declare([JobRow(job_id=JOB, concurrency_limit=1)], [])
        ahead = 59.0

    async with several(url, 2) as (store, other):
        monkeypatch.setattr(enqueue, "steady", lambda: steady() + ahead)
        await store.enqueue_one(NewRun(job_id=JOB))
        assert isinstance(store, PostgresStore)
        store._ids.clear()
        monkeypatch.setattr(PostgresStore, "_fetch_ids", slowly)
        limited = await store.enqueue_one(NewRun(job_id=JOB))
        assert await execute(url, "select id, by_job from waiting") == [(limited.id, True)]


async def test_a_key_whose_run_is_pruned_meanwhile_makes_a_new_one(
    databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, real = databases.new("postgres", tmp_path), PostgresStore._make_kind

    async def pruned_after(*arguments: Any) -> int:
        made = await real(*arguments)
        await execute(url, f"delete from job_runs where id = {old.id}")
        return made

    async with opened(url) as store:
        [old] = await store.enqueue([NewRun(job_id=JOB, key="k")])
        monkeypatch.setattr(PostgresStore, "_make_kind", pruned_after)
        made = await store.enqueue([NewRun(job_id=JOB), NewRun(job_id=JOB, key="k")])
        assert [each.created for each in made] == [True, True]
        assert await execute(url, "select id from job_runs order by id") == [(each.id,) for each in made]


def test_a_callers_key_whose_run_is_pruned_meanwhile_makes_a_new_one() -> None:
    talk = caller._making([NewRun(job_id=JOB), NewRun(job_id=JOB, key="k")])
    assert next(talk)[0] == QUERIES["enqueue.given"]
    assert talk.send([(1, 10, True, 1), (2, 11, False, 1)])[0] == QUERIES["enqueue.given_existing"]
    sql, text = talk.send([])
    assert (sql, msgspec.json.decode(text)[0]["key"]) == (QUERIES["enqueue.given"], "k")
    with pytest.raises(StopIteration) as ended:
        talk.send([(1, 12, True, 1)])
    assert ended.value.value == [Enqueued(id=10, created=True), Enqueued(id=12, created=True)]


async def test_a_run_that_is_cancelled_while_it_is_admitted_takes_no_slot(databases: Databases, tmp_path: Path) -> None:
    url = databases.new("postgres", tmp_path)
    async with opened(url) as store:
        await store.declare([JobRow(job_id=JOB, concurrency_limit=1)], [])
        [made] = await store.enqueue([NewRun(job_id=JOB)])
        operator = await asyncpg.connect(url)
        async with operator.transaction():
            await operator.execute("update rota.job_runs set state = 'cancelled' where id = $1", made.id)
            admitting = asyncio.create_task(store.admit_waiting())

            async def settled() -> bool:
                waits = "select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
                return admitting.done() or bool(await execute(url, waits))

            await until(settled)
        await operator.close()
        await admitting
        assert await execute(url, "select 1 from scheduler_locks union all select 1 from ready") == []


async def test_a_claim_takes_no_more_than_its_row_can_hold(databases: Databases, tmp_path: Path) -> None:
    async with opened(databases.new("postgres", tmp_path)) as store:
        await store.enqueue([NewRun(job_id=JOB) for _ in range(1200)])
        assert len((await store.claim_runs(1, 7, [JOB], 5000)).claims) == 1000
        assert len((await store.claim_runs(1, 8, [JOB], 5000)).claims) == 200


async def test_who_asks_for_a_claim_that_is_being_committed_waits_for_it(databases: Databases, tmp_path: Path) -> None:
    """The reply is lost, and the server is not done yet: its answer counts, whichever way it goes."""
    url = databases.new("postgres", tmp_path)
    waiting = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and query like '%rota.claims%'"
    async with opened(url) as store:
        for token, end in ((7, "commit"), (8, "rollback")):
            [made] = await store.enqueue([NewRun(job_id=JOB)])
            server: Any = await asyncpg.connect(url)
            try:
                await server.execute(
                    f"begin; delete from rota.ready; insert into rota.claims values ({token}, 1, '{{{made.id}}}'); "
                    f"update rota.job_runs set state = 'running', lock_token = {token} where id = {made.id}"
                )
                asked = asyncio.create_task(store.reclaim(1, token))
                await until(lambda: execute(url, waiting))
                assert not asked.done()
                await server.execute(end)
                claims = await asked
            finally:
                await server.close()
            assert [claim.id for claim in claims] == ([made.id] if end == "commit" else [])
        # Voided: what might still come under the token fails as a whole.
        with pytest.raises(asyncpg.UniqueViolationError):
            await execute(url, "insert into claims values (8, 1, '{}')")


# -- ticks that are awaited ------------------------------------------------------------------------


async def test_to_look_at_what_is_coming_takes_no_lock(databases: Databases, tmp_path: Path) -> None:
    """Somebody has hold of a job whose breaker is open: that is for the one who makes the tick, when it is due."""
    url = databases.new("postgres", tmp_path)
    async with opened(url) as store:
        assert isinstance(store, PostgresStore)
        await store.declare([JobRow(job_id=JOB, breaker_failures=1)], [])
        await hour(url, 0)
        await scheduled(store)
        await execute(url, "update jobs set breaker = 'open', breaker_changed_at = now()")
        await set_clock(url, tick(1) - timedelta(seconds=30))
        holder = await asyncpg.connect(url)
        await holder.execute("begin; select from rota.jobs for update")
        assert await store._decide_ahead(decide, [JOB], 10, [], 31.0) == []
        await holder.close()


async def test_a_tick_whose_schedule_did_not_move_is_not_made(
    databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody's trigger keeps the row as it was."""
    monkeypatch.setattr(ticks, "_HOLDS", timedelta(seconds=20))
    url = databases.new("postgres", tmp_path)
    async with opened(url) as store:
        assert isinstance(store, PostgresStore)
        await hour(url, 0)
        await scheduled(store)
        await execute(url, "create function nothing() returns trigger language plpgsql as 'begin return null; end'")
        await execute(
            url,
            "create trigger held before update of next_run_at on scheduler_configs "
            "for each row execute function nothing()",
        )
        await set_clock(url, tick(1) - timedelta(seconds=30))
        decisions = await store._decide_ahead(decide, [JOB], 10, [], 31.0)
        await set_clock(url, tick(1))
        with pytest.raises(StaleWrite, match="nothing was written"):
            await store._fire_awaited(decisions, True, nowhere, 0.0)
        assert await execute(url, "select id from job_runs") == []
