"""The verdict over a ledger: what an independent enumeration expects, against what is in the tables.

Independent: ticks of `every Ns` are counted here by plain arithmetic, not by the code that made them.
"""

from __future__ import annotations

from dataclasses import dataclass

from rota.store import RunFilter, RunRow, ScheduleRow, Store

_PAGE = 1_000_000

SCHEDULES = {"heartbeat": 1, "report": 2, "import_feed": 3, "thumbnails": 2}
"""The jobs of the sample and the seconds between their ticks."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The books of one schedule, from its first tick to its frontier."""

    schedule: str
    expected: int
    run: int
    skipped: int
    lost: int
    duplicated: int

    @property
    def clean(self) -> bool:
        return self.lost == 0 and self.duplicated == 0


async def judge(store: Store, schedule: ScheduleRow, seconds: int) -> Verdict:
    """Judge a schedule `every {seconds}s`, created while the store's clock ran as now."""
    rows = await store.find_runs(RunFilter(config_id=schedule.id, limit=_PAGE))
    ticks = [row for row in rows if row.due_at is not None]
    covered: list[int] = []
    for row in ticks:
        covered.extend(_instants(row, seconds))
    if schedule.next_run_at is None or not covered:
        return Verdict(f"{schedule.job_id}/{schedule.name}", 0, 0, 0, 0, 0)
    # A new schedule never back-fills: its books begin with the first tick after a scheduler first saw it.
    expected = set(range(min(covered), int(schedule.next_run_at.timestamp()), seconds))
    finished = sum(1 for row in ticks if row.state == "succeeded")
    unfinished = sum(1 for row in ticks if row.state in ("queued", "running", "failed", "cancelled"))
    skipped = sum(row.missed_count or 1 for row in ticks if row.state == "skipped")
    return Verdict(
        schedule=f"{schedule.job_id}/{schedule.name}",
        expected=len(expected),
        run=finished,
        skipped=skipped,
        lost=len(expected - set(covered)) + unfinished,
        duplicated=len(covered) - len(set(covered)) + len(set(covered) - expected),
    )


def _instants(row: RunRow, seconds: int) -> range | list[int]:
    if row.missed_from is not None and row.missed_to is not None:
        return range(int(row.missed_from.timestamp()), int(row.missed_to.timestamp()) + 1, seconds)
    assert row.due_at is not None
    return [int(row.due_at.timestamp())]
