"""Locks as a service meets them: exclusion, waiting, losing; on both stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from rota import BadInput, Context, LockLost, LockNotAcquired, NotOpen, Rota, StoreUnavailable, contest, keeper
from rota.events import Event, LockAcquired, LockContended, LockLapsed
from rota.replica import Replica
from tests.app.waiting import until
from tests.harness import Databases, execute

QUICK: dict[str, Any] = {"beat": 0.2, "lease": 0.6, "dead_after": 1.0}
LONG_AGO = "'2020-01-01 00:00:00.000000'"


@asynccontextmanager
async def replicas(url: str, count: int, **settings: Any) -> AsyncIterator[list[Rota]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Rota(url, replica=f"r{n}", **settings)) for n in range(count)]


def recorded(app: Rota, kind: type[Event]) -> list[Any]:
    found: list[Any] = []
    app.events.subscribe(kind, found.append)
    return found


async def no_rows(url: str) -> bool:
    return not await execute(url, "select * from lock_holders")


async def depose(url: str, app: Rota) -> None:
    """The others give it up while it is silent."""
    await execute(url, f"delete from replicas where name = '{app.settings.replica}'")


def replica_of(app: Rota) -> Replica:
    assert app._keeper is not None
    assert app._keeper._replica_id.__closure__ is not None
    found = app._keeper._replica_id.__closure__[0].cell_contents
    assert isinstance(found, Replica)
    return found


async def cut(url: str, app: Rota) -> None:
    """Its lifeline breaks: the session lock is free."""
    replica = replica_of(app)
    if url.startswith("sqlite"):
        assert replica._loop is not None
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(replica.heart.stop(), replica._loop))
        replica.heart.wake()
    else:
        await execute(
            url,
            f"select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and objid = {replica.id}"
            " and classid = 1919906914",
        )


# -- exclusion and waiting -------------------------------------------------------------------------


async def test_one_at_a_time_over_tasks_and_replicas(url: str) -> None:
    inside, most, fences = 0, 0, []

    async def work(app: Rota) -> None:
        nonlocal inside, most
        async with app.lock("ledger") as lock:
            inside += 1
            most = max(most, inside)
            fences.append(lock.fence)
            await asyncio.sleep(0.005)
            assert lock.held
            inside -= 1

    async with replicas(url, 3) as apps:
        await asyncio.gather(*(work(app) for app in apps for _ in range(8)))
        assert await no_rows(url)
    assert most == 1
    assert fences == sorted(fences)
    assert len(set(fences)) == 24


async def test_a_semaphore_lets_in_its_limit(url: str) -> None:
    inside, most = 0, 0

    async def work(app: Rota) -> None:
        nonlocal inside, most
        async with app.semaphore("gpu", limit=3):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.02)
            inside -= 1

    async with replicas(url, 2) as apps:
        await asyncio.gather(*(work(app) for app in apps for _ in range(8)))
    assert most == 3


async def test_those_who_wait_in_one_process_come_in_their_order(url: str) -> None:
    async with Rota(url) as app:
        order: list[int] = []

        async def work(number: int) -> None:
            async with app.lock("ledger"):
                order.append(number)

        async with app.lock("ledger"):
            tasks = []
            for number in range(5):
                tasks.append(asyncio.create_task(work(number)))
                await asyncio.sleep(0.01)
        await asyncio.gather(*tasks)
    assert order == list(range(5))


async def test_a_release_wakes_a_waiter_of_another_replica(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contest, "_POLL", 20.0)
    async with replicas(url, 2) as [one, two]:
        await asyncio.sleep(0.3)  # their ears are open by now
        async with one.lock("ledger"):
            waiting = asyncio.create_task(two.lock("ledger").acquire(timeout=10))
            await asyncio.sleep(0.3)
            assert not waiting.done()
        async with asyncio.timeout(5):
            assert (await waiting).fence == 2


async def test_names_numbers_semaphores_and_keys_are_apart(url: str) -> None:
    async with Rota(url) as app:
        locks = [
            app.lock("42"), app.lock(42), app.lock(4, 2), app.lock(-42), app.lock("rota:key:42"),
            app.lock("rota:name:rota:key:42"), app.semaphore("42", limit=1), app.serialize("42"), app.serialize(42),
        ]  # fmt: skip
        assert len({lock.name for lock in locks}) == len(locks)
        for lock in locks:
            assert await lock.try_lock()
        assert app.lock("ledger").name == "ledger"
        for lock in locks:
            await lock.release()


@pytest.mark.parametrize(
    "key",
    [(), ("",), (True,), (1.5,), (None,), (1, 2, 3), ("a", "b"), ("a", 1), (2**63,), (-(2**63) - 1,), (2**31, 0),
     (0, -(2**31) - 1), ("x" * 501,), ("a\x00b",), ("\ud800",), (b"a",)],
)  # fmt: skip
async def test_a_key_that_is_none_is_refused(key: tuple[Any, ...]) -> None:
    with pytest.raises(BadInput):
        Rota("sqlite:///x.db").lock(*key)


async def test_the_edges_of_the_numbers_are_keys() -> None:
    app = Rota("sqlite:///x.db")
    assert app.lock(2**63 - 1).name != app.lock(-(2**63)).name
    assert app.lock(2**31 - 1, -(2**31)).name == f"rota:keys:{2**31 - 1},{-(2**31)}"
    for limit in (0, -1, True, 1.5):
        with pytest.raises(BadInput):
            app.semaphore("gpu", limit=limit)  # type: ignore[arg-type]
    for timeout in (-1, float("nan"), float("inf")):
        with pytest.raises(BadInput):
            app.lock("x", timeout=timeout)
    with pytest.raises(NotOpen):
        await app.lock("x").acquire()


async def test_too_late_names_the_lock_its_holder_and_the_way_out(url: str) -> None:
    async with replicas(url, 2) as [one, two]:
        async with one.lock("ledger"):
            for lock in (two.lock("ledger", timeout=0.2), two.lock("ledger", timeout=0)):
                with pytest.raises(LockNotAcquired) as refused:
                    async with lock:
                        raise AssertionError("it was had")
                said = str(refused.value)
                assert "lock 'ledger' could not be had within 0" in said
                assert "held by r0 since 20" in said
                assert "rota locks release ledger" in said
            assert isinstance(refused.value, TimeoutError)
            with pytest.raises(LockNotAcquired):
                await two.lock("ledger").acquire(timeout=0.1)
        async with two.lock("ledger", timeout=0) as hold:
            assert hold.held


async def test_those_behind_the_first_in_line_have_their_own_timeouts(url: str) -> None:
    async with replicas(url, 2) as [one, two]:
        async with one.lock("ledger"):
            first = asyncio.create_task(two.lock("ledger").acquire())
            await asyncio.sleep(0.1)
            with pytest.raises(LockNotAcquired, match="held by r0 since"):
                await two.lock("ledger").acquire(timeout=0.1)
        assert (await first).held


async def test_try_lock_does_not_wait(url: str) -> None:
    async with replicas(url, 2) as [one, two]:
        lock = one.lock("ledger")
        assert await lock.try_lock()
        assert (lock.held, lock.fence) == (True, 1)
        assert not await two.lock("ledger").try_lock()
        await lock.release()
        assert not lock.held
        with pytest.raises(LockLost, match="not held by this task"):
            await lock.release()
        assert await two.lock("ledger").try_lock()


async def test_a_task_that_has_it_cannot_have_it_once_more(url: str) -> None:
    async with Rota(url) as app:
        shared = app.lock("ledger")
        async with shared:
            for again in (shared, app.lock("ledger")):
                with pytest.raises(BadInput, match="not re-entrant"):
                    await again.acquire()
                with pytest.raises(BadInput, match="not re-entrant"):
                    await again.try_lock()
            # Another task of this process waits; one object will do for both.
            waiting = asyncio.create_task(shared.run(asyncio.sleep, 0, "done"))
            await asyncio.sleep(0.05)
            assert not waiting.done()
        assert await waiting == "done"
        async with shared:
            pass


async def test_cancelling_a_wait_leaves_nothing_behind(url: str) -> None:
    async with replicas(url, 2) as [one, two]:
        for pause in (0.0, 0.001, 0.002, 0.005, 0.01, 0.3):
            async with one.lock("ledger"):
                waiting = asyncio.create_task(two.lock("ledger").acquire())
                await asyncio.sleep(pause)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
        # Also of one that would be had.
        for n in range(40):
            taking = asyncio.create_task(two.lock("ledger").acquire())
            await asyncio.sleep(0.0002 * n)
            taking.cancel()
            with suppress(asyncio.CancelledError):
                hold = await taking
                await hold.let_go(hold)
            async with one.lock("ledger", timeout=5):
                pass
        await until(lambda: no_rows(url))


def answers_lost(monkeypatch: pytest.MonkeyPatch, app: Rota, times: int) -> None:
    """The next tries are carried out, but nobody hears of it."""
    take, left = app.store.take_lock, times

    async def cut_off(*arguments: Any, **more: Any) -> Any:
        nonlocal left
        taken = await take(*arguments, **more)
        left -= 1
        if left >= 0:
            raise StoreUnavailable("the answer was lost")
        return taken

    monkeypatch.setattr(app.store, "take_lock", cut_off)


async def test_a_lost_answer_does_not_lose_the_lock(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Rota(url) as app:
        answers_lost(monkeypatch, app, 2)
        async with app.lock("ledger") as lock:
            assert lock.fence == 1
            assert len(await app.store.list_locks()) == 1
        assert await no_rows(url)


async def test_a_lost_answer_that_nobody_waits_for_leaves_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Rota(url) as app:
        answers_lost(monkeypatch, app, 1000)
        with pytest.raises(LockNotAcquired, match="the answer was lost"):
            await app.lock("ledger").acquire(timeout=0)
        with pytest.raises(StoreUnavailable):
            await app.lock("other").try_lock()
        waiting = asyncio.create_task(app.lock("third").acquire())
        await asyncio.sleep(0.1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await until(lambda: no_rows(url), 5)


async def test_a_release_that_failed_is_tried_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "_CHECK", 0.1)
    async with Rota(url) as app:
        release = app.store.release_lock
        tries = 0

        async def fail(token: int) -> bool:
            nonlocal tries
            tries += 1
            if tries < 4:
                raise StoreUnavailable("away")
            return await release(token)

        monkeypatch.setattr(app.store, "release_lock", fail)
        async with app.lock("ledger"):
            pass
        assert tries == 1
        async with app.lock("ledger", timeout=10) as lock:
            assert lock.fence == 2


async def test_a_wait_of_half_a_minute_raises_the_alarm(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contest, "ALARM", 0.3)
    async with replicas(url, 2) as [one, two]:
        contended, acquired = recorded(two, LockContended), recorded(two, LockAcquired)
        async with one.lock("ledger"):
            waiting = asyncio.create_task(two.lock("ledger").acquire())

            async def alarmed() -> bool:
                return len(contended) >= 2

            await until(alarmed)
        await waiting
        assert contended[0].name == "ledger"
        assert contended[0].waited >= 0.3
        assert contended[1].waited >= 0.6, "not at every look"
        assert contended[0].holder.startswith("r0 since")
        [event] = acquired
        assert (event.name, event.fence) == ("ledger", 2)
        assert event.waited >= contended[1].waited


async def test_handlers_of_one_key_never_overlap(url: str) -> None:
    inside: dict[str, int] = {}
    apps = [Rota(url, replica=f"r{n}") for n in range(2)]
    done = 0

    for app in apps:

        @app.job("edit")
        async def edit(ctx: Context, workspace: str, app: str) -> None:
            nonlocal done
            async with apps[int(app)].serialize(workspace):
                inside[workspace] = inside.get(workspace, 0) + 1
                assert inside[workspace] == 1
                await asyncio.sleep(0.01)
                inside[workspace] -= 1
                done += 1

    async with apps[0], apps[1]:
        runs = [await apps[0].jobs["edit"].enqueue(workspace=f"w{n % 3}", app=str(n % 2)) for n in range(24)]
        for run in runs:
            await run.result(30)
    assert done == 24


# -- losing ----------------------------------------------------------------------------------------


async def test_a_deposed_replica_loses_its_locks_and_its_blocks_are_cancelled(url: str) -> None:
    async with Rota(url, replica="r0", **QUICK) as app:
        lapsed = recorded(app, LockLapsed)
        cancelled = False

        async def work() -> None:
            nonlocal cancelled
            async with app.lock("ledger") as lock:
                try:
                    await depose(url, app)
                    await asyncio.sleep(20)
                except asyncio.CancelledError:
                    cancelled = True
                    assert not lock.held
                    raise

        with pytest.raises(LockLost, match=r"lock 'ledger' \(fence 1\) is not held any more"):
            await work()
        assert cancelled
        assert [event.name for event in lapsed] == ["ledger"]
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        # Under its new incarnation it can have it again.
        async with app.lock("ledger", timeout=10) as lock:
            assert lock.fence == 2


async def test_a_hold_from_before_a_gap_stays_lost(url: str) -> None:
    """Trust is back before anybody looks: the lock may have been elsewhere meanwhile."""
    async with Rota(url, replica="r0", **QUICK) as app:
        lock = app.lock("ledger")
        hold = await lock.acquire()
        trust = hold.standing.trust
        assert trust is not None
        trust._state = (trust._state[0], 0.0, float("inf"))
        await until(lambda: asyncio.sleep(0, trust.period))
        assert not hold.held
        assert not lock.held
        with pytest.raises(LockLost):
            hold.check()
        with pytest.raises(LockLost):
            await lock.release()
        await until(lambda: no_rows(url))


async def test_nobody_else_has_it_while_the_cancelled_block_tidies_up(url: str) -> None:
    """Its replica lives, and was only unsure of itself for a moment."""
    tidied = asyncio.Event()
    async with replicas(url, 2, **QUICK) as [one, two]:

        async def work() -> None:
            async with one.lock("ledger") as lock:
                trust = lock.standing.trust
                assert trust is not None
                trust.end()
                try:
                    await asyncio.sleep(20)
                finally:
                    with pytest.raises(BadInput, match="not re-entrant"):
                        await one.lock("ledger").acquire()
                    await asyncio.sleep(0.8)
                    tidied.set()

        working = asyncio.create_task(work())
        await until(lambda: asyncio.sleep(0, bool(one._keeper and one._keeper._holds)))
        async with two.lock("ledger", timeout=10) as lock:
            assert tidied.is_set()
            assert lock.fence == 2
        with pytest.raises(LockLost):
            await working


async def test_swallowing_the_cancellation_does_not_help(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "_CANCEL_AGAIN", 0.1)
    swallowed = 0
    deposing: list[asyncio.Task[None]] = []
    async with Rota(url, replica="r0", **QUICK) as app:

        async def work() -> None:
            nonlocal swallowed
            async with app.lock("ledger"):
                deposing.append(asyncio.create_task(depose(url, app)))
                for _ in range(3):
                    try:
                        await asyncio.sleep(20)
                    except asyncio.CancelledError:
                        swallowed += 1

        with pytest.raises(LockLost):
            await work()
        await asyncio.gather(*deposing)
        assert swallowed == 3
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        async with asyncio.timeout(5):
            await asyncio.sleep(0.3)


async def test_somebody_elses_cancellation_goes_on(url: str) -> None:
    async with Rota(url, replica="r0") as app:

        async def work() -> None:
            async with app.lock("ledger"):
                await asyncio.sleep(20)

        task = asyncio.create_task(work())
        await until(lambda: asyncio.sleep(0, bool(app._keeper and app._keeper._holds)))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2), app.lock("ledger"):
                await asyncio.sleep(20)
        assert await no_rows(url)


async def test_an_error_in_the_block_releases_and_goes_on(url: str) -> None:
    async with Rota(url) as app:
        with pytest.raises(ZeroDivisionError):
            async with app.lock("ledger"):
                raise ZeroDivisionError
        assert await no_rows(url)


async def test_a_connection_cut_for_a_moment_costs_nothing(url: str) -> None:
    async with replicas(url, 2, **QUICK) as [one, two]:
        async with one.lock("ledger") as lock:
            waiting = asyncio.create_task(two.lock("ledger").acquire())
            for _ in range(3):
                await cut(url, one)
                await asyncio.sleep(0.8)
                assert lock.held
            assert not waiting.done()
        assert (await waiting).fence == 2


async def test_a_replica_that_stays_cut_off_has_lost_it_before_another_has_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    async with replicas(url, 2, beat=1.0, lease=3.5, dead_after=5.0) as [one, two]:
        lost_at = 0.0

        async def hold() -> None:
            nonlocal lost_at
            try:
                async with one.lock("ledger"):
                    await asyncio.sleep(20)
            except LockLost:
                lost_at = loop.time()

        holding = asyncio.create_task(hold())
        await until(lambda: asyncio.sleep(0, bool(one._keeper and one._keeper._holds)))

        async def away(*_: object, **__: object) -> None:
            await asyncio.sleep(20)

        monkeypatch.setattr(replica_of(one).store, "join", away)
        cut_at = loop.time()
        await cut(url, one)
        async with two.lock("ledger", timeout=10) as lock:
            had_at = loop.time()
            assert lock.fence == 2
        await holding
        assert 0 < lost_at < had_at
        assert had_at - cut_at < 2.0


async def test_an_operator_can_take_it_away(url: str) -> None:
    async with Rota(url) as app:
        await asyncio.sleep(0.2)

        async def work() -> None:
            async with app.lock("ledger"), asyncio.timeout(10):
                [holder] = await app.store.list_locks("ledger")
                assert await app.store.release_lock(holder.token)
                await app.store.hint("locks")
                await asyncio.sleep(20)

        with pytest.raises(LockLost, match="somebody took it away"):
            await work()
        lock = app.lock("ledger")
        await lock.acquire()
        await execute(url, "delete from lock_holders")
        with pytest.raises(LockLost):
            await lock.release()


async def test_closing_the_app_ends_its_blocks(url: str) -> None:
    app = Rota(url)
    outcome: list[BaseException] = []

    async def work(stubborn: bool) -> None:
        try:
            async with app.lock(f"ledger {stubborn}"):
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    if not stubborn:
                        raise
                    await asyncio.sleep(60)
        except LockLost as error:
            outcome.append(error)

    async with asyncio.timeout(20):
        async with app:
            tasks = [asyncio.create_task(work(stubborn)) for stubborn in (False, True)]
            waiting = asyncio.create_task(app.lock("ledger True").acquire())
            await until(lambda: asyncio.sleep(0, bool(app._keeper and len(app._keeper._holds) == 2)))
        [error] = outcome
        assert "the app was closed" in str(error)
        with pytest.raises(NotOpen):
            await waiting
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert await no_rows(url)


# -- without a replica -----------------------------------------------------------------------------


async def test_a_client_renews_what_it_holds(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("LEASE", 1.0), ("SURE", 0.8), ("RENEW", 0.2)):
        monkeypatch.setattr(keeper, name, seconds)
    app = Rota(url, replica="tool")
    async with app.client(), Rota(url) as other:
        async with app.lock("ledger") as lock:
            [holder] = await other.store.list_locks("ledger")
            assert (holder.replica_id, holder.holder) == (None, "tool")
            with pytest.raises(LockNotAcquired, match="held by tool"):
                await other.lock("ledger").acquire(timeout=2.5)
            assert lock.held
        assert await no_rows(url)


async def test_a_client_whose_time_is_over_has_lost_it_before_another_has_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("LEASE", 1.0), ("SURE", 0.8), ("RENEW", 0.2)):
        monkeypatch.setattr(keeper, name, seconds)
    app, loop = Rota(url, replica="tool"), asyncio.get_running_loop()

    async def away(*_: object) -> None:
        await asyncio.sleep(20)

    async with app.client(), Rota(url) as other:

        async def work() -> None:
            async with app.lock("ledger"):
                monkeypatch.setattr(app.store, "renew_locks", away)
                monkeypatch.setattr(app.store, "release_lock", away)
                await asyncio.sleep(20)

        working = asyncio.create_task(work())
        await until(lambda: asyncio.sleep(0, bool(app._keeper and app._keeper._holds)))
        waiting = asyncio.create_task(other.lock("ledger").acquire(timeout=10))
        with pytest.raises(LockLost):
            await working
        lost_at = loop.time()
        assert not waiting.done()
        assert (await waiting).fence == 2
        assert loop.time() > lost_at


async def test_a_client_notices_that_its_row_has_expired(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "RENEW", 0.2)
    app = Rota(url)

    async def work() -> None:
        async with app.lock("ledger"):
            await execute(url, f"update lock_holders set expires_at = {LONG_AGO}")
            await asyncio.sleep(20)

    async with app.client():
        with pytest.raises(LockLost, match="somebody took it away"):
            await work()


async def test_no_pooled_connection_has_a_session_lock(databases: Databases, tmp_path: Path) -> None:
    url = databases.new("postgres", tmp_path)
    query = (
        "select a.application_name, l.classid::bigint, count(*) from pg_locks l join pg_stat_activity a using (pid)"
        " where l.locktype = 'advisory' group by 1, 2"
    )
    async with replicas(url, 2) as [one, two]:
        for _ in range(5):
            async with one.lock("a"), two.lock(7), one.semaphore("gpu", limit=2):
                waiting = asyncio.create_task(two.lock("a").acquire())
                await asyncio.sleep(0.05)
                # The lifelines' own, and the caretaker's; nothing of ours.
                held = [(kind, number) for _, kind, number in await execute(url, query)]
                assert set(held) <= {(1919906914, 1), (1919906915, 1)}
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)


async def test_another_task_neither_sees_nor_releases_what_one_holds(url: str) -> None:
    async with Rota(url) as app:
        shared = app.lock("ledger")

        async def other() -> None:
            assert not shared.held
            with pytest.raises(LockLost, match="not held by this task"):
                await shared.release()

        async with shared as hold:
            await asyncio.create_task(other())
            assert hold.held


async def test_a_block_may_end_in_another_task_than_it_began_in(url: str) -> None:
    async with Rota(url) as app:
        stack = AsyncExitStack()
        hold = await asyncio.create_task(stack.enter_async_context(app.lock("ledger")))
        assert hold.held
        await stack.aclose()
        assert not hold.held
        assert await app.lock("ledger").try_lock()


async def test_a_lock_inside_of_a_transactional_run_is_refused(url: str) -> None:
    app = Rota(url)

    @app.job(transactional=True)
    async def work(ctx: Context) -> str:
        with pytest.raises(BadInput, match="let go before the run is committed"):
            await app.lock("ledger").acquire()
        return "refused"

    async with app:
        assert await (await work.enqueue()).result(30) == "refused"


async def test_what_a_task_took_and_handed_on_can_be_released(url: str) -> None:
    async with Rota(url) as app:
        lock = app.lock("ledger")
        await asyncio.create_task(lock.acquire())  # as `asyncio.wait_for` does
        assert lock.held
        await lock.release()
        assert not lock.held
