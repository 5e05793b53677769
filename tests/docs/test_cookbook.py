"""The queries of docs/sql.md, asked of a night of which everything is known."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from rota import Rota
from tests.docs.test_snippets import _FENCE, ROOT, Block, statements, under
from tests.harness import execute

PAGE = ROOT / "docs" / "sql.md"
NOW: datetime


@pytest.fixture(autouse=True)
def _a_new_now() -> None:
    """One for each test, and not that of the import: the others may have taken many minutes since then."""
    global NOW
    NOW = datetime.now(UTC).replace(microsecond=0)


def ago(**before: float) -> str:
    return f"'{NOW - timedelta(**before):%Y-%m-%d %H:%M:%S.%f}'"


def hours(hours: float) -> str:
    return ago(hours=hours)


@dataclass(frozen=True)
class Tick:
    """A row of the ledger; `due`, `started` and `finished` in hours ago."""

    job: str
    state: str
    due: float
    started: float | None = None
    finished: float | None = None
    reason: str | None = None
    missed: int | None = None
    attempt: int = 0
    losses: int = 0
    error: str | None = None

    def insert(self, n: int) -> str:
        row = {
            "idempotency_key": f"'schedule:{n}'",
            "correlation_id": f"'{n}'",
            "state": f"'{self.state}'",
            "run_at": hours(self.due),
            "due_at": hours(self.due),
            "attempt": str(self.attempt),
            "losses": str(self.losses),
        }
        if self.missed is not None:
            row |= {"missed_count": str(self.missed), "missed_from": hours(self.due), "missed_to": hours(self.due)}
        if self.started is not None:
            row |= {"started_at": hours(self.started), "replica_id": "901"}
        if self.finished is not None:
            row["finished_at"] = hours(self.finished)
        row |= {name: f"'{text}'" for name, text in (("reason", self.reason), ("error", self.error)) if text}
        return (
            f"insert into job_runs (job_id, config_id, {', '.join(row)}) select job_id, id, {', '.join(row.values())}"
            f" from scheduler_configs where job_id = '{self.job}' and name = 'default'"
        )


NIGHT = [
    Tick("collect", "skipped", due=5, reason="catch_up", missed=12),
    Tick("collect", "succeeded", due=4, started=3.75, finished=3, attempt=1),
    Tick("collect", "skipped", due=3.5, reason="overlap"),
    Tick("collect", "succeeded", due=2, started=2, finished=1.75, attempt=2, losses=1),
    Tick("collect", "skipped", due=96, reason="stale", missed=3),
    Tick("bill", "failed", due=1, started=1, finished=1, attempt=3, error="ValueError: no\n\nfile"),
    Tick("bill", "failed", due=7, started=7, finished=7, attempt=1, error="OSError: old\n\nfile"),
    Tick("report", "running", due=2, started=2, attempt=1),
    Tick("report", "queued", due=0.05),
]


async def a_night(url: str) -> None:
    """Two replicas, six schedules, and what became of their ticks."""
    app = Rota(url)

    @app.cron("0 3 * * *", timezone="Europe/Paris", parameters={"day": "today"})
    async def report(day: str) -> None: ...

    @app.every("5m")
    async def collect() -> None: ...

    @app.every("1h")
    async def bill() -> None: ...

    async with app.client():
        await app.store.declare([job.row() for job in app.jobs.values()], list(app._schedules.values()))
    for statement in (
        f"update scheduler_configs set next_run_at = {ago(hours=-1)}",
        "update scheduler_configs set cron = '0 4 * * *' where job_id = 'report'",
        """update scheduler_configs set parameters = '{"day":  "yesterday"}' where job_id = 'report'""",
        f"update scheduler_configs set next_run_at = {ago(hours=-2)} where job_id = 'report'",
        "update scheduler_configs set enabled = false where job_id = 'bill'",
        "insert into scheduler_configs (job_id, name, cron, invalid_reason) values ('report', 'typed', 'x', 'no cron')",
        f"insert into scheduler_configs (job_id, cron, next_run_at) values ('gone', '@daily', {ago(hours=-5)})",
        "insert into scheduler_configs (job_id, name, cron, next_run_at)"
        f" values ('collect', 'held', '@daily', {ago(hours=3)})",
        f"""insert into replicas (id, name, host, pid, jobs, session, beat_at)
            values (901, 'a', 'here', 1, '["report", "collect", "bill"]', '-', {ago(seconds=-60)})""",
        f"""insert into replicas (id, name, host, pid, jobs, session, beat_at)
            values (902, 'b', 'here', 2, '["report"]', '-', {ago(minutes=10)})""",
    ):
        await execute(url, statement)
    for n, tick in enumerate(NIGHT):
        await execute(url, tick.insert(n))


async def answers(url: str, heading: str) -> list[list[tuple[object, ...]]]:
    """What each query under the heading finds, as plain values."""
    found = []
    for match in _FENCE.finditer(under(PAGE, heading)):
        block = Block(match[1], tuple(match[2].split()), match[3], heading)
        if block.language == "sql" and block.is_for(url):
            found += [[tuple(row) for row in await execute(url, one)] for one in statements(block)]
    return found


async def test_what_did_not_run_last_night_is_listed_with_the_reason(url: str) -> None:
    await a_night(url)
    ticks, schedules = await answers(url, "What did not run last night, and why")
    assert [(job, count, state, why) for job, _, _, count, state, why in ticks] == [
        ("bill", 1, "failed", "OSError: old"),
        ("collect", 12, "skipped", "catch_up"),
        ("collect", 1, "skipped", "overlap"),
        ("bill", 1, "failed", "ValueError: no"),
    ]
    assert schedules == [
        ("bill", "default", "paused"),
        ("collect", "held", "overdue: somebody holds it"),
        ("gone", "default", "no replica declares the job"),
        ("report", "typed", "invalid: no cron"),
    ]


async def test_no_tick_ran_twice_and_what_was_started_again_is_listed(url: str) -> None:
    await a_night(url)
    [[(ticks, different)], again] = await answers(url, "What ran twice")
    assert ticks == different == 9
    assert [(job, attempt, losses) for _, job, _, attempt, losses, *_ in again] == [("collect", 2, 1), ("bill", 3, 0)]
    with pytest.raises(Exception, match=r"(?i)unique"):
        await execute(
            url,
            "insert into job_runs (job_id, config_id, idempotency_key, correlation_id, run_at)"
            " select job_id, config_id, idempotency_key, 'x', run_at from job_runs"
            " where idempotency_key = 'schedule:1'",
        )


async def test_late_ticks_and_by_how_much(url: str) -> None:
    await a_night(url)
    [late] = await answers(url, "Late ticks")
    assert [(job, int(str(seconds).split(".")[0])) for job, _, _, seconds, _ in late] == [("collect", 900)]


async def test_slow_jobs_and_what_waits(url: str) -> None:
    await a_night(url)
    slow, waits = await answers(url, "Slow jobs")
    assert [(job, runs, float(str(mean)), float(str(longest))) for job, runs, mean, longest in slow] == [
        ("collect", 2, 1800.0, 2700.0)
    ]
    assert [(job, queued) for job, queued, _ in waits] == [("report", 1)]


async def test_failures_by_job_with_the_newest_error(url: str) -> None:
    await a_night(url)
    by_job, _ = await answers(url, "Failures by job")
    assert [(job, failed, error) for job, failed, _, error in by_job] == [("bill", 2, "ValueError: no")]


async def test_stuck_runs_and_what_the_queued_ones_wait_for(url: str) -> None:
    await a_night(url)
    running, queued, *_ = await answers(url, "Find stuck runs")
    assert [(job, replica) for _, job, _, _, replica in running] == [("report", "a")]
    assert [(job, waits_for) for _, job, _, waits_for in queued] == [("report", "a replica")]


async def test_what_comes_next_in_its_order(url: str) -> None:
    await a_night(url)
    [coming] = await answers(url, "What comes next")
    assert [(job, name) for _, job, name, *_ in coming] == [
        ("collect", "held"), ("collect", "default"), ("report", "default"), ("gone", "default"),
    ]  # fmt: skip


async def test_who_is_alive_and_who_is_silent(url: str) -> None:
    await a_night(url)
    alive, leaders = await answers(url, "Who is alive")
    assert [(name, float(str(silent)) > 500, running) for _, name, _, _, _, silent, running in alive] == [
        ("a", False, 1), ("b", True, 0),
    ]  # fmt: skip
    assert leaders == []


async def test_where_the_database_differs_from_the_code(url: str) -> None:
    await a_night(url)
    fields, undeclared = await answers(url, "Where the database differs from the code")
    assert [(job, field) for job, _, field, *_ in fields] == [
        ("bill", "enabled"), ("report", "cron"), ("report", "parameters"),
    ]  # fmt: skip
    [cron] = [row[3:] for row in fields if row[2] == "cron"]
    assert cron == ("0 4 * * *", "0 3 * * *")
    assert [(job, name) for job, name, *_ in undeclared] == [
        ("collect", "held"),
        ("gone", "default"),
        ("report", "typed"),
    ]


async def test_a_pause_of_everything_is_undone_for_what_it_paused(url: str) -> None:
    await a_night(url)
    await execute(url, f"update scheduler_configs set paused_at = {ago(hours=30)} where job_id = 'bill'")
    [pause, resume] = [
        one
        for match in _FENCE.finditer(under(PAGE, "Pause, resume, reschedule"))
        if (block := Block(match[1], tuple(match[2].split()), match[3], "")).is_for(url)
        for one in statements(block)
        if re.search(r"WHERE enabled|NOT enabled", one)
    ]
    await execute(url, pause)
    assert await execute(url, "select count(*) from scheduler_configs where enabled") == [(0,)]
    await execute(url, resume)
    assert [job for (job,) in await execute(url, "select job_id from scheduler_configs where not enabled")] == ["bill"]


async def test_how_the_schedules_are_doing_and_which_need_help(url: str) -> None:
    await a_night(url)
    all_of_them, invalid, overdue = await answers(url, "How the schedules are doing")
    assert len(all_of_them) == 6
    assert [(job, name) for _, job, name, _ in invalid] == [("report", "typed")]
    assert [(job, name) for _, job, name, _ in overdue] == [("collect", "held")]


async def test_what_ran_and_what_did_not_is_one_list(url: str) -> None:
    await a_night(url)
    ticks, _ = await answers(url, "What ran, what did not, and why")
    assert sorted(str(state) for _, _, _, state, *_ in ticks) == [
        "failed", "failed", "queued", "running", "skipped", "skipped", "skipped", "succeeded", "succeeded",
    ]  # fmt: skip
