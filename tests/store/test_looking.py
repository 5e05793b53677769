"""What those ask who only look: what runs, what took longest, what changed, who is silent, how the database is."""

from __future__ import annotations

from datetime import timedelta

from rota.settings import Settings
from rota.store import RunFilter
from rota.stores import open_store
from tests.harness import Databases, execute
from tests.store.steps import START, claim, enqueue, finish, opened, running, set_clock


async def test_the_longest_come_first_and_those_that_never_started_not_at_all(url: str) -> None:
    async with opened(url) as store:
        for seconds in (5, 60, 1):
            await set_clock(url, START)
            claimed = await running(store)
            await set_clock(url, START + timedelta(seconds=seconds))
            await finish(store, claimed)
        await enqueue(store)
        longest = await store.find_runs(RunFilter(longest=True))
        assert [row.id for row in longest] == [2, 1, 3]
        assert [row.id for row in await store.find_runs(RunFilter(longest=True, limit=1))] == [2]


async def test_one_that_still_runs_counts_as_long_as_it_has_run(url: str) -> None:
    async with opened(url) as store:
        await set_clock(url, START)
        done = await running(store)
        await set_clock(url, START + timedelta(seconds=5))
        await finish(store, done)
        going_on = await running(store)
        await set_clock(url, START + timedelta(seconds=60))
        assert [row.id for row in await store.find_runs(RunFilter(longest=True))] == [going_on.id, done.id]


async def test_what_was_made_started_or_finished_since_a_moment_is_found(url: str) -> None:
    async with opened(url) as store:
        await set_clock(url, START)
        old, started, finished = [await enqueue(store) for _ in range(3)]
        claims = {one.id: one for one in await claim(store, 3)}
        await finish(store, claims[old])
        await set_clock(url, START + timedelta(hours=1))
        await finish(store, claims[finished])
        made = await enqueue(store)
        moment = START + timedelta(minutes=30)
        found = await store.find_runs(RunFilter(touched_since=moment))
        assert [row.id for row in found] == [made, finished]
        assert [row.id for row in await store.find_runs(RunFilter(touched_since=moment, after_id=finished))] == [made]
        assert [row.id for row in await store.running_runs()] == [started]


async def test_a_run_is_running_from_its_claim_to_its_end(url: str) -> None:
    async with opened(url) as store:
        assert await store.running_runs() == []
        first, second = await running(store), await running(store)
        assert [row.id for row in await store.running_runs()] == [first.id, second.id]
        await finish(store, first)
        assert [(row.id, row.state) for row in await store.running_runs()] == [(second.id, "running")]


async def test_how_long_a_replica_has_been_silent_goes_by_the_real_clock(url: str) -> None:
    async with opened(url) as store:
        lifeline = await store.join("web-1", "here", 1, [])
        await set_clock(url, START)  # years ahead
        [row] = await store.list_replicas()
        assert 0 <= row.silent < 60
        past = "datetime('now', '-100 seconds')" if url.startswith("sqlite") else "now() - interval '100 seconds'"
        await execute(url, f"update replicas set beat_at = {past}")
        [row] = await store.list_replicas()
        assert 99 <= row.silent < 160
        await lifeline.close()


async def test_migrations_are_told_as_they_are_applied(url: str) -> None:
    store = open_store(Settings(url=url))
    await store.open()
    try:
        told: list[str] = []
        assert await store.migrate(told.append) == told != []
        assert await store.migrate(told.append) == []
    finally:
        await store.close()


async def test_a_sound_database_gives_nothing_to_worry_about_and_is_not_changed(url: str) -> None:
    store = open_store(Settings(url=url))
    assert {finding.level for finding in await store.diagnose()} == {"ok"}
    async with opened(url) as store:
        assert {finding.level for finding in await store.diagnose()} == {"ok"}
        await set_clock(url, START)
        [moved] = [finding for finding in await store.diagnose() if finding.level == "warning"]
        assert (moved.check, "test's clock" in str(moved.advice)) == ("clock", True)


async def test_a_role_that_may_not_use_the_tables_is_told(databases: Databases) -> None:
    url = databases.server().new_database()
    await execute(url, "create role guest login")
    guest = url.replace("postgres@", "guest@")
    try:
        [found] = [f for f in await open_store(Settings(url=guest)).diagnose() if f.level == "problem"]
        assert found.check == "rights"
        assert "may not create it" in found.said
        async with opened(url):
            pass
        for grant, complaint in (
            ("grant usage on schema rota to guest", "may not use the schema rota"),
            ("grant select, insert, update on all tables in schema rota to guest", "may not read and write"),
            ("grant delete on all tables in schema rota to guest", "may not read and write"),
        ):
            [found] = [f for f in await open_store(Settings(url=guest)).diagnose() if f.level == "problem"]
            assert complaint in found.said
            await execute(url, grant)
        assert {f.level for f in await open_store(Settings(url=guest)).diagnose()} == {"ok"}
    finally:
        await execute(url, "drop owned by guest")
        await execute(url, "drop role guest")
