"""What is run by hand leaves the same rows as what real replicas run by themselves."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from rota import Context, Permanent, Rota
from rota.store import FINISHED, RunFilter, RunRow
from rota.testing import Clock, cluster
from tests.app.waiting import until

NOON = datetime(2027, 5, 14, 12, 0, 10, tzinfo=UTC)


def service(url: str) -> Rota:
    app = Rota(url)

    @app.cron("0 * * * *", catch_up="all", catch_up_limit=2, parameters={"region": "eu"})
    async def collect(ctx: Context, region: str) -> str:
        if ctx.tick.due_at.hour == 15:
            await report.using(key="once", correlation_id="c").enqueue(day=ctx.tick.due_at.date().isoformat())
        return region

    @app.every("1h", catch_up="skip", name="never late")
    async def ping() -> None: ...

    @app.job(priority=3)
    def report(day: str) -> list[str]:
        return [day]

    @app.job()
    async def broken() -> None:
        raise Permanent("it cannot work")

    @broken.on_failure
    async def cleanup(run_id: int, error: str) -> None: ...

    return app


def story(rows: list[RunRow]) -> list[tuple[Any, ...]]:
    """All that does not depend on who ran it, and in which order of the same instant."""
    return sorted(
        (
            row.job_id, row.idempotency_key or "", row.state, row.reason or "", row.attempt, row.losses, row.priority,
            row.parameters if row.job_id != "broken:on_failure" else "", row.result or "", row.missed_count or 0,
            str(row.due_at), str(row.missed_from), str(row.missed_to), row.config_id is None, row.parent_id is None,
            row.correlation_id == "c", (row.error or "").split("\n")[0], str(row.run_at), str(row.finished_at),
            str(row.started_at),
        )
        for row in rows
    )  # fmt: skip


async def by_hand(url: str) -> list[RunRow]:
    app = service("sqlite:///never-opened.db")
    async with cluster(app, replicas=2, start=NOON, url=url) as it:
        await it.advance(hours=3)
        await app.jobs["broken"].enqueue()
        await it.run_due()
        return await it.ledger()


async def by_real_replicas(url: str, count: int) -> list[RunRow]:
    clock, app, other = Clock(url), service(url), service(url)
    await clock.travel_to(NOON)

    async def planned() -> bool:
        return all(schedule.row.next_run_at for schedule in await app.schedules())

    async def done() -> list[RunRow]:
        rows = await app.store.find_runs(RunFilter())
        return rows if len(rows) == count and all(row.state in FINISHED for row in rows) else []

    async with app, other:
        await until(planned)
        await clock.advance(hours=3)
        await app.jobs["broken"].enqueue()
        app._replica.wake_scheduler()  # type: ignore[union-attr]
        return await until(done)


async def test_the_ledger_is_that_of_real_replicas(url: str, other_url: str) -> None:
    ours = await by_hand(url)
    theirs = await by_real_replicas(other_url, len(ours))
    assert story(ours) == story(theirs)
    assert [row.state for row in ours].count("skipped") == 2
