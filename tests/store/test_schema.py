"""The tables: made once, read by people, refused when they do not fit."""

from __future__ import annotations

import asyncio
import re
from itertools import chain
from typing import get_args

import apsw
import asyncpg
import pytest

from rota.errors import NotOpen, SchemaMismatch, StoreUnavailable
from rota.schema import SCHEMA, check_schema
from rota.settings import Settings
from rota.store import RunFilter, State
from rota.stores import open_store
from rota.stores.queries import load_migrations, load_queries
from tests.harness import execute, python
from tests.store.steps import JOB, claim, enqueue, finish, only_schedule, opened, several, wanted

REFUSED = (asyncpg.IntegrityConstraintViolationError, apsw.ConstraintError)
TYPED = "insert into scheduler_configs (job_id, name, cron, parameters) values ('work', 'default', '0 * * * *', '{}')"
MIGRATE = """
import asyncio, sys
from rota.settings import Settings
from rota.stores import open_store
async def main():
    store = open_store(Settings(url=sys.argv[1]))
    await store.open()
    await store.migrate()
    await store.close()
asyncio.run(main())
"""


async def indexes(url: str, table: str) -> set[tuple[str, ...]]:
    """The columns of each index of the table."""
    if url.startswith("sqlite"):
        rows = await execute(
            url,
            "select i.name, c.name from pragma_index_list(" + repr(table) + ") i, pragma_index_info(i.name) c "
            "order by i.name, c.seqno",
        )
        names = {name for name, _ in rows}
        return {tuple(str(column) for name, column in rows if name == index) for index in names}
    rows = await execute(url, f"select indexdef from pg_indexes where schemaname = 'rota' and tablename = '{table}'")
    found = [re.search(r"USING \w+ \(([^)]*)\)", str(definition)) for (definition,) in rows]
    return {tuple(match.group(1).split(", ")) for match in found if match}


async def test_a_fresh_store_has_version_zero(url: str) -> None:
    store = open_store(Settings(url=url))
    await store.open()
    try:
        assert await store.schema_version() == (0, 0)
    finally:
        await store.close()


async def test_migrating_twice_applies_everything_once(url: str) -> None:
    store = open_store(Settings(url=url))
    await store.open()
    try:
        assert await store.migrate() == [migration.name for migration in load_migrations("rota.stores.postgres")]
        assert await store.migrate() == []
        assert (await store.schema_version())[0] == SCHEMA
    finally:
        await store.close()


async def test_replicas_that_start_together_migrate_once(url: str) -> None:
    stores = [open_store(Settings(url=url)) for _ in range(5)]
    try:
        await asyncio.gather(*(store.open() for store in stores))
        applied = await asyncio.gather(*(store.migrate() for store in stores))
        assert sorted(chain.from_iterable(applied)) == [step.name for step in load_migrations("rota.stores.postgres")]
    finally:
        await asyncio.gather(*(store.close() for store in stores))


async def test_processes_that_start_together_migrate_once(url: str) -> None:
    processes = [python("-c", MIGRATE, url) for _ in range(3)]
    assert [await asyncio.to_thread(process.wait) for process in processes] == [0, 0, 0]
    assert await execute(url, "select version from migrations") == [(n,) for n in range(1, SCHEMA + 1)]


async def test_a_migration_does_not_disturb_a_replica_at_work(url: str) -> None:
    async with several(url, 2) as [working, arriving]:

        async def work() -> None:
            for _ in range(20):
                await enqueue(working)
                [claimed] = await claim(working, 1)
                assert claimed.id in (await finish(working, claimed)).accepted

        await asyncio.gather(work(), *(arriving.migrate() for _ in range(5)))


async def test_missing_tables_are_refused_when_migrating_is_off(url: str) -> None:
    store = open_store(Settings(url=url))
    await store.open()
    try:
        with pytest.raises(SchemaMismatch, match=r"not there.*rota migrate"):
            await check_schema(store, migrate=False)
        assert await store.schema_version() == (0, 0)
        assert await check_schema(store, migrate=True)
        assert await check_schema(store, migrate=False) == []
    finally:
        await store.close()


async def test_a_query_without_tables_says_what_to_run(url: str) -> None:
    store = open_store(Settings(url=url))
    await store.open()
    try:
        with pytest.raises(SchemaMismatch, match="rota migrate"):
            await store.find_runs(RunFilter())
    finally:
        await store.close()


