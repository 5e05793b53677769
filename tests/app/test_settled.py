"""However a handler ends, its run is settled, and whoever comes after it finds everything as it should be."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from pathlib import Path

import pytest

from rota import Context, Retry, Rota, RunFailed, StoreUnavailable, lane
from rota.replica import Replica
from tests.app.waiting import until
from tests.patience import PATIENCE


class Abort(BaseException):
    """As some test libraries have."""


class Odd(Retry):
    def pause(self, attempt: int, error: BaseException) -> float | None:
        raise ZeroDivisionError("a policy of somebody's own")


@pytest.fixture
def no_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """A beat looks too, and would hide that nobody was told."""
    monkeypatch.setattr(Replica, "take_in", lambda replica, pulse: None)


async def test_whatever_a_handler_raises_its_run_has_failed(url: str) -> None:
    app = Rota(url, concurrency=1)

    @app.job
    async def odd(kind: str) -> None:
        if kind == "abort":
            raise Abort
        if kind == "interrupt":
            raise KeyboardInterrupt
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(60)

    @app.job(retry=Odd())
    async def unlucky() -> None:
        raise ValueError

    @app.job
    async def swallows() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return

    @app.job
    async def cancelling() -> int:
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    async with app:
        for call, error in (
            (odd.call("abort"), "Abort"),
            (odd.call("interrupt"), "KeyboardInterrupt"),
            (odd.call("cancel"), "CancelledError"),
            (unlucky.call(), "ZeroDivisionError in settling ValueError"),
        ):
            with pytest.raises(RunFailed, match=error):
                await (await app.enqueue(call)).result(PATIENCE)
        await (await swallows.enqueue()).result(PATIENCE)
        assert await (await cancelling.enqueue()).result(PATIENCE) == 0


async def test_what_a_handler_makes_of_a_context_variable_does_not_reach_the_next(url: str) -> None:
    tenant = ContextVar("tenant", default="nobody")
    tenant.set("startup")
    app = Rota(url, concurrency=1)

    @app.job
    async def seen() -> str:
        before = tenant.get()
        tenant.set("somebody's")
        return before

    async with app:
        for _ in range(3):
            assert await (await seen.enqueue()).result(PATIENCE) == "startup"


@pytest.mark.usefixtures("no_beats")
async def test_the_run_that_a_failure_makes_starts_without_a_beat(url: str) -> None:
    app, explained = Rota(url), asyncio.Event()

    @app.job
    async def doomed() -> None:
        raise ValueError

    @doomed.on_failure
    async def explain(run_id: int, error: str) -> None:
        explained.set()

    async with app:
        await doomed.enqueue()
        await asyncio.wait_for(explained.wait(), PATIENCE)


@pytest.mark.usefixtures("no_beats")
async def test_the_place_of_a_thread_that_was_given_up_is_taken_when_it_comes_back(url: str) -> None:
    app, let_go = Rota(url, threads=1, hints=False), threading.Event()

    @app.job(timeout=0.1)
    def stuck() -> None:
        let_go.wait()

    @app.job
    def fine() -> str:
        return "fine"

    async with app:
        with pytest.raises(RunFailed, match="took longer"):
            await (await stuck.enqueue()).result(PATIENCE)
        behind, worker = await fine.enqueue(), app._worker
        assert worker is not None
        [claimer] = worker._claimers

        async def starved() -> bool:
            return claimer.starved

        await until(starved)
        let_go.set()
        assert await behind.result(PATIENCE) == "fine"


async def test_threads_that_cannot_start_are_tried_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app, real, refused = Rota(url, threads=2), threading.Thread.start, list[str]()
    monkeypatch.setattr(lane, "_HIRE_AGAIN", 0.01)

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith("rota-job") and len(refused) < 3:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        real(thread)

    @app.job
    def fine(n: int) -> int:
        return n

    monkeypatch.setattr(threading.Thread, "start", start)
    async with app:
        runs = [await fine.enqueue(n) for n in range(3)]
        assert [await run.result(PATIENCE) for run in runs] == [0, 1, 2]
    assert len(refused) == 3


async def test_a_thread_that_was_refused_is_not_asked_for_at_each_run(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, real, refused = Rota(url, threads=2), threading.Thread.start, list[str]()
    monkeypatch.setattr(lane, "_HIRE_AGAIN", 3600)

    def start(thread: threading.Thread) -> None:
        if thread.name == "rota-job-1":
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        real(thread)

    @app.job
    def fine() -> None: ...

    monkeypatch.setattr(threading.Thread, "start", start)
    async with app:
        runs = await app.enqueue_many([fine.call() for _ in range(50)])
        for run in runs:
            await run.result(PATIENCE)
    assert len(refused) == 1


@pytest.mark.parametrize("fails", [True, False])
async def test_a_statement_that_a_handler_left_unread_does_not_keep_the_file(tmp_path: Path, fails: bool) -> None:
    app, kept = Rota(f"sqlite:///{tmp_path}/rota.db"), list[object]()

    @app.job(transactional=True)
    async def leaves(ctx: Context, unread: bool) -> None:
        if unread:
            kept.append(ctx.connection.execute("select 1; select 2"))
            if fails:
                raise ValueError

    async with app:
        first = await leaves.enqueue(unread=True)

        async def over() -> bool:
            return await first.finished()

        await until(over)
        await (await leaves.enqueue(unread=False)).result(PATIENCE)


async def test_what_no_waiting_mends_is_told_at_once(tmp_path: Path) -> None:
    text = tmp_path / "text.db"
    text.write_text("no database at all, but long enough to look like the beginning of one" * 20)
    for place in (tmp_path / "missing" / "rota.db", tmp_path, text):
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(StoreUnavailable, match=r"no directory|is a directory|not a SQLite database"):
                async with Rota(f"sqlite:///{place}", connect_timeout=3600):
                    pass
