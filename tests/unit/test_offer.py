"""Places that a worker keeps for ticks: how many, for how long, and beside what it claims."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rota import reserve as module
from rota.contract.places import Places
from rota.lane import AsyncLane
from rota.offer import Offer
from rota.reserve import Reserve


def lane(*jobs: str, places: int = 10) -> AsyncLane:
    async def execute(*_: Any) -> None: ...

    return AsyncLane(jobs, places, execute)


def kept(*lanes: AsyncLane) -> list[int]:
    return [each.kept for each in lanes]


async def test_places_are_kept_until_the_offer_is_closed() -> None:
    first, second, none = lane("a"), lane("b", places=3), lane()
    reserve, offer = Reserve([first, second, none], lambda: None), Offer(5)
    reserve.make(offer, 7)
    assert offer.places() == Places(
        replica_id=7, token=offer.token, lanes=((frozenset({"a"}), 5), (frozenset({"b"}), 2))
    )
    assert kept(first, second, none) == [5, 2, 0]
    assert reserve
    assert reserve.close(offer) == offer.places()
    assert kept(first, second, none) == [0, 0, 0]
    assert not reserve
    assert reserve.close(offer) is None


@pytest.mark.parametrize(("places", "offered"), [(1, 1), (2, 1), (10, 9)])
async def test_one_place_is_left_for_a_run_that_comes_up_meanwhile_if_there_are_two(places: int, offered: int) -> None:
    only = lane("a", places=places)
    Reserve([only], lambda: None).make(Offer(500), 7)
    assert only.kept == offered


async def test_an_answer_that_comes_too_late_keeps_nothing() -> None:
    only = lane("a")
    reserve, offer = Reserve([only], lambda: None), Offer(5)
    assert offer.places() is None
    assert not offer.taken_up
    reserve.make(offer, 7)
    assert (offer.places(), only.kept, bool(reserve)) == (None, 0, False)


async def test_a_scheduler_that_never_asked_started_nothing() -> None:
    reserve, offer = Reserve([lane("a")], lambda: None), Offer(5)
    reserve.make(offer, 7)
    offer.close()
    assert not offer.taken_up


async def test_places_are_not_kept_for_ever_but_what_comes_late_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KEPT_FOR", 0.0)
    only, freed = lane("a"), asyncio.Event()
    reserve, offer = Reserve([only], freed.set), Offer(5)
    reserve.make(offer, 7)
    assert only.kept == 5
    await freed.wait()
    assert (only.kept, bool(reserve)) == (0, True)
    assert reserve.close(offer) is not None
    assert only.kept == 0


async def test_what_is_being_claimed_and_what_is_kept_share_the_places() -> None:
    only = lane("a")
    only.asked = 8
    reserve, offer = Reserve([only], lambda: None), Offer(5)
    reserve.make(offer, 7)
    assert only.kept == 1
    assert only.room_beside(only.kept) == 9


async def test_a_full_worker_offers_nothing() -> None:
    only = lane("a")
    only.held = 10
    reserve, offer = Reserve([only], lambda: None), Offer(5)
    reserve.make(offer, 7)
    assert (offer.places(), bool(reserve)) == (None, False)


async def test_what_is_gone_in_a_moment_may_come_from_both_sides() -> None:
    only = lane("a")
    only._ahead = 20
    only.asked = 30
    reserve, offer = Reserve([only], lambda: None), Offer(500)
    reserve.make(offer, 7)
    assert only.kept == 19


def test_places_go_to_the_first_that_come() -> None:
    places = Places(replica_id=1, token=2, lanes=((frozenset("ab"), 2), (frozenset("c"), 1)))
    assert places.given_to(["a", "c", "x", "b", "a", "c"]) == [0, 1, None, 0, None, None]
    assert sorted(places.jobs) == [("a", 0), ("b", 0), ("c", 1)]
