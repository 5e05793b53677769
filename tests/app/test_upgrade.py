"""A newer rota migrates the tables while replicas of this one go on working."""

from __future__ import annotations

import pytest

from rota import Rota, SchemaMismatch, Settings
from rota.schema import SCHEMA
from rota.store import RunFilter
from rota.stores import open_store
from rota.stores.queries import Migration
from tests.app.waiting import until
from tests.harness import execute
from tests.patience import PATIENCE

TABLES = (
    "scheduler_configs",
    "job_runs",
    "ready",
    "delayed",
    "waiting",
    "scheduler_locks",
    "claims",
    "jobs",
    "replicas",
)


def migration(url: str, version: int, compatible_with: int) -> Migration:
    """Every table gets a column, and the largest an index."""
    schema = "" if url.startswith("sqlite") else "rota."
    steps = [f"alter table {schema}{table} add column added_{version} integer default 7;" for table in TABLES]
    steps.append(f"create index added_{version} on {schema}job_runs (added_{version});")
    return Migration(f"{version:04}_future.sql", f"-- compatible-with: {compatible_with}\n" + "\n".join(steps))


async def apply(url: str, future: Migration, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    kind = "sqlite" if url.startswith("sqlite") else "postgres"
    monkeypatch.setattr(f"rota.stores.{kind}.store.MIGRATIONS", [future])
    store = open_store(Settings(url=url))
    await store.open()
    try:
        return await store.migrate()
    finally:
        await store.close()


async def test_replicas_go_on_while_the_tables_are_migrated(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app = Rota(url)

    @app.every("1s")
    async def tick() -> None: ...

    @app.job(concurrency_limit=2, retry=1)
    async def work(n: int) -> int:
        return n

    async def ticks() -> int:
        return len(await app.store.find_runs(RunFilter(job_id="tick", states=("succeeded",))))

    async def ticked_again(before: int) -> bool:
        return await ticks() > before

    async with app:
        await until(lambda: ticked_again(0))
        for version in (SCHEMA + 1, SCHEMA + 2):
            assert await apply(url, migration(url, version, 1), monkeypatch) == [f"{version:04}_future"]
            runs = await work.enqueue_many(work.call(n) for n in range(5))
            assert [await run.result(PATIENCE) for run in runs] == list(range(5))
            now = await ticks()
            await until(lambda before=now: ticked_again(before))  # type: ignore[misc]
        assert await execute(url, "select distinct state from job_runs where state in ('failed', 'cancelled')") == []
    async with app:
        assert await (await work.enqueue(1)).result(PATIENCE) == 1


async def test_tables_that_moved_on_too_far_are_refused_at_the_next_start(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Rota(url)
    async with app.client():
        await apply(url, migration(url, SCHEMA + 1, SCHEMA + 1), monkeypatch)
    with pytest.raises(SchemaMismatch, match=rf"version {SCHEMA + 1}.*upgrade rota here"):
        async with app:
            raise AssertionError("it opened all the same")
