"""A cluster in one process: what its clock, its runs and its faults do, on both stores."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from rota import BadInput, Context, Retry, Rota, RunFailed, StoreUnavailable, Timeout
from rota.testing import Cluster, Ran, cluster
from tests.harness import execute

PARIS = ZoneInfo("Europe/Paris")
NOON = datetime(2027, 5, 14, 12, tzinfo=UTC)


# -- time ------------------------------------------------------------------------------------------


async def test_a_month_end_job_fires_once_in_the_night_that_repeats_its_hour_though_a_replica_died(url: str) -> None:
    app, closed = Rota(), []

    @app.cron("30 2 L * *", timezone="Europe/Paris")  # on 31 October 2027 it is half past two twice
    async def close_month(ctx: Context) -> None:
        closed.append(ctx.tick.due_at)

    async with cluster(app, replicas=3, start=datetime(2027, 10, 30, 12, tzinfo=PARIS), url=url) as it:
        await it.kill(0)
        [run] = await it.run_until(datetime(2027, 11, 1, 12, tzinfo=PARIS))
        assert run.replica in (1, 2)
        assert await it.who_ran(run) == run.replica
        assert [row.state for row in await it.ledger()] == ["succeeded"]
    assert closed == [datetime(2027, 10, 31, 0, 30, tzinfo=UTC)]


async def test_a_night_that_leaves_the_hour_out_has_one_tick_at_its_end(url: str) -> None:
    app = Rota()

    @app.cron("30 2 L * *", timezone="Europe/Paris")  # on 31 March 2030 it is never half past two
    async def close_month() -> None: ...

    async with cluster(app, replicas=2, start=datetime(2030, 3, 30, 12, tzinfo=PARIS), url=url) as it:
        [run] = await it.run_for(days=2)
        assert run.due_at == datetime(2030, 3, 31, 3, tzinfo=PARIS)


def hourly(**options: Any) -> Rota:
    app = Rota()

    @app.every("1h", **options)
    async def tick(ctx: Context) -> str:
        return ctx.tick.due_at.strftime("%H:%M")

    return app


async def test_time_that_is_gone_through_misses_nothing(url: str) -> None:
    async with cluster(hourly(), start=NOON, url=url) as it:
        ran = await it.run_for(hours=3)
        assert [run.result() for run in ran] == ["13:00", "14:00", "15:00"]
        assert await it.now() == NOON + timedelta(hours=3)


async def test_time_that_is_leapt_over_is_caught_up_with_as_after_an_outage(url: str) -> None:
    async with cluster(hourly(), start=NOON, url=url) as it:
        await it.advance(hours=3)
        [run] = await it.run_due()
        assert run.result() == "15:00"
        [missed, _] = await it.ledger()
        assert (missed.state, missed.reason, missed.missed_count) == ("skipped", "catch_up", 2)
        assert await it.run_due() == []


async def test_the_clock_stands_still_where_it_was_put(url: str) -> None:
    async with cluster(hourly(), start=NOON, url=url) as it:
        assert await it.now() == NOON
        await asyncio.sleep(0.01)
        assert await it.now() == NOON
        assert await it.advance(minutes=1, seconds=30) == NOON + timedelta(seconds=90)


async def test_moving_the_clock_kills_nobody_who_lives(url: str) -> None:
    async with cluster(hourly(), replicas=3, start=NOON, url=url) as it:
        before = [member.ids for member in it.replicas]
        await it.advance(days=400)
        await it.run_due()
        assert [member.ids for member in it.replicas] == before


async def test_a_schedule_made_while_the_cluster_is_up_ticks_from_then_on(url: str) -> None:
    app = Rota()

    @app.job()
    async def report(region: str) -> str:
        return region

    async with cluster(app, start=NOON, url=url) as it:
        await app.schedule(report, "0 18 * * *", parameters={"region": "eu"})
        await it.travel_to(NOON + timedelta(hours=6))
        assert [run.result() for run in await it.run_due()] == ["eu"]


# -- running ---------------------------------------------------------------------------------------


async def test_what_a_job_enqueues_runs_too_and_results_have_their_types(url: str) -> None:
    app = Rota()

    @app.job()
    async def first() -> None:
        await second.enqueue(day=datetime(2027, 1, 1, tzinfo=UTC))

    @app.job()
    def second(day: datetime) -> datetime:  # a plain function, in a thread
        return day + timedelta(days=1)

    async with cluster(app, start=NOON, url=url) as it:
        run = await first.enqueue()
        assert await run.state() == "queued"
        ran = await it.run_due()
        assert [one.job for one in ran] == ["first", "second"]
        assert ran[1].result() == datetime(2027, 1, 2, tzinfo=UTC)
        assert await run.state() == "succeeded"


async def test_a_broken_job_does_not_raise_but_its_result_does(url: str) -> None:
    app = Rota()

    @app.job()
    async def broken(amount: int) -> int:
        return amount // 0

    async with cluster(app, start=NOON, url=url) as it:
        await broken.enqueue(3)
        [run] = await it.run_due()
        assert (run.state, run.parameters) == ("failed", {"amount": 3})
        assert "ZeroDivisionError" in str(run)
        with pytest.raises(RunFailed, match="ZeroDivisionError"):
            run.result()


async def test_retries_come_when_their_pause_is_over(url: str) -> None:
    app, tried = Rota(), []

    @app.job(retry=Retry(attempts=2, base=60, jitter=False))
    async def flaky(ctx: Context) -> str:
        tried.append(ctx.attempt)
        if len(tried) < 3:
            raise OSError("not yet")
        return "done"

    async with cluster(app, start=NOON, url=url) as it:
        await flaky.enqueue()
        [run] = await it.run_due()
        assert (run.state, run.attempt) == ("queued", 1)
        assert await it.run_due() == []
        ran = await it.run_for(minutes=5)
        assert [(one.state, one.attempt) for one in ran] == [("queued", 2), ("succeeded", 3)]


async def test_delayed_runs_wait_for_the_clock(url: str) -> None:
    app = Rota()

    @app.job()
    async def remind() -> None: ...

    async with cluster(app, start=NOON, url=url) as it:
        await remind.using(delay=timedelta(hours=1)).enqueue()
        await it.advance(minutes=59)
        assert await it.run_due() == []
        await it.advance(minutes=1)
        assert [run.job for run in await it.run_due()] == ["remind"]


async def test_a_limit_holds_and_everything_still_runs(url: str) -> None:
    app, now, most = Rota(), 0, 0

    @app.job(concurrency_limit=2)
    async def work() -> None:
        nonlocal now, most
        now, most = now + 1, max(most, now + 1)
        await asyncio.sleep(0)
        now -= 1

    async with cluster(app, replicas=2, start=NOON, url=url) as it:
        await work.enqueue_many(work.call() for _ in range(7))
        assert len(await it.run_due()) == 7
    assert most == 2


async def test_a_job_that_hangs_is_named(url: str) -> None:
    app = Rota()

    @app.job()
    async def hangs() -> None:
        await asyncio.Event().wait()

    async with cluster(app, start=NOON, url=url) as it:
        run = await hangs.enqueue()
        with pytest.raises(Timeout, match=rf"replica-0.*{run.id}.*start_due"):
            await it.run_due(timeout=0.1)


async def test_replicas_may_differ(url: str) -> None:
    made: list[Rota] = []

    def deployment() -> Rota:
        """The second one has a job that the first one does not know."""
        app = Rota()

        @app.job()
        async def old() -> None: ...

        if made:

            @app.job()
            async def new() -> str:
                return "new"

        made.append(app)
        return app

    async with cluster(deployment, replicas=2, start=NOON, url=url) as it:
        await made[1].jobs["new"].enqueue()
        [run] = await it.run_due()
        assert (run.replica, run.result()) == (1, "new")


# -- what can go wrong -----------------------------------------------------------------------------


class Held:
    """A job that says where it runs, and ends when it is told to."""

    def __init__(self) -> None:
        self.app = Rota()
        self.started: list[str] = []
        self.ended: list[str] = []
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()

        @self.app.job()
        async def held(ctx: Context) -> str:
            self.started.append(ctx.replica)
            self.begun.set()
            await self.may_end.wait()
            self.ended.append(ctx.replica)
            return ctx.replica

        self.job = held

    def let_go(self) -> None:
        self.may_end.set()


async def holding(it: Cluster, held: Held) -> int:
    """Which replica has the job in hand now."""
    run = await held.job.enqueue()
    assert await it.start_due() == 1
    await held.begun.wait()
    holder = await it.who_ran(run)
    assert holder is not None
    assert it.replicas[holder].running == (run.id,)
    return holder


async def test_the_run_of_a_killed_replica_is_run_again_by_another(url: str) -> None:
    held = Held()
    async with cluster(held.app, replicas=2, start=NOON, url=url) as it:
        victim = await holding(it, held)
        await it.kill(victim)
        held.let_go()
        assert await it.run_due() == []  # nobody has noticed yet
        await it.advance(seconds=2)
        [run] = await it.run_due()
        assert (run.replica, run.attempt, run.state) == (1 - victim, 2, "succeeded")
        [row] = await it.ledger()
        assert row.losses == 1
        assert held.ended == [f"replica-{1 - victim}"]  # what was killed took no other step


async def test_a_frozen_replica_wakes_up_deposed(url: str) -> None:
    held = Held()
    async with cluster(held.app, replicas=2, start=NOON, url=url) as it:
        victim = await holding(it, held)
        before = it.replicas[victim].ids
        await it.pause(victim)
        held.let_go()
        await asyncio.sleep(0.01)
        assert held.ended == []  # it does not proceed
        await it.advance(seconds=10)
        [run] = await it.run_due()
        assert (run.replica, run.attempt) == (1 - victim, 2)
        await it.resume(victim)
        assert await it.run_due() == []
        assert it.replicas[victim].ids > before
        assert await it.who_ran(run) == 1 - victim
        assert len(held.started) == 2


async def test_a_short_freeze_costs_nothing(url: str) -> None:
    held = Held()
    async with cluster(held.app, replicas=2, start=NOON, url=url) as it:
        victim = await holding(it, held)
        before = it.replicas[victim].ids
        await it.pause(victim)
        await it.advance(seconds=1)
        held.let_go()
        await it.resume(victim)
        [run] = await it.run_due()
        assert (run.replica, run.attempt, run.state) == (victim, 1, "succeeded")
        assert it.replicas[victim].ids == before


async def test_a_replica_that_is_cut_off_goes_on_but_what_it_says_is_refused(url: str) -> None:
    held = Held()
    async with cluster(held.app, replicas=2, start=NOON, url=url) as it:
        victim = await holding(it, held)
        before = it.replicas[victim].ids
        await it.partition(victim)
        held.let_go()
        await it.advance(seconds=10)
        [run] = await it.run_due()
        assert run.replica == 1 - victim
        assert sorted(held.ended) == ["replica-0", "replica-1"]  # at least once is what is promised
        await it.heal(victim)
        await it.run_due()
        assert await it.who_ran(run) == 1 - victim
        assert it.replicas[victim].ids > before
        [row] = await it.ledger()
        assert (row.state, row.attempt, row.result) == ("succeeded", 2, f'"replica-{1 - victim}"')


async def test_a_replica_that_is_back_in_time_keeps_its_run(url: str) -> None:
    held = Held()
    async with cluster(held.app, replicas=2, start=NOON, url=url) as it:
        victim = await holding(it, held)
        before = it.replicas[victim].ids
        await it.partition(victim)
        await it.advance(seconds=4)
        held.let_go()
        await it.heal(victim)
        [run] = await it.run_due()
        assert (run.replica, run.attempt) == (victim, 1)
        assert it.replicas[victim].ids == before


async def test_handlers_of_a_replica_that_is_cut_off_cannot_enqueue_by_the_back_door(url: str) -> None:
    app, begun, may_go = Rota(), asyncio.Event(), asyncio.Event()
    said: list[str] = []

    @app.job()
    async def other() -> None: ...

    @app.job()
    async def work() -> None:
        begun.set()
        await may_go.wait()
        try:
            await other.enqueue()
        except StoreUnavailable as error:
            said.append(str(error))
            raise

    async with cluster(app, start=NOON, url=url) as it:
        await work.enqueue()
        await it.start_due()
        await begun.wait()
        await it.partition(0)
        may_go.set()
        while not said:
            await asyncio.sleep(0)
        await it.heal(0)
        [run] = await it.run_due()
        assert "cut this replica off" in (run.error or "")
        assert [row.job_id for row in await it.ledger()] == ["work"]


async def test_what_a_killed_replica_wrote_in_its_transaction_is_rolled_back(url: str) -> None:
    app, begun = Rota(), asyncio.Event()
    may_end = False

    @app.job(transactional=True)
    async def move(ctx: Context) -> None:
        table = "migrations" if url.startswith("sqlite") else "rota.migrations"
        statement = f"insert into {table} (version, name, compatible_with) values (9000 + {ctx.attempt}, 'x', 1)"
        ctx.connection.execute(statement) if url.startswith("sqlite") else await ctx.connection.execute(statement)
        begun.set()
        if not may_end:
            await asyncio.Event().wait()

    async with cluster(app, replicas=2, start=NOON, url=url) as it:
        run = await move.enqueue()
        await it.start_due()
        await begun.wait()
        victim = await it.who_ran(run)
        assert victim is not None
        await it.kill(victim)
        may_end = True
        await it.advance(seconds=2)
        [again] = await it.run_due()
        assert again.attempt == 2
        assert await app.store.schema_version() == (9002, 1)
        assert await execute(url, "select version from migrations where version > 9000") == [(9002,)]


async def test_a_lock_of_a_killed_replica_is_free_when_it_is_buried(url: str) -> None:
    app, begun, order = Rota(), asyncio.Event(), []

    @app.job()
    async def work(ctx: Context) -> None:
        async with app.lock("ledger"):
            order.append(ctx.replica)
            begun.set()
            if ctx.attempt == 1:
                await asyncio.Event().wait()

    async with cluster(app, replicas=2, start=NOON, url=url) as it:
        run = await work.enqueue()
        await it.start_due()
        await begun.wait()
        victim = await it.who_ran(run)
        assert victim is not None
        await it.kill(victim)
        await it.advance(seconds=2)
        [again] = await it.run_due()
        assert again.succeeded
        assert order == [f"replica-{victim}", f"replica-{1 - victim}"]


async def test_a_plain_function_of_a_killed_replica_ends_for_nobody(url: str) -> None:
    app, begun, may_end = Rota(), threading.Event(), threading.Event()

    @app.job()
    def work(ctx: Context) -> int:
        begun.set()
        if ctx.attempt == 1:
            may_end.wait(30)
        return ctx.attempt

    async with cluster(app, replicas=2, start=NOON, url=url) as it:
        run = await work.enqueue()
        await it.start_due()
        await asyncio.to_thread(begun.wait, 30)
        victim = await it.who_ran(run)
        assert victim is not None
        await it.kill(victim)
        await it.advance(seconds=2)
        [again] = await it.run_due()
        may_end.set()
        assert (again.replica, again.result()) == (1 - victim, 2)


async def test_with_every_replica_dead_nothing_runs(url: str) -> None:
    async with cluster(hourly(), replicas=2, start=NOON, url=url) as it:
        await it.kill(0)
        await it.kill(1)
        assert await it.run_for(hours=3) == []
        assert [repr(member) for member in it.replicas] == ["<replica-0, killed>", "<replica-1, killed>"]


# -- bad input -------------------------------------------------------------------------------------


async def test_what_cannot_be_done_is_said_and_not_done(url: str) -> None:
    app = hourly()
    async with cluster(app, replicas=2, start=NOON, url=url) as it:
        with pytest.raises(BadInput, match=r"no replica 2: this cluster has 2, from 0"):
            await it.kill(2)
        with pytest.raises(BadInput, match=r"replica 0 is alive, not paused"):
            await it.resume(0)
        await it.kill(0)
        with pytest.raises(BadInput, match=r"replica 0 is killed"):
            await it.kill(0)
        with pytest.raises(BadInput, match="cannot go back"):
            await it.travel_to(NOON - timedelta(seconds=1))
        with pytest.raises(BadInput, match="no time zone"):
            await it.travel_to(datetime(2028, 1, 1))
        with pytest.raises(BadInput, match="no time zone"):
            await it.run_until(datetime(2028, 1, 1))
        with pytest.raises(BadInput, match="negative"):
            await it.advance(hours=-1)
        with pytest.raises(BadInput, match="open already"):
            async with cluster(app):
                pass
        with pytest.raises(BadInput, match="give the cluster an empty one"):
            async with cluster(hourly(), url=url):
                pass
    with pytest.raises(BadInput, match="1 replica or more"):
        async with cluster(app, replicas=0):
            pass


async def test_the_apps_own_database_is_not_touched(tmp_path: Path) -> None:
    own = tmp_path / "own.db"
    app = Rota(f"sqlite:///{own}")

    @app.job()
    async def work() -> None: ...

    async with cluster(app) as it:
        await work.enqueue()
        ran: list[Ran] = await it.run_due()
        assert len(ran) == 1
        assert str(own) not in it.url
    assert not own.exists()
    assert app.settings.url == f"sqlite:///{own}"
    async with app.client():
        assert own.exists()
