"""Singletons in an app: the body, its state, its life."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from rota import BadInput, LeadershipLost, NameClash, Rota, Singleton, WrongState
from rota.contract.singletons import role_of
from rota.errors import RotaError
from rota.events import LeaderFailed, LeaderStuck, SingletonUnhealthy, StateUnreadable
from tests.app.waiting import until
from tests.harness import execute, move_clock
from tests.patience import PATIENCE


@dataclass
class Position:
    offset: int = 0
    names: list[str] = field(default_factory=list)


async def test_an_assignment_is_stored_before_the_line_returns_and_the_next_body_goes_on(url: str) -> None:
    app, offsets = Rota(url), []
    done = asyncio.Event()

    @app.singleton(state=Position)
    async def importer(me: Singleton[Position]) -> None:
        me.state.offset += 1
        [row] = await app.store.list_singletons("importer")
        offsets.append((me.state.offset, row.state))
        done.set()

    for _ in range(2):
        async with app:
            await asyncio.wait_for(done.wait(), PATIENCE)
            done.clear()
    assert offsets == [(1, '{"offset":1,"names":[]}'), (2, '{"offset":2,"names":[]}')]


async def test_several_changes_are_stored_together_or_not_at_all(url: str) -> None:
    app = Rota(url)
    seen: list[str] = []
    done = asyncio.Event()

    @app.singleton(state=Position)
    async def importer(me: Singleton[Position]) -> None:
        async with me.update() as state:
            state.offset = 5
            state.names.append("a")
        seen.append(repr(me.state))
        try:
            async with me.update() as state:
                state.names.append("b")
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        seen.append(repr(me.state))
        done.set()

    async with app:
        await asyncio.wait_for(done.wait(), PATIENCE)
        assert seen == ["Position(offset=5, names=['a'])"] * 2
        [row] = await app.store.list_singletons("importer")
        assert row.state == '{"offset":5,"names":["a"]}'


async def test_a_change_inside_of_a_field_is_stored_when_the_body_ends(url: str) -> None:
    app, started = Rota(url), asyncio.Event()

    @app.singleton(state=Position)
    async def importer(me: Singleton[Position]) -> None:
        me.state.names.append("a")
        started.set()
        await asyncio.Event().wait()

    async with app:
        await asyncio.wait_for(started.wait(), PATIENCE)
    async with app.client():
        [row] = await app.store.list_singletons("importer")
        assert row.state == '{"offset":0,"names":["a"]}'


async def test_what_a_deposed_body_assigns_is_refused_and_not_remembered(url: str) -> None:
    app, seen = Rota(url), []
    started, deposed, again = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @app.singleton(state=Position)
    async def importer(me: Singleton[Position]) -> None:
        if me.leadership.term > 1:
            again.set()
            return
        me.state.offset = 1
        started.set()
        try:
            await deposed.wait()  # or it is cancelled before that
        finally:
            try:
                me.state.offset = 2
            except LeadershipLost:
                seen.append(me.state.offset)

    async with app:
        await asyncio.wait_for(started.wait(), PATIENCE)
        # Somebody else wins while this one believes that it leads.
        await execute(url, "update roles set term = term + 1, nonce = 4711")
        deposed.set()
        await asyncio.wait_for(again.wait(), PATIENCE)
    assert seen == [1]


async def test_a_body_that_raises_is_started_again_and_counted(url: str) -> None:
    app, tries = Rota(url), []
    failed: list[LeaderFailed] = []
    app.events.subscribe(LeaderFailed, failed.append)
    done = asyncio.Event()

    @app.singleton
    async def importer() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise ValueError("not yet")
        done.set()

    async with app:
        await asyncio.wait_for(done.wait(), PATIENCE)
        [row] = await app.store.list_singletons("importer")
        assert (row.run_count, row.failure_count) == (2, 2)
        assert "ValueError: not yet" in (row.last_error or "")
    assert [event.what for event in failed] == ["singleton 'importer'"] * 2
    assert all(event.again_in is not None for event in failed)


async def test_a_failed_execution_that_ends_the_body_is_counted_once(url: str) -> None:
    app, failed = Rota(url), asyncio.Event()

    @app.singleton
    async def importer(me: Singleton[None]) -> None:
        if failed.is_set():
            return
        async with me.execution():
            failed.set()
            raise ValueError("no")

    async with app:
        await asyncio.wait_for(failed.wait(), PATIENCE)

        async def counted() -> bool:
            [row] = await app.store.list_singletons("importer")
            return row.run_count > 0

        await until(counted)
    async with app.client():
        [row] = await app.store.list_singletons("importer")
    assert (row.run_count, row.failure_count, row.executed_at) == (1, 1, None)


async def test_nothing_of_an_open_update_is_stored_and_nothing_else_may_change_the_state(url: str) -> None:
    app, done = Rota(url), asyncio.Event()
    seen: list[object] = []

    @app.singleton(state=Position, heartbeat=0.05)
    async def importer(me: Singleton[Position]) -> None:
        me.state.offset = 1
        async with me.update() as state:
            state.offset = 2
            try:
                me.state.offset = 3
            except WrongState as error:
                seen.append("an update() is open" in str(error))
            await asyncio.sleep(0.2)  # some heartbeats
            [row] = await app.store.list_singletons("importer")
            seen.append(row.state)
        [row] = await app.store.list_singletons("importer")
        seen.append(row.state)
        done.set()

    async with app:
        await asyncio.wait_for(done.wait(), PATIENCE)
    assert seen == [True, '{"offset":1,"names":[]}', '{"offset":2,"names":[]}']


async def test_a_change_that_cannot_be_stored_is_reported(url: str) -> None:
    app, said = Rota(url), asyncio.Event()
    app.events.subscribe(LeaderFailed, lambda event: said.set() if "must be JSON" in str(event.error) else None)

    @app.singleton(state=Position, heartbeat=0.05)
    async def importer(me: Singleton[Position]) -> None:
        me.state.names.append(object())  # type: ignore[arg-type]
        await asyncio.Event().wait()

    stuck: list[LeaderStuck] = []
    app.events.subscribe(LeaderStuck, stuck.append)
    async with app:
        await asyncio.wait_for(said.wait(), PATIENCE)
    assert stuck == [], "what cannot be stored does not keep it from stopping"


async def test_executions_are_counted_at_once(url: str) -> None:
    app, done = Rota(url), asyncio.Event()

    @app.singleton
    async def importer(me: Singleton[None]) -> None:
        async with me.execution():
            pass
        with pytest.raises(ValueError, match="no"):
            async with me.execution():
                raise ValueError("no")
        done.set()

    async with app:
        await asyncio.wait_for(done.wait(), PATIENCE)
        [row] = await app.store.list_singletons("importer")
        assert (row.run_count, row.failure_count) == (2, 1)


async def test_state_that_cannot_be_read_is_kept_aside_and_reported(url: str) -> None:
    app, seen, done = Rota(url), [], asyncio.Event()
    unreadable: list[StateUnreadable] = []
    app.events.subscribe(StateUnreadable, unreadable.append)

    @app.singleton(state=Position)
    async def importer(me: Singleton[Position]) -> None:
        seen.append(me.state.offset)
        done.set()

    async with app.client():
        await execute(url, "insert into singletons (name, state, created_at) "
                           "values ('importer', '{\"offset\": \"far\"}', '2030-01-01 00:00:00.000000')")  # fmt: skip
    async with app:
        await asyncio.wait_for(done.wait(), PATIENCE)
        [kept] = await app.store.lost_states("importer")
    assert seen == [0]
    assert (kept.state, kept.reason[:7]) == ('{"offset": "far"}', "offset:")
    assert [event.singleton for event in unreadable] == ["importer"]


async def test_it_says_so_when_it_does_not_execute_as_expected(url: str) -> None:
    app, said = Rota(url), asyncio.Event()
    app.events.subscribe(SingletonUnhealthy, lambda event: said.set())

    @app.singleton(heartbeat=0.05, expect_every=60)
    async def importer() -> None:
        await asyncio.Event().wait()

    async with app:
        await until(lambda: app.store.list_singletons("importer"))
        await move_clock(url, 125)
        await asyncio.wait_for(said.wait(), PATIENCE)


async def test_a_body_moves_with_its_state_when_asked_to(url: str) -> None:
    where: list[tuple[str, int]] = []
    moved = asyncio.Event()

    def service(name: str) -> Rota:
        app = Rota(url, replica=name)

        @app.singleton(state=Position)
        async def importer(me: Singleton[Position]) -> None:
            me.state.offset += 1
            where.append((name, me.state.offset))
            if len(where) == 2:
                moved.set()
            await asyncio.Event().wait()

        return app

    apps = [service("a"), service("b")]

    async with apps[0]:
        await until(lambda: asyncio.sleep(0, where))
        async with apps[1]:

            async def both() -> bool:
                return len((await apps[0].store.look_roles())[1]) == 2

            await until(both)
            await apps[0].store.ask_step_down(role_of("importer"))
            await asyncio.wait_for(moved.wait(), PATIENCE)
    assert where == [("a", 1), ("b", 2)]


def test_what_cannot_be_a_singleton_is_refused(url: str) -> None:
    app = Rota(url)

    def plain() -> None: ...
    async def body() -> None: ...

    with pytest.raises(BadInput, match="needs an async function"):
        app.singleton(plain)  # type: ignore[type-var]
    app.singleton(body)
    with pytest.raises(NameClash, match="two singletons are named 'body'"):
        app.singleton(body)
    for wrong in ({"heartbeat": 0}, {"expect_every": -1}, {"ttl": 1e12, "state": Position}):
        with pytest.raises(RotaError, match="above 0 seconds"):
            app.singleton(name="other", **wrong)(body)  # type: ignore[arg-type]
