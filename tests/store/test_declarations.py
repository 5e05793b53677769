"""Schedules as code sees them: declared at start, changed by callers, never at the cost of an operator's edit."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from rota.errors import BadInput, NotFound, StaleWrite
from rota.store import Declaration, JobRow, Store
from tests.harness import execute
from tests.store.steps import HOURLY, JOB, fire, hour, only_schedule, opened, scheduled, several, tick, wanted

DECLARED = Declaration(job_id=JOB, cron=HOURLY, timezone="Europe/Paris", parameters='{"x":1}')
BAD: list[dict[str, Any]] = [
    {"priority": -1},
    {"priority": 100},
    {"priority": 10**12},
    {"priority": "high"},
    {"concurrency_limit": -1},
    {"lock_timeout_seconds": 0},
    {"parameters": "[1]"},
    {"parameters": "not json"},
    {"overlap": "sometimes"},
    {"catch_up": "later"},
    {"catch_up_limit": 0},
    {"skip_if_older_than_seconds": 0},
    {"name": ""},
    {"cron": None},
]


def but(**changes: Any) -> Declaration:
    return msgspec.structs.replace(DECLARED, **changes)


async def declare(store: Store, *schedules: Declaration) -> None:
    await store.declare([JobRow(job_id=JOB)], schedules)


def fields(schedule: Declaration) -> dict[str, Any]:
    found = {field.name: getattr(schedule, field.name) for field in msgspec.structs.fields(Declaration)}
    return found | {"parameters": msgspec.json.decode(found["parameters"])}


async def test_what_is_declared_is_inserted(url: str) -> None:
    async with opened(url) as store:
        await declare(store, DECLARED, but(name="second", enabled=False))
        rows = await store.list_schedules(job_id=JOB)
        assert [fields(row) for row in rows] == [fields(DECLARED), fields(but(name="second", enabled=False))]
        assert [row.id for row in await store.list_schedules(name="second")] == [rows[1].id]
        assert await store.list_schedules(job_id="other") == []


async def test_declaring_the_same_again_changes_nothing(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        await declare(store, DECLARED)
        await fire(store)
        before = await only_schedule(store)
        await declare(store, DECLARED)
        assert await only_schedule(store) == before


async def test_replicas_that_start_together_declare_one_schedule(url: str) -> None:
    async with several(url, 5) as stores:
        await asyncio.gather(*(declare(store, DECLARED, but(name="second")) for store in stores))
        assert [row.name for row in await stores[0].list_schedules()] == ["default", "second"]


async def test_an_operators_edit_survives_until_that_field_is_declared_anew(url: str) -> None:
    async with opened(url) as store:
        await declare(store, DECLARED)
        await execute(url, "update scheduler_configs set priority = 1, cron = '30 * * * *', enabled = false")
        await declare(store, DECLARED)
        row = await only_schedule(store)
        assert (row.priority, row.cron, row.enabled) == (1, "30 * * * *", False)
        await declare(store, but(priority=7, overlap="queue"))
        row = await only_schedule(store)
        assert (row.priority, row.overlap, row.cron, row.enabled) == (7, "queue", "30 * * * *", False)
        await declare(store, but(priority=7, overlap="queue", cron="15 * * * *"))
        row = await only_schedule(store)
        assert (row.priority, row.cron, row.enabled) == (7, "15 * * * *", False)


async def test_an_edit_through_a_caller_survives_a_declaration_too(url: str) -> None:
    async with opened(url) as store:
        await declare(store, DECLARED)
        await store.put_schedule(but(priority=2))
        row = await only_schedule(store)
        await store.update_schedule(row.id, row.version, {"overlap": "cancel"})
        await declare(store, DECLARED)
        row = await only_schedule(store)
        assert (row.priority, row.overlap) == (2, "cancel")


async def test_a_changed_declaration_of_the_cron_is_computed_anew(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        await declare(store, DECLARED)
        await fire(store)
        assert (await only_schedule(store)).next_run_at == tick(1)
        await declare(store, but(cron="0 0 * * *"))
        assert (await only_schedule(store)).next_run_at is None
        await declare(store, but(cron="0 0 * * *", timezone="UTC"))
        await fire(store)
        assert (await only_schedule(store)).next_run_at == tick(12)


async def test_a_declaration_that_the_table_refuses_changes_nothing(url: str) -> None:
    async with opened(url) as store:
        with pytest.raises(BadInput):
            await declare(store, DECLARED, but(name="second", priority=1000))
        assert await store.list_schedules() == []


async def test_putting_a_schedule_replaces_every_field(url: str) -> None:
    async with opened(url) as store:
        first = await store.put_schedule(DECLARED)
        assert fields(first) == fields(DECLARED)
        plain = Declaration(job_id=JOB, cron="30 * * * *")
        second = await store.put_schedule(plain)
        assert (second.id, fields(second)) == (first.id, fields(plain))
        assert second.version > first.version


async def test_an_update_sets_what_it_names_and_nothing_else(url: str) -> None:
    async with opened(url) as store:
        row = await store.put_schedule(DECLARED)
        changed = await store.update_schedule(row.id, row.version, {"priority": 1, "parameters": '{"x": 2}'})
        assert wanted(changed) == wanted(row) | {"priority": 1, "parameters": changed.parameters}
        assert msgspec.json.decode(changed.parameters) == {"x": 2}
        assert changed.version > row.version


@pytest.mark.parametrize("change", [{"priority": 1}, {"next_run_at": tick(9)}], ids=["priority", "next_run_at"])
async def test_of_two_writers_the_stale_one_is_refused(url: str, change: dict[str, Any]) -> None:
    async with opened(url) as store, opened(url) as other:
        row = await store.put_schedule(DECLARED)
        first = await other.update_schedule(row.id, row.version, change)
        with pytest.raises(StaleWrite, match=f"version {first.version}, not {row.version}"):
            await store.update_schedule(row.id, row.version, {"priority": 9, "next_run_at": tick(1)})
        assert await only_schedule(store) == first


async def test_of_many_writers_at_once_one_wins(url: str) -> None:
    async with several(url, 4) as stores:
        row = await stores[0].put_schedule(DECLARED)
        writes = [store.update_schedule(row.id, row.version, {"priority": n}) for n, store in enumerate(stores)]
        done = await asyncio.gather(*writes, return_exceptions=True)
        [winner] = [result for result in done if not isinstance(result, BaseException)]
        assert [type(result) for result in done if isinstance(result, BaseException)] == [StaleWrite] * 3
        assert await only_schedule(stores[0]) == winner


async def test_an_operators_edit_makes_a_writer_stale(url: str) -> None:
    async with opened(url) as store:
        row = await store.put_schedule(DECLARED)
        await execute(url, "update scheduler_configs set priority = 3")
        with pytest.raises(StaleWrite):
            await store.update_schedule(row.id, row.version, {"priority": 9})
        assert (await only_schedule(store)).priority == 3


async def test_a_tick_makes_a_writer_stale(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        row = await scheduled(store)
        await hour(url, 1)
        await fire(store)
        with pytest.raises(StaleWrite):
            await store.update_schedule(row.id, row.version, {"next_run_at": tick(0)})
        assert (await only_schedule(store)).next_run_at == tick(2)


async def test_updating_a_schedule_that_is_gone_is_not_found(url: str) -> None:
    async with opened(url) as store:
        with pytest.raises(NotFound, match="no schedule 77"):
            await store.update_schedule(77, 0, {"priority": 1})
        with pytest.raises(NotFound, match="no schedule 77"):
            await store.trigger(77, None)


async def test_an_unknown_column_is_bad_input(url: str) -> None:
    async with opened(url) as store:
        row = await store.put_schedule(DECLARED)
        for name in ("colour", "version", "id", "priority = 1 --"):
            with pytest.raises(BadInput, match="no field"):
                await store.update_schedule(row.id, row.version, {name: 1})
        assert await only_schedule(store) == row


async def test_values_that_the_table_refuses_are_bad_input_and_change_nothing(url: str) -> None:
    async with opened(url) as store:
        row = await store.put_schedule(DECLARED)
        for bad in BAD:
            with pytest.raises(BadInput):
                await store.update_schedule(row.id, row.version, {"timezone": "UTC"} | bad)
            with pytest.raises(BadInput):
                await store.put_schedule(but(**{"name": "third"} | bad))
        assert await only_schedule(store) == row


async def test_a_name_that_is_taken_is_bad_input(url: str) -> None:
    async with opened(url) as store:
        row = await store.put_schedule(DECLARED)
        await store.put_schedule(but(name="second"))
        with pytest.raises(BadInput):
            await store.update_schedule(row.id, row.version, {"name": "second"})


async def test_ticks_computed_by_older_time_zone_rules_are_computed_again(url: str) -> None:
    async with opened(url) as store:
        await store.declare([JobRow(job_id=JOB)], [Declaration(job_id=JOB, cron="0 3 * * *", timezone="Asia/Tokyo")])
        await fire(store)
        [before] = await store.list_schedules()
        await execute(url, "update scheduler_configs set tzdata = '1999a', next_run_at = '2999-01-01 00:00:00Z'")
        await store.declare([JobRow(job_id=JOB)], [])
        [after] = await store.list_schedules()
        assert after.next_run_at == before.next_run_at
        await execute(url, "update scheduler_configs set next_run_at = '2999-01-01 00:00:00Z'")
        await store.declare([JobRow(job_id=JOB)], [])
        [kept] = await store.list_schedules()
        assert kept.next_run_at != before.next_run_at, "what our own edition computed, or an operator set, is kept"
