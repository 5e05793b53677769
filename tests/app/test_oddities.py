"""Handlers and rows that misbehave: each is settled by itself, and nobody else pays for it."""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from rota import BadInput, Breaker, Context, NotFound, NotOpen, Rota, RunFailed, Schedule, StoreUnavailable
from rota.store import Claim, Claimed, Outcome
from tests.app.waiting import until
from tests.harness import execute
from tests.patience import PATIENCE


async def test_an_error_that_is_no_text_does_not_keep_the_others(url: str) -> None:
    app = Rota(url)

    @app.job
    async def odd() -> None:
        raise ValueError("bad name " + os.fsdecode(b"\xff"))

    @odd.on_failure
    async def explain(run_id: int, error: str) -> None: ...

    @app.job
    async def fine() -> str:
        return "fine"

    async with app:
        failing, other = await odd.enqueue(), await fine.enqueue()
        assert await other.result(PATIENCE) == "fine"
        with pytest.raises(RunFailed, match="bad name"):
            await failing.result(PATIENCE)


async def test_an_outcome_that_cannot_be_stored_fails_alone(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app = Rota(url)

    @app.job
    async def work(n: int) -> int:
        return n

    async with app:
        real = type(app.store).finish_runs

        async def picky(self: object, outcomes: list[Outcome], closed: list[int]) -> object:
            if any(outcome.result == "13" for outcome in outcomes):
                raise BadInput("13 cannot be stored")
            return await real(self, outcomes, closed)  # type: ignore[arg-type]

        monkeypatch.setattr(type(app.store), "finish_runs", picky)
        runs = await work.enqueue_many(work.call(n) for n in range(10, 16))
        for n, run in enumerate(runs, 10):
            if n == 13:
                with pytest.raises(RunFailed, match="13 cannot be stored"):
                    await run.result(PATIENCE)
            else:
                assert await run.result(PATIENCE) == n


async def test_a_handler_that_is_cancelled_from_within_or_exits_has_failed(url: str) -> None:
    app = Rota(url, threads=1)

    @app.job
    async def inner() -> None:
        task = asyncio.create_task(asyncio.sleep(60))
        asyncio.get_running_loop().call_soon(task.cancel)
        await task

    @app.job
    def leaving() -> None:
        sys.exit(3)

    @app.job
    def fine() -> str:
        return "fine"

    async with app:
        for run in (await inner.enqueue(), await leaving.enqueue()):
            with pytest.raises(RunFailed, match=r"CancelledError|SystemExit"):
                await run.result(PATIENCE)
        assert await (await fine.enqueue()).result(PATIENCE) == "fine"


async def test_a_handler_is_asked_to_stop_once_and_may_clean_up(url: str) -> None:
    app = Rota(url, beat=0.05, lease=0.5, dead_after=1.0)
    cleaned = asyncio.Event()

    @app.job
    async def tidy() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            await asyncio.sleep(0.5)  # several beats
            cleaned.set()
            raise RuntimeError("while cleaning up")

    async with app:
        run = await tidy.enqueue()

        async def running() -> bool:
            return await run.state() == "running"

        await until(running)
        await run.cancel()
        with pytest.raises(RunFailed, match="cancelled"):
            await run.result(PATIENCE)
        assert cleaned.is_set()


async def test_one_odd_row_does_not_stop_the_others(url: str) -> None:
    app = Rota(url)

    @app.every("1s")
    async def fine() -> None: ...

    @app.job
    async def odd() -> None: ...

    async with app:
        await app.schedule(odd, "every 1s")
        await execute(url, "update scheduler_configs set next_run_at = '1970-01-01 00:00:00' where job_id = 'odd'")

        async def both_ran() -> bool:
            rows = await execute(url, "select distinct job_id from job_runs where state = 'succeeded'")
            return len(rows) == 2

        await until(both_ran)
    with pytest.raises(BadInput, match="ten years"):
        app.cron("* * * * *", skip_if_older_than=timedelta(days=4_000_000), job="x")(odd.fn)
    with pytest.raises(BadInput, match="of a year at most"):
        Breaker(pause=float("inf"))


async def test_a_limited_run_starts_soon_without_any_hint(url: str) -> None:
    app = Rota(url, hints=False, beat=0.2, lease=1.0, dead_after=2.0)

    @app.job(concurrency_limit=1)
    async def narrow() -> str:
        return "done"

    async with app:
        await asyncio.sleep(0.5)  # until the scheduler sleeps its longest sleep
        assert await (await narrow.enqueue()).result(20) == "done"


async def test_a_schedule_that_was_renamed_or_deleted_can_still_be_told_apart(url: str) -> None:
    app = Rota(url)

    @app.job
    async def work() -> None: ...

    async with app.client():
        schedule: Schedule = await app.schedule(work, "0 3 * * *", name="old")
        await execute(url, "update scheduler_configs set name = 'new'")
        await schedule.pause()
        assert (schedule.row.name, schedule.row.enabled) == ("new", False)
        await schedule.delete()
        with pytest.raises(NotFound, match="no schedule"):
            await schedule.pause()


def test_an_app_can_be_opened_in_one_loop_after_the_other(tmp_path: object) -> None:
    app = Rota(f"sqlite:///{tmp_path}/rota.db")

    @app.job
    async def work(n: int) -> int:
        return n

    async def once(n: int) -> int:
        async with app:
            return await (await work.enqueue(n)).result(PATIENCE)

    assert [asyncio.run(once(n)) for n in (1, 2)] == [1, 2]


async def test_whoever_waits_is_told_when_the_app_closes(url: str) -> None:
    app = Rota(url)

    @app.job
    async def work() -> None: ...

    async with app.client():
        waiting = asyncio.create_task((await work.enqueue()).result())
        await asyncio.sleep(0.05)
    with pytest.raises(NotOpen):
        await waiting


async def test_a_transactional_handler_that_blocks_itself_fails_in_the_open(tmp_path: object) -> None:
    app = Rota(f"sqlite:///{tmp_path}/rota.db")

    @app.job(transactional=True)
    async def book(ctx: Context) -> None:
        await app.schedule("book", "0 3 * * *")  # not by ctx.connection: it waits for the handler's own lock

    async with app:
        run = await book.enqueue()
        with pytest.raises(RunFailed, match="StoreUnavailable"):
            await run.result(PATIENCE)


async def test_a_run_that_takes_its_replicas_down_is_not_tried_for_ever(url: str) -> None:
    app = Rota(url, max_losses=3)
    started: list[int] = []

    @app.job(retry=10)
    async def poison(n: int) -> None:
        started.append(n)

    async with app.client():
        runs = await poison.enqueue_many(poison.call(n) for n in range(2))
        await execute(url, f"update job_runs set losses = 3 where id = {runs[0].id}")
    async with app:
        with pytest.raises(RunFailed, match="was lost with its replica 3 times"):
            await app.run(runs[0].id).result(PATIENCE)
        await app.run(runs[1].id).result(PATIENCE)
    assert started == [1]


async def test_a_claim_is_not_tried_again_under_a_number_that_was_given_up(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Rota(url)
    asked: list[tuple[int, int]] = []

    @app.job
    async def work() -> None: ...

    async with app:
        assert app._worker is not None
        standing = app._worker._standing
        mine = standing.number()

        async def cut(self: object, replica_id: int, token: int, jobs: list[str], limit: int) -> list[Claim]:
            asked.append((replica_id, token))
            if len(asked) == 1:
                monkeypatch.setattr(standing, "number", lambda: mine + 1)
                raise StoreUnavailable("cut")
            return []

        monkeypatch.setattr(type(app.store), "claim_runs", cut)

        async def asked_again() -> bool:
            app._worker.wake()  # type: ignore[union-attr]
            return len(asked) > 1

        await until(asked_again)
        monkeypatch.undo()
    assert (asked[0][0], asked[1][0]) == (mine, mine + 1)
    assert asked[0][1] != asked[1][1], "an old token may belong to an old number's claim"


async def test_what_was_claimed_for_a_number_that_was_given_up_does_not_run(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a minute in which the process was frozen, and the reply waited for it: others run it by now."""
    app = Rota(url)
    ran: list[int] = []
    numbers: list[int] = []

    @app.job
    async def work(n: int) -> None:
        ran.append(n)

    async with app:
        assert app._worker is not None
        worker, claim_runs = app._worker, type(app.store).claim_runs
        mine = worker._standing.number()

        async def late(self: Any, *args: Any) -> Claimed:
            claimed = await claim_runs(self, *args)
            if claimed.claims and not numbers:
                numbers.append(0)  # it does not trust itself; soon it will have joined anew
                asyncio.get_running_loop().call_later(0.05, numbers.append, mine + 1)
            return claimed

        monkeypatch.setattr(type(app.store), "claim_runs", late)
        monkeypatch.setattr(worker._standing, "number", lambda: numbers[-1] if numbers else mine)
        await work.enqueue(1)

        async def given_up() -> bool:
            return numbers[-1:] == [mine + 1] and not any(lane.asked for lane in worker.lanes)

        await until(given_up)
        assert not worker.holding
        monkeypatch.undo()
    assert ran == []


async def test_a_claim_that_is_under_way_at_the_stop_counts_as_no_attempt(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, claimed = Rota(url), asyncio.Event()

    @app.job
    async def work() -> None: ...

    async with app:
        real = app.store.claim_runs

        async def slow(*arguments: Any) -> Any:
            claims = await real(*arguments)
            if claims.claims:
                claimed.set()
                await asyncio.sleep(0.2)  # it is committed; the answer is on its way
            return claims

        monkeypatch.setattr(app.store, "claim_runs", slow)
        run = await work.enqueue()
        await asyncio.wait_for(claimed.wait(), PATIENCE)
    async with app.client():
        [row] = await app.store.get_runs([run.id])
    assert (row.state, row.attempt) in {("queued", 0), ("succeeded", 1)}


async def test_however_often_the_stop_is_cancelled_what_was_done_is_recorded(url: str) -> None:
    app, started, finish = Rota(url), asyncio.Event(), asyncio.Event()
    runs: list[int] = []

    @app.job
    async def work() -> None:
        started.set()
        await finish.wait()

    async def serve() -> None:
        async with app:
            runs.append((await work.enqueue()).id)
            await asyncio.Event().wait()

    serving = asyncio.create_task(serve())
    await asyncio.wait_for(started.wait(), PATIENCE)
    for _ in range(3):
        serving.cancel()
        await asyncio.sleep(0.05)
    finish.set()
    with pytest.raises(asyncio.CancelledError):
        await serving
    async with app.client():
        [row] = await app.store.get_runs(runs)
    assert (row.state, row.attempt) == ("succeeded", 1)


@pytest.mark.parametrize(
    "options",
    [
        {"run_at": datetime.min.replace(tzinfo=UTC)},
        {"run_at": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))},
        {"run_at": datetime.max.replace(tzinfo=UTC)},
        {"run_at": datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-12)))},
        {"delay": 2.6e11},
        {"delay": timedelta.max},
        {"delay": float("nan")},
        {"key": "half of \ud83d"},
        {"correlation_id": "\ud83d"},
    ],
    ids=str,
)
def test_what_a_store_could_not_give_back_is_refused_before_it_is_stored(options: dict[str, Any]) -> None:
    app = Rota("sqlite:///never-opened.db")

    @app.job()
    async def work() -> None: ...

    with pytest.raises(BadInput):
        work.using(**options)


@pytest.mark.parametrize("moment", [datetime.min, datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)])
async def test_a_tick_at_the_end_of_all_time_is_refused_and_stops_nobody(url: str, moment: datetime) -> None:
    app = Rota(url)

    @app.every("1h")
    async def work() -> str:
        return "done"

    async with app:
        [schedule] = await app.schedules()
        with pytest.raises(BadInput, match=r"due_at .* (no time zone|outside the years)"):
            await schedule.trigger(moment)
        with pytest.raises(BadInput, match=r"next_run_at .* (no time zone|outside the years)"):
            await schedule.update(next_run_at=moment)
        assert await (await schedule.trigger()).result(PATIENCE) == "done"
