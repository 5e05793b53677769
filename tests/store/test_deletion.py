"""Deleting a schedule: its runs stay, and go on."""

from __future__ import annotations

from rota.store import JobRow
from tests.harness import execute
from tests.store.steps import JOB, claim, claim_one, enqueue, finish, fire, hour, ledger, opened, scheduled, tick


async def test_a_deleted_schedule_leaves_its_runs(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        # Two schedules of one job have the same ticks, hence the same keys.
        made = [await scheduled(store, name=name) for name in ("one", "two")]
        await hour(url, 1)
        await fire(store)
        await execute(url, f"delete from scheduler_configs where id = {made[0].id}")
        assert await store.delete_schedule(made[1].id)
        assert not await store.delete_schedule(made[1].id)
        assert await store.list_schedules() == []
        rows = await ledger(store)
        assert [(row.config_id, row.due_at, row.state) for row in rows] == [(None, tick(1), "queued")] * 2
        for claimed in await claim(store):
            assert claimed.id in (await finish(store, claimed)).accepted
        assert [row.state for row in await ledger(store)] == ["succeeded"] * 2


async def test_runs_that_waited_for_a_deleted_schedule_are_not_forgotten(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        made = await scheduled(store, overlap="queue")
        await hour(url, 1)
        await fire(store)
        running = await claim_one(store)
        await hour(url, 2)
        await fire(store)
        assert await store.delete_schedule(made.id)
        await finish(store, running)
        await store.promote_due(100)
        await store.admit_waiting()
        assert (await claim_one(store)).due_at == tick(2)


async def test_a_deleted_schedule_does_not_free_the_slot_of_its_job(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        await store.declare([JobRow(job_id=JOB, concurrency_limit=1)], [])
        made = await scheduled(store)
        await hour(url, 1)
        await fire(store)
        await store.admit_waiting()
        running = await claim_one(store)
        assert await store.delete_schedule(made.id)
        await enqueue(store)
        await store.admit_waiting()
        assert await claim(store) == []
        await finish(store, running)
        assert await store.admit_waiting() == 1
