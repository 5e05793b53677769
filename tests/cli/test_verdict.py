"""The verdict over a ledger, right or wrong."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from rota.cli.verdict import Verdict, judge
from rota.store import RunRow, ScheduleRow, State

START = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


def at(second: int) -> datetime:
    return START + timedelta(seconds=second)


def entry(second: int, state: State = "succeeded", **more: Any) -> RunRow:
    return RunRow(
        id=second, job_id="report", config_id=1, idempotency_key=None, correlation_id="", parent_id=None,
        parameters="{}", priority=5, state=state, reason=None, attempt=1, losses=0, run_at=at(second),
        due_at=at(second), replica_id=1, created_at=at(second), started_at=at(second), finished_at=at(second),
        progress=None, result=None, error=None,
        **{"missed_from": None, "missed_to": None, "missed_count": None} | more,
    )  # fmt: skip


def verdict(*rows: RunRow, until: int) -> Verdict:
    """Of a schedule `every 2s` whose next tick is at this second."""
    schedule = ScheduleRow(
        job_id="report", cron="every 2s", id=1, version=1, next_run_at=at(until), paused_at=None, resumed_at=None,
        invalid_reason=None, declared=None, created_at=START, updated_at=START,
    )  # fmt: skip
    return judge(schedule, rows, 2)


def test_books_with_one_row_for_each_tick_are_clean() -> None:
    found = verdict(entry(0), entry(2), entry(4, "skipped"), until=6)
    assert found == Verdict("report", expected=3, run=2, skipped=1, lost=0, duplicated=0)
    assert found.clean


def test_ticks_that_were_missed_together_are_covered_by_their_one_row() -> None:
    missed = entry(2, "skipped", missed_from=at(2), missed_to=at(8), missed_count=4)
    found = verdict(entry(0), missed, entry(10), until=12)
    assert found == Verdict("report", expected=6, run=2, skipped=4, lost=0, duplicated=0)


def test_a_row_that_is_missing_is_a_tick_lost() -> None:
    found = verdict(entry(0), entry(4), until=6)
    assert (found.lost, found.clean) == (1, False)


def test_a_tick_that_did_not_come_to_its_end_is_lost() -> None:
    for state in ("queued", "running", "failed", "cancelled"):
        assert verdict(entry(0), entry(2, state), until=4).lost == 1


def test_a_second_row_of_a_tick_is_a_tick_doubled() -> None:
    found = verdict(entry(0), entry(2), entry(2), until=4)
    assert (found.duplicated, found.clean) == (1, False)


def test_a_row_of_an_instant_that_was_no_tick_counts_as_doubled() -> None:
    assert verdict(entry(0), entry(1), entry(2), until=4).duplicated == 1


def test_books_without_any_tick_are_not_clean() -> None:
    assert not verdict(until=4).clean
