"""Schedules as operators see them: rows that are typed, edited, paused and deleted by plain SQL."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from rota.policy import Decider
from rota.store import Declaration, JobRow
from tests.harness import execute
from tests.store.steps import (
    HOURLY,
    JOB,
    START,
    claim_one,
    fire,
    hour,
    ledger,
    only_schedule,
    opened,
    schedule,
    scheduled,
    story,
    tick,
)

TYPED = (
    "insert into scheduler_configs (job_id, name, cron, parameters) "
    "values ('job_ingest', 'default', '*/5 * * * *', '{\"max_x\": 20}')"
)
DECLARED = Declaration(job_id=JOB, cron=HOURLY)
refusing = Decider(late_after=60, check=lambda job, parameters: f"{job} wants no parameters")


async def test_a_typed_schedule_starts_to_run_with_its_parameters(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        await execute(url, TYPED)
        await fire(store, jobs=["job_ingest"])
        assert (await only_schedule(store)).next_run_at == START.replace(minute=5, second=0)
        assert await ledger(store) == []
        await hour(url, 5 / 60)
        assert (await fire(store, jobs=["job_ingest"])).ready == 1
        claimed = await claim_one(store, jobs=["job_ingest"])
        assert msgspec.json.decode(claimed.parameters) == {"max_x": 20}
        assert claimed.due_at == START.replace(minute=5, second=0)


async def test_a_typed_schedule_never_back_fills(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        await execute(url, TYPED)
        await hour(url, 9)
        fired = await fire(store, jobs=["job_ingest"])
        assert (fired.schedules, fired.runs, fired.skipped) == (1, 0, 0)
        assert (await only_schedule(store)).next_run_at == START.replace(hour=21, minute=5, second=0)


async def test_a_schedule_of_a_job_that_this_replica_does_not_know_is_left_alone(url: str) -> None:
    async with opened(url) as store:
        await execute(url, TYPED)
        assert (await fire(store, jobs=[JOB])).schedules == 0
        assert (await only_schedule(store)).next_run_at is None


async def test_a_paused_schedule_does_not_tick(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        await scheduled(store)
        await execute(url, "update scheduler_configs set enabled = false")
        await hour(url, 3)
        assert (await fire(store)).schedules == 0
        assert await ledger(store) == []
        row = await only_schedule(store)
        assert not row.enabled
        assert row.paused_at is not None
        assert abs((row.paused_at - START).total_seconds()) < 60


async def test_the_ticks_of_a_pause_are_one_row_and_never_run(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        made = await scheduled(store, catch_up="all")
        await execute(url, "update scheduler_configs set enabled = false")
        await hour(url, 3)
        await execute(url, "update scheduler_configs set enabled = true")
        await fire(store)
        [row] = await ledger(store, made.id)
        assert (row.state, row.reason, row.missed_count) == ("skipped", "paused", 3)
        assert (row.missed_from, row.missed_to) == (tick(1), tick(3))
        await hour(url, 4)
        await fire(store)
        assert await story(store) == [("skipped", "paused", 3), ("queued", None, 1)]


async def test_ticks_missed_before_and_after_a_pause_follow_the_catch_up(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        await scheduled(store)
        await hour(url, 2)
        await execute(url, "update scheduler_configs set enabled = false")
        await hour(url, 5)
        await execute(url, "update scheduler_configs set enabled = true")
        await hour(url, 7)
        await fire(store)
        assert await story(store) == [
            ("skipped", "catch_up", 2),
            ("skipped", "paused", 3),
            ("skipped", "catch_up", 1),
            ("queued", None, 1),
        ]


async def test_a_pause_between_two_ticks_leaves_nothing_behind(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        await scheduled(store)
        await execute(url, "update scheduler_configs set enabled = false")
        await execute(url, "update scheduler_configs set enabled = true")
        await hour(url, 1)
        await fire(store)
        assert await story(store) == [("queued", None, 1)]
        row = await only_schedule(store)
        assert (row.paused_at, row.resumed_at) == (None, None)


async def test_a_changed_cron_is_computed_anew_from_now(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        await scheduled(store)
        await hour(url, 3)
        await execute(url, "update scheduler_configs set cron = '30 * * * *'")
        assert (await fire(store)).runs == 0
        assert (await only_schedule(store)).next_run_at == tick(3) + timedelta(minutes=30)
        assert await ledger(store) == []


async def test_a_changed_timezone_is_computed_anew_from_now(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        await scheduled(store, cron="0 18 * * *")
        assert (await only_schedule(store)).next_run_at == tick(6)
        await execute(url, "update scheduler_configs set timezone = 'Europe/Paris'")
        await fire(store)
        assert (await only_schedule(store)).next_run_at == tick(4)


async def test_changed_parameters_and_priority_hold_for_the_next_tick(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        made = await scheduled(store)
        await execute(url, "update scheduler_configs set parameters = '{\"x\": 2}', priority = 1")
        await hour(url, 1)
        await fire(store)
        [row] = await ledger(store, made.id)
        assert (msgspec.json.decode(row.parameters), row.priority) == ({"x": 2}, 1)


async def test_every_edit_changes_the_version(url: str) -> None:
    async with opened(url) as store:
        made = await scheduled(store)
        for edit in ("cron = '5 * * * *'", "priority = 2", "enabled = false", "overlap = 'queue'"):
            before = (await only_schedule(store)).version
            await execute(url, f"update scheduler_configs set {edit} where id = {made.id}")
            assert (await only_schedule(store)).version > before


async def test_a_bad_schedule_is_marked_and_the_others_go_on(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        good = await scheduled(store)
        await execute(url, "insert into scheduler_configs (job_id, name, cron) values ('work', 'odd', '61 * * * *')")
        await execute(
            url,
            "insert into scheduler_configs (job_id, name, cron, timezone) "
            "values ('work', 'lost', '0 * * * *', 'Mars/Olympus')",
        )
        await hour(url, 1)
        fired = await fire(store)
        assert await story(store, good.id) == [("queued", None, 1)]
        reasons = {row.name: row.invalid_reason for row in await store.list_schedules()}
        assert reasons["default"] is None
        assert "minute" in str(reasons["odd"])
        assert "'61'" in str(reasons["odd"])
        assert "Mars/Olympus" in str(reasons["lost"])
        assert sorted(reason for _, reason in fired.invalid) == sorted(r for r in reasons.values() if r)
        assert (await fire(store)).schedules == 0


async def test_a_corrected_schedule_is_looked_at_again(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        made = await scheduled(store, cron="never")
        assert made.invalid_reason
        await execute(url, f"update scheduler_configs set cron = '{HOURLY}'")
        assert (await only_schedule(store)).invalid_reason is None
        await fire(store)
        assert (await only_schedule(store)).next_run_at == tick(1)


async def test_parameters_that_the_job_refuses_mark_the_schedule_until_they_are_edited(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        await scheduled(store)
        await hour(url, 1)
        await fire(store, deciding=refusing)
        assert (await only_schedule(store)).invalid_reason == "work wants no parameters"
        assert await ledger(store) == []
        await execute(url, "update scheduler_configs set parameters = '{\"fixed\": true}'")
        await fire(store)
        assert await story(store) == [("queued", None, 1)]


async def test_a_job_that_no_replica_knows_is_marked_until_one_declares_it(url: str) -> None:
    async with opened(url) as store, opened(url) as other:
        await hour(url, 0)
        made = await store.put_schedule(msgspec.structs.replace(DECLARED, job_id="unheard_of"))
        known = await store.put_schedule(DECLARED)
        assert await store.mark_unknown() == []
        lifeline = await other.join("a", "host", 1, [JOB])
        [(marked, reason)] = await store.mark_unknown()
        assert marked == made.id
        assert "'unheard_of'" in reason
        assert (await schedule(store, made.id)).invalid_reason == reason
        assert (await schedule(store, known.id)).invalid_reason is None
        assert await store.mark_unknown() == []
        await store.declare([JobRow(job_id="unheard_of")], [])
        assert (await schedule(store, made.id)).invalid_reason is None
        await lifeline.close()
