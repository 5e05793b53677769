"""Ticks that start as they are made: in a whole replica, also when replies are lost and when it stops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from rota import Context, Rota
from rota.errors import StoreUnavailable
from rota.events import ServiceFailed, TicksFired
from rota.replica import Heart
from rota.store import Claim, Claimed, Fired, RunFilter
from tests.app.waiting import until
from tests.harness import execute


async def states(url: str) -> list[Any]:
    return await execute(url, "select state, attempt from job_runs order by id")


async def test_a_tick_needs_no_claim(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app = Rota(url)
    claimed: set[int] = set()

    @app.every("1s")
    async def work() -> None: ...

    async with app:
        store = type(app.store)
        original = store.claim_runs

        async def noted(self: Any, replica_id: int, token: int, *more: Any) -> Claimed:
            claimed.add(token)
            return await original(self, replica_id, token, *more)

        monkeypatch.setattr(store, "claim_runs", noted)
        before = len(await states(url))

        async def ran_without() -> bool:
            rows = await execute(url, "select lock_token from job_runs where state = 'succeeded' order by id")
            return any(token not in claimed for (token,) in rows[before:])

        await until(ran_without)
        monkeypatch.undo()


async def test_a_worker_that_is_too_busy_to_answer_gets_no_tick(url: str) -> None:
    """Others might have time for it: it waits where they see it."""
    app = Rota(url)
    second_made, made = threading.Event(), list[int]()
    resumed: list[datetime] = []

    def count(event: TicksFired) -> None:
        made.extend([1] * event.runs)
        if len(made) > 1:
            second_made.set()

    app.events.subscribe(TicksFired, count)

    @app.every("1s", concurrency_limit=0)
    async def work() -> None:
        if not resumed:
            assert second_made.wait(30)  # meanwhile the loop of the handlers stands still
            resumed.append(datetime.now(UTC))

    async def ran_both() -> bool:
        return (await states(url)).count(("succeeded", 1)) > 1

    async with app:
        await until(ran_both)
        second = (await app.store.find_runs(RunFilter(job_id="work")))[-2]
    assert second.created_at <= resumed[0]
    assert second.started_at is not None
    # SQLite keeps no more than the millisecond.
    assert second.started_at >= resumed[0].replace(microsecond=resumed[0].microsecond // 1000 * 1000)


async def test_a_tick_whose_reply_was_lost_runs_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app = Rota(url)
    ran: list[int] = []
    began: list[tuple[Claim, ...]] = []
    failures: list[ServiceFailed] = []
    app.events.subscribe(ServiceFailed, failures.append)

    @app.every("1s")
    async def work(ctx: Context) -> None:
        ran.append(ctx.run_id)

    async with app:
        store = type(app.store)
        original = store.fire_due

        async def lose(self: Any, *args: Any, **kwargs: Any) -> Fired:
            fired = await original(self, *args, **kwargs)
            if fired.claims and not began:
                began.append(fired.claims)
                raise StoreUnavailable("the reply was lost")
            return fired

        monkeypatch.setattr(store, "fire_due", lose)

        async def ran_it() -> bool:
            return bool(began) and began[0][0].id in ran and len(ran) > 1

        await until(ran_it)
        monkeypatch.undo()
    assert len(ran) == len(set(ran))
    assert [f.service for f in failures] == ["scheduler"]
    assert {state for state, _ in await states(url)} <= {"succeeded", "queued"}
    assert await execute(url, "select count(*) from job_runs where state = 'succeeded' and attempt <> 1") == [(0,)]


async def test_what_starts_while_the_replica_stops_is_given_back(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app = Rota(url)
    ran: list[int] = []
    made, stopping = threading.Event(), threading.Event()

    @app.every("1s")
    async def work() -> None:
        ran.append(1)

    async with app:
        store, worker = type(app.store), app._worker
        assert worker is not None
        original = store.fire_due

        async def slowly(self: Any, *args: Any, **kwargs: Any) -> Fired:
            fired = await original(self, *args, **kwargs)
            if fired.claims:
                made.set()
                while not stopping.is_set():
                    await asyncio.sleep(0.01)
            return fired

        monkeypatch.setattr(store, "fire_due", slowly)
        assert await asyncio.to_thread(made.wait, 30)
        before = len(ran)
        leaving = asyncio.create_task(worker.stop())
        await until(_true(lambda: worker._standing.ending))
        stopping.set()
        await leaving
        monkeypatch.undo()
    assert len(ran) == before
    assert (await states(url))[-1] == ("queued", 0)


async def test_what_started_for_an_incarnation_that_is_gone_does_not_run(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a minute in which the process was frozen: others run it by now."""
    app = Rota(url)
    ran: list[int] = []
    began: list[int] = []
    go_on = threading.Event()

    @app.every("1s", concurrency_limit=0)
    async def work(ctx: Context) -> None:
        ran.append(ctx.run_id)

    async with app:
        store, worker = type(app.store), app._worker
        assert worker is not None
        original, mine = store.fire_due, worker._standing.number()

        async def slowly(self: Any, *args: Any, **kwargs: Any) -> Fired:
            fired = await original(self, *args, **kwargs)
            if fired.claims and not began:
                began.extend(claim.id for claim in fired.claims)
                while not go_on.is_set():
                    await asyncio.sleep(0.01)
            return fired

        monkeypatch.setattr(store, "fire_due", slowly)
        await until(_true(lambda: began))
        numbers = [0]  # it does not trust itself; then it has joined anew
        monkeypatch.setattr(worker._standing, "number", lambda: numbers[0])
        go_on.set()
        await until(_true(lambda: worker._filling))
        numbers[0] = mine + 1
        await until(_true(lambda: not worker._filling))
        monkeypatch.undo()
    assert not set(began) & set(ran)


@pytest.mark.parametrize("patience", [60.0, 0.05])
async def test_a_store_that_does_not_answer_the_first_beat_is_waited_for(
    url: str, monkeypatch: pytest.MonkeyPatch, patience: float
) -> None:
    step, failed = Heart.step, list[float]()

    async def late(self: Heart) -> float | None:
        if len(failed) < 2:
            failed.append(patience)
            raise StoreUnavailable("no answer")
        return await step(self)

    monkeypatch.setattr(Heart, "step", late)
    app = Rota(url, connect_timeout=patience)
    if patience < 1:
        with pytest.raises(StoreUnavailable, match=r"no answer \(tried for 0.05 s\)"):
            await app.__aenter__()
        return
    async with app:
        assert [replica.name for replica in await app.store.list_replicas()] == [app.settings.replica]


def _true(ask: Callable[[], object]) -> Callable[[], Awaitable[bool]]:
    async def answer() -> bool:
        return bool(ask())

    return answer
