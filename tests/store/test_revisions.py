"""Several schedules changed at once, ticks made afterwards, and the ledger read by time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from rota.errors import NotFound, StaleWrite
from rota.store import Declaration, JobRow, Outcome, Revision, ScheduleRow
from tests.store.steps import HOURLY, JOB, claim_one, fire, hour, ledger, opened, scheduled, tick


async def test_a_revision_adds_changes_and_removes_in_one_transaction(url: str) -> None:
    async with opened(url) as store:
        kept, gone = await scheduled(store, name="kept"), await scheduled(store, name="gone")
        new = Declaration(job_id="other", name="new", cron="every 5m", parameters='{"n":1}')

        def revise(rows: Sequence[ScheduleRow]) -> Revision:
            assert [row.name for row in rows] == ["gone", "kept"]
            return Revision(add=(new,), change=((kept.id, {"priority": 1, "enabled": False}),), remove=(gone.id,))

        changed, added = sorted(await store.revise_schedules(revise), key=lambda row: row.priority)
        assert (changed.id, changed.priority, changed.enabled) == (kept.id, 1, False)
        assert changed.paused_at is not None
        assert changed.version > kept.version
        assert (added.job_id, added.name, added.cron, added.declared) == ("other", "new", "every 5m", None)
        assert {row.name for row in await store.list_schedules()} == {"kept", "new"}


async def test_a_revision_that_fails_changes_nothing(url: str) -> None:
    async with opened(url) as store:
        made = await scheduled(store)
        there = Declaration(job_id=made.job_id, name=made.name, cron="every 1s")

        def collide(rows: Sequence[ScheduleRow]) -> Revision:
            return Revision(add=(there,), change=((made.id, {"priority": 1}),))

        def refuse(rows: Sequence[ScheduleRow]) -> Revision:
            raise StaleWrite("not what was shown")

        before = await store.list_schedules()
        with pytest.raises(StaleWrite, match=f"somebody else added {JOB}/{made.name}"):
            await store.revise_schedules(collide)
        with pytest.raises(StaleWrite, match="not what was shown"):
            await store.revise_schedules(refuse)
        assert await store.list_schedules() == before


async def test_ticks_are_made_once_whoever_asks(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        made = await scheduled(store)
        single = await store.trigger(made.id, tick(-2))
        first = await store.trigger_ticks(made.id, [tick(-3), tick(-2), tick(-1)])
        again = await store.trigger_ticks(made.id, [tick(-3), tick(-2), tick(-1)])
        assert [each.created for each in first] == [True, False, True]
        assert [each.created for each in again] == [False, False, False]
        assert [each.id for each in again] == [each.id for each in first]
        assert first[1].id == single.id
        assert sorted(row.due_at for row in await ledger(store) if row.due_at) == [tick(-3), tick(-2), tick(-1)]
        with pytest.raises(NotFound):
            await store.trigger_ticks(999, [tick(-1)])


async def test_a_tick_that_was_summed_up_as_missed_leaves_the_sum(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        made = await scheduled(store)
        await hour(url, 6)
        await fire(store)
        assert [row.missed_count for row in await ledger(store, made.id)] == [5, None]
        await store.trigger_ticks(made.id, [tick(1), tick(3), tick(-4)])
        await store.trigger_ticks(made.id, [tick(1)])
        await store.trigger(made.id, tick(5))
        rows = await ledger(store, made.id)
        [stretch] = [row for row in rows if row.missed_count is not None]
        assert stretch.missed_count == 2
        ticks = [row for row in rows if row.missed_count is None and row.due_at and row.due_at > tick(0)]
        assert len(ticks) + stretch.missed_count == 6


async def test_a_sum_of_missed_ticks_never_falls_below_nothing(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        made = await scheduled(store)
        await hour(url, 4)
        await fire(store)
        # As after a change to `*/15 * * * *`, whose ticks were not the ones that were missed.
        await store.trigger_ticks(made.id, [tick(1) + timedelta(minutes=15 * n) for n in range(8)])
        assert [row.missed_count for row in await ledger(store, made.id) if row.missed_count is not None] == [0]


async def test_the_ledger_is_read_by_time(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        made, other = await scheduled(store), await scheduled(store, name="other")
        await hour(url, 6)
        await fire(store)
        await store.trigger(made.id, None)
        await store.trigger_ticks(other.id, [tick(3)])

        async def found(first: int, last: int) -> list[tuple[object, int | None]]:
            rows = await store.ledger(made.id, tick(first), tick(last))
            return [(row.due_at, row.missed_count) for row in rows]

        assert await found(0, 9) == [(tick(1), 5), (tick(6), None)]
        assert await found(3, 4) == [(tick(1), 5)]
        assert await found(6, 6) == [(tick(6), None)]
        assert await found(7, 9) == []


async def test_breakers_that_are_not_closed_are_told(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        await store.declare(
            [JobRow(job_id=JOB, breaker_failures=1, breaker_pause=90.0)], [Declaration(job_id=JOB, cron=HOURLY)]
        )
        assert await store.tripped_breakers() == []
        [row] = await store.list_schedules()
        await store.trigger(row.id, None)
        await store.promote_due(10)
        await store.admit_waiting()
        claim = await claim_one(store)
        failed = Outcome(id=claim.id, token=claim.token, state="failed", error="no", slot=True)
        await store.finish_runs([failed], closed=[])
        [tripped] = await store.tripped_breakers()
        assert (tripped.job_id, tripped.breaker, tripped.consecutive_failures) == (JOB, "open", 1)
        assert tripped.pause == 90.0
        assert abs((tripped.changed_at - await store.now()).total_seconds()) < 60
