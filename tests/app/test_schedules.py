"""Schedules as a user and an operator meet them: declared in code, typed into the database, changed while it runs."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from rota import (
    BadExpression,
    BadInput,
    BadParameters,
    Context,
    NameClash,
    Rota,
    StaleWrite,
    UnknownJob,
    UnknownTimezone,
)
from rota.store import RunFilter
from tests.app.waiting import until
from tests.harness import execute, move_clock
from tests.patience import PATIENCE


async def test_a_cron_declared_in_code_runs_with_its_tick(url: str) -> None:
    app = Rota(url)
    ticks: list[Context] = []

    @app.cron("* * * * * *")
    async def every_second(ctx: Context) -> None:
        ticks.append(ctx)

    async with app:
        await until(lambda: _at_least(ticks, 2))
    for ctx in ticks:
        assert ctx.tick.schedule_id is not None
        assert ctx.tick.due_at.microsecond == 0
        tick = f"schedule:{int(ctx.tick.due_at.timestamp())}000000000"
        assert ctx.idempotency_key == f"{ctx.job}:{ctx.tick.schedule_id}:{tick}"
    assert len({ctx.idempotency_key for ctx in ticks}) == len(ticks)


async def _at_least(seen: list[Context], count: int) -> bool:
    return len(seen) >= count


async def test_a_row_typed_into_the_database_is_all_it_takes(url: str) -> None:
    app = Rota(url)
    calls: list[int] = []

    @app.job("job_ingest")
    async def ingest(max_x: int) -> None:
        calls.append(max_x)

    async with app:
        await execute(
            url,
            "INSERT INTO scheduler_configs (job_id, name, cron, parameters) "
            """VALUES ('job_ingest', 'default', '* * * * * *', '{"max_x": 20}')""",
        )
        await until(lambda: _truth(calls))
        assert set(calls) == {20}
        await execute(url, """UPDATE scheduler_configs SET parameters = '{"max_x": 30}'""")
        await until(lambda: _contains(calls, 30))

        await execute(url, "UPDATE scheduler_configs SET enabled = false")
        [schedule] = await app.schedules()
        frontier = schedule.row.next_run_at
        await move_clock(url, 60)
        count = len(await app.store.find_runs(RunFilter(config_id=schedule.id)))
        await execute(url, "UPDATE scheduler_configs SET enabled = true")
        row = await until(lambda: _skipped(app, schedule.id))
        assert row.reason == "paused"
        assert row.due_at == frontier
        assert row.missed_count is not None
        assert 58 <= row.missed_count <= 75
        assert count < len(await app.store.find_runs(RunFilter(config_id=schedule.id)))


async def _truth(value: object) -> object:
    return value


async def _contains(values: list[int], value: int) -> bool:
    return value in values


async def _skipped(app: Rota, schedule_id: int):  # type: ignore[no-untyped-def]
    rows = await app.store.find_runs(RunFilter(config_id=schedule_id, states=("skipped",)))
    return rows[-1] if rows else None


async def test_a_changed_cron_reschedules_without_restart(url: str) -> None:
    app = Rota(url)
    seen: list[Context] = []

    @app.cron("0 0 1 1 *", timezone="Europe/Paris")
    async def yearly(ctx: Context) -> None:
        seen.append(ctx)

    async with app:
        await until(lambda: _next_run_at(app))
        await execute(url, "UPDATE scheduler_configs SET cron = 'every 1s'")
        await until(lambda: _truth(seen))


async def _next_run_at(app: Rota) -> datetime | None:
    [schedule] = await app.schedules()
    return schedule.row.next_run_at


@pytest.mark.parametrize(
    ("column", "value", "complaint"),
    [
        ("cron", "61 * * * *", "minute"),
        ("cron", "0 0 30 2 *", "never"),
        ("timezone", "Mars/Olympus", "unknown time zone 'Mars/Olympus'"),
        ("parameters", '{"colour": 1}', "colour"),
    ],
)
async def test_a_row_that_makes_no_sense_is_marked_and_the_rest_go_on(
    url: str, column: str, value: str, complaint: str
) -> None:
    app = Rota(url)
    seen: list[Context] = []

    @app.every("1s")
    async def good(ctx: Context) -> None:
        seen.append(ctx)

    @app.job()
    async def bad() -> None: ...

    async with app:
        await execute(url, "INSERT INTO scheduler_configs (job_id, name, cron) VALUES ('bad', 'typed', 'every 1s')")
        await execute(url, f"UPDATE scheduler_configs SET {column} = '{value}' WHERE job_id = 'bad'")
        reason = await until(lambda: _invalid_reason(app))
        assert complaint in reason
        before = len(seen)
        await until(lambda: _at_least(seen, before + 1))
        fixed = {"cron": "'every 1s'", "timezone": "'UTC'", "parameters": "'{}'"}[column]
        await execute(url, f"UPDATE scheduler_configs SET {column} = {fixed} WHERE job_id = 'bad'")
        await until(lambda: _ran(app, "bad"))


async def _invalid_reason(app: Rota) -> str | None:
    rows = [schedule.row for schedule in await app.schedules("bad")]
    return rows[0].invalid_reason


async def _ran(app: Rota, job: str) -> object:
    return await app.store.find_runs(RunFilter(job_id=job, states=("succeeded",)))


async def test_an_unknown_job_in_a_row_is_marked_until_code_declares_it(url: str) -> None:
    app = Rota(url)

    @app.job()
    async def other() -> None: ...

    async with app:
        await execute(url, "INSERT INTO scheduler_configs (job_id, cron) VALUES ('ghost', 'every 1s')")
        reason = await until(lambda: _reason_of(app, "ghost"))
        assert "unknown job" in reason
        assert "ghost" in reason
    newer = Rota(url)

    @newer.job()
    async def ghost() -> None: ...

    async with newer:
        await until(lambda: _ran(newer, "ghost"))


async def _reason_of(app: Rota, job: str) -> str | None:
    [schedule] = await app.schedules(job)
    return schedule.row.invalid_reason


async def test_schedules_made_and_changed_at_run_time(url: str) -> None:
    app = Rota(url)
    seen: list[str] = []

    @app.job()
    async def greet(name: str) -> None:
        seen.append(name)

    async with app:
        schedule = await app.schedule(greet, "every 1s", name="eu", parameters={"name": "Ada"})
        await until(lambda: _truth(seen))
        same = (await app.schedules("greet", "eu"))[0]
        await schedule.refresh()
        await same.refresh()
        await schedule.pause()
        with pytest.raises(StaleWrite, match="somebody changed it"):
            await same.update(priority=1)
        assert (await schedule.refresh()).enabled is False
        await schedule.resume()
        assert (await schedule.refresh()).enabled is True
        run = await schedule.trigger()
        assert await run.result(PATIENCE) is None
        due = datetime(2030, 1, 1, tzinfo=UTC)
        first, second = await schedule.trigger(due), await schedule.trigger(due)
        assert (first.id, second.created) == (second.id, False)
        assert (await first.row()).idempotency_key == schedule.key(due)
        with pytest.raises(BadInput, match=r"greet/eu does not tick at .*; its ticks near it: "):
            await schedule.trigger(due + timedelta(milliseconds=1))
        await schedule.delete()
        assert await app.schedules() == []
        assert (await first.row()).config_id is None


async def test_a_schedule_tells_how_its_runs_are_doing(url: str) -> None:
    app = Rota(url)

    @app.every("1s")
    async def sometimes(ctx: Context) -> None:
        if ctx.tick.due_at.second % 2:
            raise ValueError("odd second")

    async with app:

        async def enough() -> bool:
            [schedule] = await app.schedules()
            ended = schedule.row.last_run_at is not None and schedule.row.last_state in ("failed", "succeeded")
            return ended and schedule.row.failure_count >= 1 and schedule.row.run_count >= 2

        await until(enough)
        [schedule] = await app.schedules()
        assert schedule.row.last_error is not None
        assert schedule.row.last_error.startswith("ValueError: odd second")


async def test_what_code_declares_and_what_an_operator_edits(url: str) -> None:
    def make(cron: str, priority: int) -> Rota:
        app = Rota(url)

        @app.cron(cron, priority=priority)
        async def nightly() -> None: ...

        return app

    async with make("0 3 * * *", 5):
        await execute(url, "UPDATE scheduler_configs SET enabled = false, cron = '0 4 * * *'")
    async with make("0 3 * * *", 7) as app:
        [schedule] = await app.schedules()
        assert (schedule.row.enabled, schedule.row.cron, schedule.row.priority) == (False, "0 4 * * *", 7)
    async with make("0 5 * * *", 7) as app:
        [schedule] = await app.schedules()
        assert (schedule.row.enabled, schedule.row.cron) == (False, "0 5 * * *")


def test_what_is_wrong_with_a_declaration_is_said_when_it_is_made() -> None:
    app = Rota("sqlite:///unused.db")

    async def job(n: int = 1) -> None: ...

    with pytest.raises(BadExpression, match="minute"):
        app.cron("60 * * * *")(job)
    with pytest.raises(UnknownTimezone):
        app.cron("* * * * *", timezone="Europe/Pariss", job="a")(job)
    with pytest.raises(BadParameters):
        app.cron("* * * * *", parameters={"n": "one"}, job="b")(job)
    with pytest.raises(BadInput, match="overlap"):
        app.cron("* * * * *", overlap="both", job="c")(job)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="whole number of seconds"):
        app.every(0.5, job="d")(job)
    with pytest.raises(BadInput, match="skip_if_older_than"):
        app.cron("* * * * *", skip_if_older_than=timedelta(0), job="e")(job)
    nightly = app.cron("0 3 * * *", job="f")(job)
    app.cron("0 4 * * *", name="again")(nightly)
    with pytest.raises(NameClash, match="two different schedules"):
        app.cron("0 5 * * *")(nightly)


async def test_a_schedule_of_a_job_that_is_not_declared_is_refused(url: str) -> None:
    app = Rota(url)
    async with app.client():
        with pytest.raises(UnknownJob, match="unknown job 'nobody'"):
            await app.schedule("nobody", "every 1s")
        assert await app.schedules() == []
        await asyncio.sleep(0)
