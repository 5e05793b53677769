"""What runs under a term, in which order, and what happens when it does not stop."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rota.clock import steady
from rota.contract.roles import Fence, Roles
from rota.election import Term
from rota.elector import Elector
from rota.errors import LeadershipLost, NameClash
from rota.events import Event, LeaderFailed, LeaderStuck
from rota.leader import Leadership, Office, Offices, end_process
from rota.settings import Settings
from rota.succession import Takeover
from tests.patience import PATIENCE


class Sure:
    """An elector whose terms are trusted until they are ended."""

    def trusted_until(self, _: Fence) -> float:
        return steady() + 100


class Court:
    """An office, the terms that it serves, and what it did, in order."""

    def __init__(self, **settings: Any) -> None:
        self.office, self.did = Office("r"), [""][:0]
        self.events: list[Event] = []
        self.term = Term(Fence(role="r", term=1, nonce=1), cast(Elector, Sure()))
        self.stopped, self.failed = asyncio.Event(), False
        self.settings = Settings(**settings)

    def noting(self, what: str) -> Callable[[], Any]:
        async def hook() -> None:
            self.did.append(what)

        return hook

    async def _stopped(self, _: Term, failed: bool) -> None:
        self.did.append("stopped")
        self.failed = failed
        self.stopped.set()

    async def _let_go(self, term: Term) -> None:
        self.did.append("let go")

    @asynccontextmanager
    async def sitting(self) -> AsyncIterator[Offices]:
        offices = Offices(
            [self.office], self.settings, store=lambda: cast(Roles, None), stopped=self._stopped,
            let_go=self._let_go, emit=self.events.append,
        )  # fmt: skip
        offices.began(self.term)
        yield offices
        await offices.drained(0)

    async def end(self, offices: Offices, *, lost: bool = False) -> None:
        self.term.over, self.term.lost = "asked", lost
        offices.ended(self.term)
        async with asyncio.timeout(PATIENCE):
            await self.stopped.wait()

    async def did_so_far(self, *wanted: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while tuple(self.did) != wanted:
                await asyncio.sleep(0.001)


async def test_recovery_comes_first_and_the_role_is_let_go_last() -> None:
    it = Court()

    async def serve(me: Leadership) -> None:
        it.did.append(f"serve {me.term}")
        try:
            await asyncio.Event().wait()
        finally:
            it.did.append("cancelled")

    it.office.become.append(it.noting("become"))
    it.office.recoveries.append(it.noting("recovery"))
    it.office.lose.append(it.noting("lose"))
    it.office.services.append(serve)
    async with it.sitting() as offices:
        await it.did_so_far("recovery", "become", "serve 1")
        await it.end(offices)
    assert it.did == ["recovery", "become", "serve 1", "cancelled", "lose", "stopped"]
    assert not it.failed


@pytest.mark.parametrize(("where", "did"), [("recoveries", []), ("become", ["lose"])])
async def test_what_cannot_begin_is_reported_and_let_go(where: str, did: list[str]) -> None:
    it = Court()

    def broken() -> None:
        raise ValueError("no such table")

    getattr(it.office, where).append(broken)
    it.office.services.append(it.noting("serve"))
    it.office.lose.append(it.noting("lose"))
    async with it.sitting():
        await it.stopped.wait()
    assert it.did == [*did, "stopped"]
    assert it.failed
    [told] = it.events
    assert isinstance(told, LeaderFailed)
    assert "no such table" in str(told.error)


async def test_a_plain_hook_ends_before_the_role_is_let_go() -> None:
    """A thread cannot be cancelled; nobody else may lead beside it."""
    it = Court()
    entered, leave = threading.Event(), threading.Event()

    def slow() -> None:
        entered.set()
        leave.wait(5)
        it.did.append("recovered")

    it.office.recoveries.append(slow)
    it.office.services.append(it.noting("serve"))
    async with it.sitting() as offices:
        await asyncio.to_thread(entered.wait, 5)
        ending = asyncio.create_task(it.end(offices))
        await asyncio.sleep(0.05)
        assert it.did == []
        leave.set()
        await ending
    assert it.did == ["recovered", "stopped"]


async def test_a_service_that_crashes_is_started_again() -> None:
    it, times = Court(), [0]

    async def shaky() -> None:
        times[0] += 1
        if times[0] < 3:
            raise ValueError("again")
        it.did.append("sound")

    it.office.services.append(shaky)
    async with it.sitting() as offices:
        await it.did_so_far("sound")
        await it.end(offices)
    assert [type(event) for event in it.events] == [LeaderFailed, LeaderFailed]


async def test_code_that_does_not_stop_is_named_and_keeps_its_role() -> None:
    it, leave = Court(step_down_timeout=0.02), asyncio.Event()

    async def stubborn() -> None:
        while not leave.is_set():
            try:
                await leave.wait()
            except asyncio.CancelledError:
                it.did.append("no")

    it.office.services.append(stubborn)
    it.office.lose.append(it.noting("lose"))
    async with it.sitting() as offices:
        await asyncio.sleep(0.01)
        ending = asyncio.create_task(it.end(offices))
        async with asyncio.timeout(PATIENCE):
            while len(it.events) < 3:
                await asyncio.sleep(0.001)
        assert set(it.did) == {"no"}
        assert all(isinstance(event, LeaderStuck) and "stubborn" in event.what for event in it.events)
        leave.set()
        await ending
    assert it.did[-2:] == ["lose", "stopped"]


async def test_a_lose_hook_that_hangs_or_raises_does_not_keep_the_others_from_their_turn() -> None:
    it = Court(step_down_timeout=0.02)

    async def hangs() -> None:
        await asyncio.Event().wait()

    async def raises() -> None:
        raise ValueError

    it.office.lose += [hangs, raises, it.noting("lose")]
    async with it.sitting() as offices:
        await asyncio.sleep(0.01)
        await it.end(offices)
    assert it.did == ["lose", "stopped"]
    assert [type(event) for event in it.events] == [LeaderFailed, LeaderFailed]


async def test_a_term_that_was_lost_is_not_led() -> None:
    it = Court()
    me = Leadership(it.term, lambda: cast(Roles, None))
    assert me.leading
    it.term.over, it.term.lost = "replaced", True
    assert not me.leading
    with pytest.raises(LeadershipLost, match="replaced"):
        await me.hold(object())


async def test_a_term_that_is_given_up_is_led_until_it_is_let_go() -> None:
    it = Court()
    me = Leadership(it.term, lambda: cast(Roles, None))
    it.term.over = "it was asked to step down"
    assert me.leading
    it.term.let_go = True
    assert not me.leading


def test_a_role_has_one_way_of_being_taken_over() -> None:
    office = Office("r")
    office.take_over(None)
    office.take_over("strict")
    office.take_over(None)
    with pytest.raises(NameClash, match="strict"):
        office.take_over("prompt")


async def cancelled_inside() -> None:
    """The most common way to stop something: its cancellation comes out of the await."""
    task = asyncio.create_task(asyncio.sleep(60))
    await asyncio.sleep(0)
    task.cancel()
    await task


async def test_a_lose_hook_that_awaits_what_it_cancelled_does_not_keep_the_role() -> None:
    it = Court()
    it.office.lose += [cancelled_inside, it.noting("lose")]
    async with it.sitting() as offices:
        await asyncio.sleep(0.01)
        await it.end(offices)
    assert it.did == ["lose", "stopped"]
    assert [type(event) for event in it.events] == [LeaderFailed]


async def test_a_service_that_awaits_what_was_cancelled_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rota.leader.backoff", lambda _: 0.0)
    it, again = Court(), asyncio.Event()
    starts: list[int] = []

    async def serve() -> None:
        starts.append(1)
        if len(starts) == 1:
            await cancelled_inside()
        again.set()
        await asyncio.Event().wait()

    it.office.services.append(serve)
    async with it.sitting() as offices:
        await asyncio.wait_for(again.wait(), PATIENCE)
        await it.end(offices)
    assert len(starts) == 2
    assert [type(event) for event in it.events] == [LeaderFailed]


async def test_a_service_that_swallows_one_cancellation_is_cancelled_again() -> None:
    it, started = Court(step_down_timeout=0.05), asyncio.Event()

    async def stubborn() -> None:
        for _ in range(2):
            try:
                started.set()
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    it.office.services.append(stubborn)
    async with it.sitting() as offices:
        await asyncio.wait_for(started.wait(), PATIENCE)
        await it.end(offices)
    assert it.did == ["stopped"]
    assert [type(event) for event in it.events] == [LeaderStuck]


async def stubborn_under(takeover: Takeover) -> Court:
    """A term is lost whose service ignores the first two cancellations."""
    it, started = Court(beat=0.01, lease=0.05, dead_after=0.1), asyncio.Event()
    it.office.takeover = takeover

    async def stubborn() -> None:
        for _ in range(3):
            try:
                started.set()
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    it.office.services.append(stubborn)
    it.office.lose.append(it.noting("lose"))
    async with it.sitting() as offices:
        await asyncio.wait_for(started.wait(), PATIENCE)
        await it.end(offices, lost=True)
    return it


async def test_others_may_lead_while_code_of_a_lost_term_does_not_stop() -> None:
    it = await stubborn_under("prompt")
    assert it.did == ["lose", "let go", "stopped"]


async def test_a_strict_role_is_not_let_go_while_code_of_its_lost_term_runs() -> None:
    it = await stubborn_under("strict")
    assert it.did == ["lose", "stopped"]


@pytest.mark.parametrize(("lost", "forced", "ends"), [(True, False, True), (True, True, False), (False, False, False)])
async def test_the_process_ends_for_a_term_that_was_lost_and_not_for_an_operators_order(
    monkeypatch: pytest.MonkeyPatch, lost: bool, forced: bool, ends: bool
) -> None:
    ended: list[float] = []
    monkeypatch.setattr("rota.leader.end_process", ended.append)
    it = Court(exit_on_lost_leadership=True)
    it.term.forced = forced
    async with it.sitting() as offices:
        await asyncio.sleep(0.01)
        await it.end(offices, lost=lost)
        await asyncio.sleep(0.01)
    assert bool(ended) == ends


def test_a_process_is_told_to_end_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    monkeypatch.setattr("rota.leader.exiting", threading.Event())
    monkeypatch.setattr("rota.leader.signal.raise_signal", told.append)
    monkeypatch.setattr("rota.leader.threading.Timer", lambda *_: SimpleNamespace(start=lambda: None))
    for _ in range(2):
        end_process(30.0)
    assert told == [signal.SIGTERM]
