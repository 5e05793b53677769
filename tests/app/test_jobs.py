"""Jobs: declared, enqueued, run; on both stores, in one process."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import weakref
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from typing import Any

import pytest
from rich.pretty import pretty_repr

from rota import (
    BadInput,
    BadParameters,
    Context,
    NameClash,
    NotOpen,
    Permanent,
    Retry,
    Rota,
    Run,
    RunFailed,
    Timeout,
    WrongState,
    current_context,
)
from rota.store import RunFilter
from tests.app.waiting import until
from tests.harness import execute
from tests.patience import PATIENCE


@dataclass
class Size:
    width: int
    day: date


async def test_an_async_handler_and_a_plain_function_return_typed_results(url: str) -> None:
    app = Rota(url)

    @app.job()
    async def double(size: Size) -> Size:
        return Size(size.width * 2, size.day)

    @app.job()
    def shout(text: str, times: int = 1) -> str:
        assert threading.current_thread() is not threading.main_thread()
        return text.upper() * times

    async with app:
        doubled = await double.enqueue(Size(3, date(2026, 11, 15)))
        shouted = await shout.enqueue("a", times=2)
        assert await doubled.result(PATIENCE) == Size(6, date(2026, 11, 15))
        assert await shouted.result(PATIENCE) == "AA"


async def test_a_handler_sees_its_context(url: str) -> None:
    app = Rota(url)
    seen: list[tuple[Context, Context | None]] = []

    @app.job()
    async def look(ctx: Context, n: int) -> None:
        seen.append((ctx, current_context()))

    async with app:
        run = await look.using(key="a key", correlation_id="order 7").enqueue(1)
        await run.result(PATIENCE)
    [(ctx, current)] = seen
    assert ctx is current
    assert (ctx.run_id, ctx.job, ctx.attempt, ctx.correlation_id) == (run.id, "look", 1, "order 7")
    assert ctx.idempotency_key == "a key"
    row_made = ctx.tick.due_at
    assert abs((datetime.now(UTC) - row_made).total_seconds()) < 3600
    assert ctx.tick.schedule_id is None
    assert ctx.replica_id > 0
    assert repr(ctx) == f"<run {run.id} of job 'look', attempt 1>"
    assert pretty_repr(ctx) == f"Context(run_id={run.id}, job='look', attempt=1)"
    assert not gc.is_tracked(ctx)
    assert current_context() is None


async def test_a_failed_run_is_tried_again_and_the_attempts_are_counted(url: str) -> None:
    app = Rota(url)
    attempts: list[int] = []

    @app.job(retry=Retry(attempts=2, base=0.01))
    async def flaky(ctx: Context) -> str:
        attempts.append(ctx.attempt)
        if ctx.attempt < 3:
            raise ValueError("not yet")
        return "done"

    async with app:
        run = await flaky.enqueue()
        assert await run.result(PATIENCE) == "done"
        assert attempts == [1, 2, 3]
        assert (await run.row()).attempt == 3


async def test_after_the_last_attempt_it_is_failed_and_the_failure_handler_runs(url: str) -> None:
    app = Rota(url)
    told: list[tuple[int, str]] = []

    @app.job(retry=Retry(attempts=1, base=0.01))
    async def doomed() -> None:
        raise ValueError("boom")

    @doomed.on_failure
    async def explain(run_id: int, error: str) -> None:
        told.append((run_id, error.splitlines()[0]))

    async with app:
        run = await doomed.enqueue()
        with pytest.raises(RunFailed, match="ValueError: boom"):
            await run.result(PATIENCE)
        await until(lambda: _truth(told))
        assert told == [(run.id, "ValueError: boom")]
        [child] = await app.store.find_runs(RunFilter(job_id="doomed:on_failure"))
        assert (child.parent_id, child.correlation_id) == (run.id, str(run.id))


async def _truth(value: object) -> object:
    return value


@pytest.mark.parametrize("raised", [Permanent("never"), KeyError("listed")])
async def test_some_errors_are_final_at_once(url: str, raised: Exception) -> None:
    app = Rota(url)

    @app.job(retry=Retry(attempts=5, base=0.01, give_up_on=(KeyError,)))
    async def fatal() -> None:
        raise raised

    async with app:
        run = await fatal.enqueue()
        with pytest.raises(RunFailed):
            await run.result(PATIENCE)
        assert (await run.row()).attempt == 1


async def test_the_traceback_of_a_failure_begins_at_the_handler(url: str) -> None:
    app = Rota(url)

    @app.job()
    def plain() -> None:
        raise ValueError("boom")

    @app.job()
    async def coroutine() -> None:
        raise ValueError("boom")

    @app.job(transactional=True)
    async def within() -> None:
        raise ValueError("boom")

    async with app:
        for job in (plain, coroutine, within):
            run = await job.enqueue()
            with pytest.raises(RunFailed):
                await run.result(PATIENCE)
            error = (await run.row()).error or ""
            assert error.startswith("ValueError: boom\n\n  File ")
            assert error.count("  File ") == 1
            assert f", in {job.name}\n" in error


async def test_an_app_is_let_go_of_though_its_handlers_kept_their_contexts(url: str) -> None:
    """The garbage collector sees no contexts: they must not lead back to the app when their runs are over."""

    async def used() -> weakref.ref[Rota]:
        app, kept = Rota(url), list[Context]()

        @app.job(timeout=600)
        async def keep(ctx: Context) -> None:
            kept.append(ctx)

        @app.job(timeout=600)
        def keep_too(ctx: Context) -> None:
            kept.append(ctx)

        async with app:
            for job in (keep, keep_too):
                await (await job.enqueue()).result(PATIENCE)
        return weakref.ref(app)

    app = await used()

    async def gone() -> bool:
        gc.collect()
        return app() is None

    await until(gone)  # the loop may have to turn once more


async def test_a_run_that_takes_too_long_fails_whether_async_or_in_a_thread(url: str) -> None:
    app = Rota(url)
    release = threading.Event()

    @app.job(timeout=0.2)
    async def slow() -> None:
        await asyncio.sleep(60)

    @app.job(timeout=0.2)
    def stuck(ctx: Context) -> None:
        release.wait(60)

    async with app:
        for run in (await slow.enqueue(), await stuck.enqueue()):
            with pytest.raises(RunFailed, match=r"took longer than its 0\.2 s"):
                await run.result(PATIENCE)
        release.set()


async def test_a_running_handler_is_cancelled_on_request(url: str) -> None:
    app = Rota(url)
    stopping: list[bool] = []

    @app.job(retry=3)
    async def endless(ctx: Context) -> None:
        stopping.append(ctx.stopping)
        try:
            await asyncio.sleep(600)
        finally:
            stopping.append(ctx.stopping)

    @app.job()
    def polite(ctx: Context) -> None:
        while not ctx.stopping:
            threading.Event().wait(0.01)
        raise RuntimeError("stopped")

    async with app:
        for run in (await endless.enqueue(), await polite.enqueue()):
            await until(partial(_is, run, "running"))
            assert await run.cancel() == "running"
            with pytest.raises(RunFailed, match="cancelled"):
                await run.result(PATIENCE)
        assert stopping == [False, True]


async def _is(run: Run[Any], state: str) -> bool:
    return await run.state() == state


async def test_a_queued_run_that_is_cancelled_never_starts_and_can_be_retried(url: str) -> None:
    app = Rota(url)
    ran: list[int] = []

    @app.job()
    async def work(n: int) -> None:
        ran.append(n)

    async with app.client():
        run = await work.enqueue(1)
        assert await run.cancel() == "cancelled"
        with pytest.raises(RunFailed, match="cancelled"):
            await run.result(5)
    async with app:
        again = app.run(run.id)
        await again.retry()
        await until(again.finished)
        assert ran == [1]
        with pytest.raises(WrongState, match="is succeeded"):
            await again.retry()


async def test_progress_is_visible_while_it_runs(url: str) -> None:
    app = Rota(url)
    go = asyncio.Event()

    @app.job()
    async def march(ctx: Context) -> None:
        ctx.progress(3, 10, "on the way")
        await go.wait()

    async with app:
        run = await march.enqueue()
        progress = await until(run.progress)
        assert progress == {"done": 3, "total": 10, "note": "on the way"}
        assert await run.state() == "running"
        go.set()
        await run.result(PATIENCE)


async def test_the_same_key_makes_one_run_for_all_callers(url: str) -> None:
    app = Rota(url)

    @app.job()
    async def charge(order: int) -> None: ...

    async with app.client():
        runs = await asyncio.gather(*(charge.using(key="order-7").enqueue(7) for _ in range(20)))
        assert len({run.id for run in runs}) == 1
        assert sum(run.created for run in runs) == 1


async def test_children_carry_the_correlation_of_their_parent(url: str) -> None:
    app = Rota(url)

    @app.job()
    async def child(n: int) -> None: ...

    @app.job()
    async def parent() -> None:
        await child.enqueue_many(child.call(n) for n in range(3))

    async with app:
        run = await parent.enqueue()
        await run.result(PATIENCE)
        family = await app.store.find_runs(RunFilter(correlation_id=str(run.id)))
        assert [(row.job_id, row.parent_id) for row in family] == [("child", run.id)] * 3 + [("parent", None)]


async def test_context_variables_do_not_leak_from_one_run_to_the_next(url: str) -> None:
    app = Rota(url, concurrency=1)
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="clean")
    seen: list[str] = []

    @app.job()
    async def stain(n: int) -> None:
        seen.append(variable.get())
        variable.set("dirty")

    async with app:
        for run in await stain.enqueue_many(stain.call(n) for n in range(5)):
            await run.result(PATIENCE)
    assert seen == ["clean"] * 5


async def test_a_delayed_run_waits_for_its_time(url: str) -> None:
    app = Rota(url)

    @app.job()
    async def later() -> None: ...

    async with app:
        run = await later.using(delay=0.5).enqueue()
        far = await later.using(run_at=datetime(2100, 1, 1, tzinfo=UTC)).enqueue()
        await run.result(PATIENCE)
        row = await run.row()
        assert row.started_at is not None
        assert row.started_at >= row.run_at
        assert await far.state() == "queued"
        with pytest.raises(Timeout, match="has not finished within"):
            await far.result(0.05)


async def test_no_more_runs_of_a_job_at_once_than_its_limit(url: str) -> None:
    app = Rota(url)
    now, most = 0, 0

    @app.job(concurrency_limit=2)
    async def narrow(n: int) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.02)
        now -= 1

    async with app:
        for run in await narrow.enqueue_many(narrow.call(n) for n in range(8)):
            await run.result(PATIENCE)
    assert most == 2


async def test_enqueue_without_running_anything(url: str) -> None:
    app = Rota(url)

    @app.job()
    async def work(n: int) -> int:
        return n

    with pytest.raises(NotOpen, match="async with app"):
        await work.enqueue(1)
    async with app.client():
        run = await work.enqueue(41)
        assert await run.state() == "queued"
        assert await app.store.list_replicas() == []
    async with app:
        assert await app.run(run.id).result(PATIENCE) == 41


async def test_bad_arguments_are_refused_before_anything_is_stored(url: str) -> None:
    app = Rota(url)

    @app.job()
    async def work(n: int, name: str = "x") -> None: ...

    async with app.client():
        for args, kwargs, complaint in [
            ((), {}, "missing a required argument: 'n'"),
            ((1, "a", 3), {}, "too many positional"),
            (("one",), {}, "Expected `int`"),
            ((1,), {"colour": "red"}, "unexpected keyword"),
            ((1, object()), {}, "must be JSON"),
            ((1, "x" * 2_000_000), {}, "bytes of arguments"),
            ((1, "a\x00b"), {}, "NUL"),
        ]:
            with pytest.raises(BadParameters, match=complaint):
                await work.enqueue(*args, **kwargs)  # type: ignore[arg-type]
        for options in (
            {"key": ""},
            {"key": "schedule:1"},
            {"delay": -1},
            {"priority": 100},
            {"run_at": datetime(2030, 1, 1)},
        ):
            with pytest.raises(BadInput):
                work.using(**options)
        assert await execute(url, "select count(*) from job_runs") == [(0,)]


def test_a_job_needs_no_parentheses_and_no_second_declaration_of_its_policies() -> None:
    app = Rota("sqlite:///unused.db")

    @app.job
    async def bare(n: int) -> int:
        return n

    assert bare.name == "bare"
    assert bare.call(3).parameters == '{"n":3}'
    with pytest.raises(BadInput, match="has its policies already"):
        app.cron("* * * * *", retry=5)(bare)
    with pytest.raises(BadInput, match="bad schedule"):
        app.cron("wrong", job="left_behind")(bare.fn)
    assert list(app.jobs) == ["bare"]


async def test_two_functions_under_one_name_are_refused() -> None:
    app = Rota("sqlite:///unused.db")

    @app.job("same")
    async def first() -> None: ...

    with pytest.raises(NameClash, match="two functions are declared as job 'same'"):

        @app.job("same")
        async def second() -> None: ...

    with pytest.raises(BadInput, match="job name"):
        app.job("no spaces, please")(first.fn)


async def test_a_shutdown_gives_back_what_does_not_end_in_time(url: str) -> None:
    app = Rota(url, shutdown_timeout=0.1)
    started = asyncio.Event()

    @app.job()
    async def long() -> None:
        started.set()
        await asyncio.sleep(600)

    async with app:
        run = await long.enqueue()
        await started.wait()
    async with app.client():
        row = await app.run(run.id).row()
        assert (row.state, row.attempt, row.losses) == ("queued", 0, 0)
        assert await execute(url, "select count(*) from claims") == [(0,)]
        assert await app.store.list_replicas() == []
