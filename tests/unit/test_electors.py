"""The electors that stand on the store, with a store that keeps one seat."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from rota.clock import steady
from rota.contract.roles import Candidate, Fence, Roles, Seat
from rota.electors.standalone import StandaloneElector
from rota.electors.store import StoreElector, new_nonce
from rota.errors import StoreUnavailable
from rota.succession import vacant

ME, OTHER = 1, 2


class OneSeat:
    """Wins are compared as the real ones are; the reply to one can be lost."""

    def __init__(self, **fields: Any) -> None:
        self.seat = Seat(role="a", **fields)
        self.lose_reply = False

    async def look_roles(self) -> tuple[list[Seat], list[Candidate]]:
        return [self.seat, Seat(role="z")], [Candidate(replica_id=OTHER, name="?", roles=("a",), age=1.0)]

    async def win_role(
        self, role: str, replica_id: int, *, seen: int, nonce: int, force: bool = False, **_: Any
    ) -> Any:
        if not force and (seen != self.seat.term or self.seat.alive):
            return None
        self.seat = Seat(role=role, term=self.seat.term + 1, nonce=nonce, replica_id=replica_id, alive=True)
        if self.lose_reply:
            self.lose_reply = False
            raise StoreUnavailable("the connection was lost")
        return Fence(role=role, term=self.seat.term, nonce=nonce)


def elector(store: OneSeat, until: float) -> StoreElector:
    return StoreElector("advisory", cast(Roles, store), replica_id=lambda: ME, trusted=lambda: until)


async def test_a_vacant_role_is_won_by_one_that_trusts_itself() -> None:
    store = OneSeat()
    assert await elector(store, steady() + 10).win(store.seat) is not None


async def test_one_that_does_not_trust_itself_takes_nothing() -> None:
    """Its session lock may be gone: the others would take it for dead, and win at once."""
    store = OneSeat()
    assert await elector(store, 0.0).win(store.seat) is None
    assert store.seat.term == 0


async def test_a_look_shows_all_roles_because_each_is_somebodys_load() -> None:
    seats, candidates = await elector(OneSeat(), 0.0).look(["a"])
    assert [seat.role for seat in seats] == ["a", "z"]
    assert candidates


@pytest.mark.parametrize(("name", "ends"), [("advisory", True), ("file", True), ("lease", False)])
def test_terms_end_with_the_connection_only_where_it_carries_a_session_lock(name: str, ends: bool) -> None:
    it = StoreElector(name, cast(Roles, None), replica_id=lambda: ME, trusted=lambda: 0.0)
    assert it.by_lifeline is ends


def test_a_nonce_is_never_nobodys() -> None:
    assert all(0 < new_nonce() < 2**63 for _ in range(100))


# -- standalone ------------------------------------------------------------------------------------


def alone(store: OneSeat) -> StandaloneElector:
    return StandaloneElector(cast(Roles, store), replica_id=lambda: ME)


async def seen(it: StandaloneElector) -> Seat:
    [[seat], _] = await it.look(["a"])
    return seat


async def test_standalone_takes_over_from_whoever_leads_and_only_once() -> None:
    store = OneSeat(term=3, replica_id=OTHER, alive=True, released=False)
    it = alone(store)
    found = await seen(it)
    assert vacant(found, "strict", 4.0)
    assert await it.win(found) is not None
    store.seat = msgspec.structs.replace(store.seat, term=5, replica_id=OTHER)
    assert not vacant(await seen(it), "prompt", 4.0), "the later one stays"


async def test_standalone_finds_what_it_won_without_hearing_of_it() -> None:
    store = OneSeat()
    store.lose_reply = True
    it = alone(store)
    with pytest.raises(StoreUnavailable):
        await it.win(await seen(it))
    found = await seen(it)
    assert found.replica_id == ME
    assert await it.win(found) is not None
