"""The state machine of an election, with an elector that does what it is told and a clock that is moved by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import pytest

from rota.contract.roles import Candidate, Fence, Roles, Seat
from rota.election import Elections, Term
from rota.elector import Elector
from rota.errors import LeadershipLost, StoreUnavailable
from rota.events import Event, LeadershipEnded, LeadershipWon, ServiceFailed
from rota.succession import SETTLED, Takeover

ME, OTHER = 1, 2


class Scripted(Elector):
    """Keeps the seats itself. What it is to raise next is in `trouble`."""

    name, by_lifeline = "scripted", True

    def __init__(self, *roles: str) -> None:
        self.seats = {role: Seat(role=role) for role in roles}
        self.candidates: list[Candidate] = []
        self.until = 1003.5
        self.done: list[str] = []
        self.trouble: dict[str, BaseException] = {}
        self.reply = asyncio.Event()
        self.reply.set()

    def set(self, role: str, **fields: Any) -> None:
        self.seats[role] = msgspec.structs.replace(self.seats[role], **fields)

    async def _answer(self, what: str) -> None:
        await self.reply.wait()
        if what in self.trouble:
            raise self.trouble.pop(what)

    async def look(self, roles: Sequence[str]) -> tuple[list[Seat], list[Candidate]]:
        await self._answer("look")
        return list(self.seats.values()), self.candidates

    async def win(self, seat: Seat) -> Fence | None:
        if seat.term != self.seats[seat.role].term:
            return None
        term = seat.term + 1
        self.set(seat.role, term=term, nonce=term * 11, replica_id=ME, alive=True, released=False, step_down=False)
        self.done.append(f"win {seat.role} {term}")
        await self._answer("win")
        return Fence(role=seat.role, term=term, nonce=term * 11)

    async def confirm(self, fence: Fence) -> None:
        await self._answer("confirm")

    def trusted_until(self, fence: Fence) -> float:
        return self.until

    async def resign(self, fence: Fence, meant_for: int | None = None) -> None:
        await self._answer("resign")
        self.set(fence.role, nonce=0, replica_id=None, alive=False, released=True, meant_for=meant_for)
        self.done.append(f"resign {fence.role} {fence.term}" + (f" for {meant_for}" if meant_for else ""))


class Table:
    """An election with everything around it."""

    def __init__(self, clock: list[float], *roles: str, takeover: Takeover = "prompt") -> None:
        self.clock, self.elector = clock, Scripted(*roles)
        self.replica_id = ME
        self.stood: list[tuple[int, list[str]]] = []
        self.told: list[tuple[str, Term]] = []
        self.events: list[Event] = []
        self.elections = Elections(
            cast(Roles, self), self.elector, dict.fromkeys(roles, takeover), replica_id=lambda: self.replica_id,
            strict_after=4.0, court=self, emit=self.events.append,
        )  # fmt: skip

    async def stand(self, replica_id: int, roles: Sequence[str]) -> None:
        self.stood.append((replica_id, list(roles)))

    def began(self, term: Term) -> None:
        self.told.append(("began", term))

    def ended(self, term: Term) -> None:
        self.told.append(("ended", term))

    async def lead(self, role: str = "a") -> Term:
        await self.elections.step()
        term = self.elections.term(role)
        assert term is not None
        return term

    def pass_time(self, seconds: float) -> None:
        self.clock[0] += seconds
        self.elector.until += seconds  # beats go on

    def ends(self) -> list[tuple[int, bool]]:
        """(term, lost) of those that ended."""
        return [(event.term, event.lost) for event in self.events if isinstance(event, LeadershipEnded)]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("rota.election.steady", lambda: now[0])
    return now


async def test_a_term_is_won_before_anybody_is_told(clock: list[float]) -> None:
    it = Table(clock, "a")
    term = await it.lead()
    assert term.trusted
    assert it.elector.done == ["win a 1"]
    assert it.told == [("began", term)]
    assert isinstance(it.events[0], LeadershipWon)
    assert it.stood == [(ME, ["a"])]


async def test_a_term_that_is_not_confirmed_ends_by_itself(clock: list[float]) -> None:
    it = Table(clock, "a")
    term = await it.lead()
    assert await it.elections.vigil.step() == pytest.approx(3.5)
    clock[0] += 3.5
    assert not term.trusted, "at the moment of use, before anybody has looked"
    with pytest.raises(LeadershipLost, match="not confirmed in time"):
        term.check()
    assert await it.elections.vigil.step() is None
    assert it.ends() == [(1, True)]
    assert it.told[-1] == ("ended", term)


async def test_trust_that_lapsed_does_not_come_back(clock: list[float]) -> None:
    """A machine was suspended. Code that asked has stopped; the next beat must not leave a term without it."""
    it = Table(clock, "a")
    term = await it.lead()
    clock[0] += 10.0
    assert not term.trusted
    it.elector.until = clock[0] + 3.5
    assert not term.trusted
    await it.elections.vigil.step()
    assert it.ends() == [(1, True)]


async def test_a_term_lasts_as_long_as_beats_are_confirmed(clock: list[float]) -> None:
    it = Table(clock, "a")
    term = await it.lead()
    for _ in range(5):
        it.pass_time(3.0)
        await it.elections.vigil.step()
        await it.elections.step()
    assert term.trusted


async def test_one_that_is_cut_off_ends_all_its_terms_at_once(clock: list[float]) -> None:
    it = Table(clock, "a", "b")
    await it.elections.step()
    it.elections.cut_off("the connection was lost")
    assert it.ends() == [(1, True), (1, True)]
    assert it.elections.terms == []


async def test_a_role_is_let_go_only_when_its_code_has_stopped(clock: list[float]) -> None:
    it = Table(clock, "a")
    term = await it.lead()
    it.elections.cut_off("the connection was lost")
    await it.elections.step()
    assert it.elector.done == ["win a 1"], "neither let go nor won again beside what still runs"
    await it.elections.stopped(term)
    assert it.elector.done == ["win a 1", "resign a 1"]
    await it.lead()
    assert it.elector.done[-1] == "win a 2"


async def test_one_that_is_asked_to_step_down_lets_another_one_try(clock: list[float]) -> None:
    it = Table(clock, "a")
    term = await it.lead()
    it.elector.set("a", step_down=True, meant_for=OTHER)
    await it.elections.step()
    assert it.ends() == [(1, False)]
    await it.elections.stopped(term)
    assert it.elector.done[-1] == "resign a 1 for 2"
    await it.elections.step()
    assert it.elections.term("a") is None, "it abstains"
    it.elector.set("a", meant_for=None)
    it.pass_time(5.0)
    await it.lead()


async def test_one_that_abstains_takes_what_is_meant_for_it(clock: list[float]) -> None:
    it = Table(clock, "a")
    term = await it.lead()
    await it.elections.stopped(term)
    it.elector.set("a", meant_for=ME)
    await it.lead()


async def test_one_whose_terms_cannot_begin_withdraws_for_longer_each_time(clock: list[float]) -> None:
    it = Table(clock, "a", "b")
    for pause in (5.0, 10.0):
        await it.elections.stopped(await it.lead(), failed=True)
        it.elector.set("a", meant_for=ME)
        await it.elections.step()
        assert (it.elections.term("a"), it.stood[-1]) == (None, (ME, ["b"]))
        it.pass_time(pause)
    await it.lead()
    assert it.stood[-1] == (ME, ["a", "b"])


async def test_one_that_was_replaced_learns_it_by_a_look(clock: list[float]) -> None:
    it = Table(clock, "a")
    await it.lead()
    it.elector.set("a", term=2, nonce=5, replica_id=OTHER)
    await it.elections.step()
    assert it.ends() == [(1, True)]


async def test_the_same_term_with_another_nonce_is_not_ours(clock: list[float]) -> None:
    it = Table(clock, "a")
    await it.lead()
    it.elector.set("a", nonce=5)
    await it.elections.step()
    assert it.ends() == [(1, True)]


async def test_a_lost_reply_ends_like_a_crash_with_a_new_term(clock: list[float]) -> None:
    it = Table(clock, "a")
    it.elector.trouble["win"] = StoreUnavailable("the connection was lost")
    with pytest.raises(StoreUnavailable):
        await it.elections.step()
    assert it.told == [], "nobody is told of a term that may not be"
    assert (await it.lead()).fence.term == 2


async def test_a_role_of_which_the_beginning_fails_is_left_to_others_for_a_while(clock: list[float]) -> None:
    it = Table(clock, "a")
    term = await it.lead()
    await it.elections.stopped(term, failed=True)
    assert it.ends() == [(1, False)]
    assert it.elector.done[-1] == "resign a 1"
    for _ in range(4):
        it.pass_time(1.2)
        await it.elections.step()
    assert it.elections.term("a") is None
    it.pass_time(0.3)
    await it.lead()


async def test_a_term_whose_code_has_ended_is_over(clock: list[float]) -> None:
    """A hook that raises a cancellation of its own ends the code without anybody having ended the term."""
    it = Table(clock, "a")
    term = await it.lead()
    await it.elections.stopped(term)
    assert not term.trusted


async def test_a_look_that_fails_changes_nothing(clock: list[float]) -> None:
    it = Table(clock, "a")
    term = await it.lead()
    it.elector.trouble["look"] = StoreUnavailable("away")
    with pytest.raises(StoreUnavailable):
        await it.elections.step()
    assert term.trusted


async def test_a_look_that_is_never_answered_is_given_up(clock: list[float]) -> None:
    it = Table(clock, "a")
    it.elector.answer_within = 0.01
    it.elector.reply.clear()
    with pytest.raises(StoreUnavailable, match="no answer"):
        await it.elections.step()
    it.elector.reply.set()
    await it.lead()


async def test_a_confirmation_that_fails_is_reported_and_one_that_is_refused_ends_the_term(clock: list[float]) -> None:
    it = Table(clock, "a")
    term = await it.lead()
    it.pass_time(1.0)
    it.elector.trouble["confirm"] = StoreUnavailable("away")
    await it.elections.step()
    assert term.trusted
    assert any(isinstance(event, ServiceFailed) for event in it.events)
    it.pass_time(1.0)
    it.elector.trouble["confirm"] = LeadershipLost("somebody else has the lease")
    await it.elections.step()
    assert it.ends() == [(1, True)]


async def test_a_release_that_fails_is_reported_and_the_role_is_led_anew(clock: list[float]) -> None:
    it = Table(clock, "a")
    term = await it.lead()
    it.elections.cut_off("the connection was lost")
    it.elector.trouble["resign"] = StoreUnavailable("away")
    await it.elections.stopped(term)
    assert any(isinstance(event, ServiceFailed) for event in it.events)
    assert (await it.lead()).fence.term == 2


async def test_strict_waits_for_the_silence_of_the_last_leader(clock: list[float]) -> None:
    it = Table(clock, "a", takeover="strict")
    it.elector.set("a", term=7, replica_id=OTHER, released=False, ended=3.9)
    await it.elections.step()
    assert it.elector.done == []
    it.elector.set("a", ended=4.0)
    assert (await it.lead()).fence.term == 8


async def test_one_that_closes_ends_its_terms_and_is_no_candidate(clock: list[float]) -> None:
    it = Table(clock, "a")
    term = await it.lead()
    await it.elections.close()
    assert it.told[-1] == ("ended", term)
    assert it.stood[-1] == (ME, [])
    await it.elections.stopped(term)
    assert await it.elections.step() is None
    assert it.elector.done == ["win a 1", "resign a 1"]


async def test_what_is_being_won_while_one_closes_is_let_go_and_nobody_is_told(clock: list[float]) -> None:
    it = Table(clock, "a")
    await it.elections.step()
    await it.elections.stopped(it.told[0][1])
    it.pass_time(5.0)
    it.told.clear()
    won = asyncio.Event()
    answer = it.elector._answer

    async def slow(what: str) -> None:
        if what == "win":
            won.set()
            it.elector.reply.clear()
        await answer(what)

    it.elector._answer = slow  # type: ignore[method-assign]
    step = asyncio.create_task(it.elections.step())
    await won.wait()
    close = asyncio.create_task(it.elections.close())
    await asyncio.sleep(0)
    it.elector.reply.set()
    await asyncio.gather(step, close)
    assert (it.told, it.elector.done[-1]) == ([], "resign a 2")


async def test_one_that_joined_anew_while_it_stood_stands_again(clock: list[float]) -> None:
    it = Table(clock, "a")

    async def stand(replica_id: int, roles: Sequence[str]) -> None:
        it.stood.append((replica_id, list(roles)))
        it.replica_id = OTHER

    it.stand = stand  # type: ignore[method-assign]
    await it.elections.step()
    await it.elections.step()
    assert it.stood == [(ME, ["a"]), (OTHER, ["a"])]


async def test_a_settled_role_is_handed_over_to_one_that_leads_less(clock: list[float]) -> None:
    it = Table(clock, "a", "b")
    await it.elections.step()
    it.elector.candidates = [
        Candidate(replica_id=who, name="?", roles=("a", "b"), age=SETTLED) for who in (ME, OTHER)
    ]  # fmt: skip
    it.pass_time(SETTLED)
    await it.elections.step()
    [term] = [term for what, term in it.told if what == "ended"]
    await it.elections.stopped(term)
    assert it.elector.done[-1] == "resign b 1 for 2"
    assert [term.role for term in it.elections.terms] == ["a"]


async def test_roles_that_this_replica_would_not_take_are_left_alone(clock: list[float]) -> None:
    it = Table(clock, "a")
    it.elector.seats["other"] = Seat(role="other")
    await it.elections.step()
    assert it.elector.done == ["win a 1"]