async def test_tables_that_need_newer_code_are_refused(url: str) -> None:
    async with opened(url) as store:
        await execute(url, "insert into migrations (version, name, compatible_with) values (99, '0099_future', 99)")
        assert await store.schema_version() == (99, 99)
        with pytest.raises(SchemaMismatch, match=r"version 99.*upgrade rota"):
            await check_schema(store, migrate=True)


async def test_newer_tables_that_this_code_can_use_are_accepted(url: str) -> None:
    async with opened(url) as store:
        await execute(url, "insert into migrations (version, name, compatible_with) values (99, '0099_future', 1)")
        assert await check_schema(store, migrate=True) == []
        await enqueue(store)


async def test_an_unreachable_database_is_refused_at_once(url: str) -> None:
    with pytest.raises(StoreUnavailable):
        await open_store(Settings(url=f"{url}/missing")).open()


async def test_a_store_that_is_not_open_says_so(url: str) -> None:
    with pytest.raises(NotOpen):
        await open_store(Settings(url=url)).find_runs(RunFilter())


def test_both_stores_have_the_same_queries() -> None:
    verbs = [{name.split(".")[0] for name in load_queries(f"rota.stores.{kind}")} for kind in ("postgres", "sqlite")]
    assert verbs[0] == verbs[1]


def test_both_stores_have_the_same_migrations() -> None:
    steps = [
        [(step.name, step.compatible_with) for step in load_migrations(f"rota.stores.{kind}")]
        for kind in ("postgres", "sqlite")
    ]
    assert steps[0] == steps[1]


async def test_the_columns_of_a_schedule_have_their_defaults(url: str) -> None:
    async with opened(url) as store:
        await execute(url, "insert into scheduler_configs (job_id, cron) values ('work', '0 * * * *')")
        row = await only_schedule(store)
        assert wanted(row) == {
            "job_id": JOB, "name": "default", "cron": "0 * * * *", "timezone": None, "enabled": True, "priority": 5,
            "concurrency_limit": 1, "lock_timeout_seconds": 300, "parameters": "{}", "overlap": "skip",
            "catch_up": "latest", "catch_up_limit": 100, "skip_if_older_than_seconds": 86400,
        }  # fmt: skip
        now = await store.now()
        assert abs((now - row.created_at).total_seconds()) < 60
        assert abs((now - row.updated_at).total_seconds()) < 60


async def test_a_job_has_one_schedule_of_a_name(url: str) -> None:
    async with opened(url):
        await execute(url, TYPED)
        with pytest.raises(REFUSED):
            await execute(url, TYPED)
        await execute(url, TYPED.replace("default", "second"))
        await execute(url, TYPED.replace("'work'", "'other'"))


async def test_schedules_and_runs_are_indexed_for_those_who_look(url: str) -> None:
    async with opened(url):
        assert ("enabled", "priority") in {columns[:2] for columns in await indexes(url, "scheduler_configs")}
        assert ("job_id", "name") in await indexes(url, "scheduler_configs")
        assert {"config_id", "correlation_id"} <= {columns[0] for columns in await indexes(url, "job_runs")}
        assert "config_id" in {columns[0] for columns in await indexes(url, "scheduler_locks")}


async def test_a_lock_has_its_own_token_and_expires_after_it_was_acquired(url: str) -> None:
    async with opened(url) as store:
        await execute(url, TYPED)
        config = (await only_schedule(store)).id
        await execute(url, f"insert into scheduler_locks (config_id) values ({config})")
        await execute(url, f"insert into scheduler_locks (config_id) values ({config})")
        assert await execute(url, "select count(distinct lock_token) from scheduler_locks") == [(2,)]
        assert await execute(url, "select count(*) from scheduler_locks where expires_at > acquired_at") == [(2,)]
        with pytest.raises(REFUSED):
            await execute(url, "update scheduler_locks set lock_token = 7")
        with pytest.raises(REFUSED):
            await execute(url, "update scheduler_locks set expires_at = acquired_at")


async def test_a_run_is_in_one_of_the_states_there_are(url: str) -> None:
    async with opened(url) as store:
        made = await enqueue(store)
        for state in get_args(State):
            await execute(url, f"update job_runs set state = '{state}'")
        with pytest.raises((*REFUSED, asyncpg.InvalidTextRepresentationError)):
            await execute(url, "update job_runs set state = 'done'")
        assert [run.state for run in await store.get_runs([made])] == [get_args(State)[-1]]
