"""Who takes a vacant role, and who hands one over: decisions without a clock or a database."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.contract.roles import Candidate, Seat
from rota.succession import NEWCOMER, PATIENCE, SETTLED, handover, may_take, vacant

ROLES = tuple("abcdefgh")


def led(role: str, replica_id: int) -> Seat:
    return Seat(role=role, term=1, nonce=1, replica_id=replica_id, alive=True, released=False, ended=0.0)


def free(role: str, **more: object) -> Seat:
    return Seat(role=role, term=1, **more)  # type: ignore[arg-type]


def candidate(replica_id: int, roles: tuple[str, ...] = ROLES, age: float = NEWCOMER) -> Candidate:
    return Candidate(replica_id=replica_id, name=f"r{replica_id}", roles=roles, age=age)


# -- vacant ----------------------------------------------------------------------------------------


def test_a_led_role_is_not_vacant() -> None:
    assert not vacant(led("a", 1), "prompt", 4.0)


def test_prompt_takes_over_as_soon_as_the_last_leader_is_dead() -> None:
    assert vacant(free("a", released=False, ended=0.1), "prompt", 4.0)


@pytest.mark.parametrize(("ended", "expected"), [(0.1, False), (3.99, False), (4.0, True), (None, False)])
def test_strict_waits_until_the_last_leader_cannot_believe_any_more(ended: float | None, expected: bool) -> None:
    assert vacant(free("a", released=False, ended=ended), "strict", 4.0) is expected


def test_strict_need_not_wait_for_one_that_let_go_or_never_was() -> None:
    assert vacant(free("a", released=True, ended=0.1), "strict", 4.0)
    assert vacant(Seat(role="a", released=False), "strict", 4.0)


# -- may_take --------------------------------------------------------------------------------------


def test_whoever_leads_least_goes_first() -> None:
    seats = [free("a"), led("b", 1)]
    both = [candidate(1), candidate(2)]
    assert may_take(seats[0], 2, seats, both, 0.0)
    assert not may_take(seats[0], 1, seats, both, 0.0)
    assert may_take(seats[0], 1, seats, both, PATIENCE)


def test_one_that_would_not_take_the_role_is_not_waited_for() -> None:
    seats = [free("a"), led("b", 1)]
    assert may_take(seats[0], 1, seats, [candidate(1), candidate(2, roles=("b",))], 0.0)


def test_the_dead_leader_is_not_waited_for_though_it_leads_nothing_now() -> None:
    dead = free("a", replica_id=3, released=False, ended=0.2)
    seats = [dead, led("b", 1), led("c", 2)]
    assert may_take(dead, 1, seats, [candidate(1), candidate(2), candidate(3)], 0.0)


def test_a_role_that_is_meant_for_somebody_is_left_to_it() -> None:
    seats = [free("a", meant_for=2), led("b", 2)]
    both = [candidate(1), candidate(2)]
    assert may_take(seats[0], 2, seats, both, 0.0)
    assert not may_take(seats[0], 1, seats, both, PATIENCE)
    assert may_take(seats[0], 1, seats, [candidate(1)], 0.0), "it is gone"


def test_without_known_candidates_what_is_vacant_is_taken() -> None:
    assert may_take(free("a"), 1, [free("a")], [], 0.0)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=8), st.sets(st.integers(1, 4), min_size=1))
def test_somebody_always_may_take_at_once(holders: list[int], alive: set[int]) -> None:
    seats = [free("vacant"), *(led(f"r{n}", who) for n, who in enumerate(holders))]
    standing = [candidate(who, roles=("vacant",)) for who in sorted(alive)]
    assert any(may_take(seats[0], who, seats, standing, 0.0) for who in alive)


# -- handover --------------------------------------------------------------------------------------


def moves(seats: list[Seat], standing: list[Candidate], age: float = SETTLED) -> list[tuple[int, str, int]]:
    """What each of them would do, all looking at the same time."""
    found = []
    for one in standing:
        ages = {seat.role: age for seat in seats if seat.replica_id == one.replica_id}
        move = handover(one.replica_id, seats, standing, ages)
        if move is not None:
            found.append((one.replica_id, *move))
    return found


def test_one_that_leads_two_more_hands_one_over() -> None:
    seats = [led("a", 1), led("b", 1)]
    assert moves(seats, [candidate(1), candidate(2)]) == [(1, "b", 2)]


def test_one_more_is_not_enough() -> None:
    assert moves([led("a", 1)], [candidate(1), candidate(2)]) == []


def test_nothing_is_handed_over_to_a_newcomer_nor_from_a_young_term() -> None:
    seats = [led("a", 1), led("b", 1)]
    assert moves(seats, [candidate(1), candidate(2, age=NEWCOMER - 0.1)]) == []
    assert moves(seats, [candidate(1), candidate(2)], age=SETTLED - 0.1) == []


def test_roles_that_one_would_not_take_count_as_load_of_those_who_lead_them() -> None:
    """Else the two would hand the same role to each other for ever."""
    seats = [led("a", 1), led("b", 1), led("p", 2), led("q", 2)]
    standing = [candidate(1, roles=("a", "b")), candidate(2, roles=("a", "b", "p", "q"))]
    assert moves(seats, standing) == []


@given(st.lists(st.integers(1, 5), max_size=8), st.integers(1, 5))
def test_there_is_one_move_at_a_time_and_loads_come_to_differ_by_one_at_most(holders: list[int], count: int) -> None:
    seats = [led(role, min(who, count)) for role, who in zip(ROLES, holders, strict=False)]
    standing = [candidate(n + 1) for n in range(count)]
    seen = set()
    for _ in range(100):
        found = moves(seats, standing)
        assert len(found) <= 1
        if not found:
            break
        [(giver, role, taker)] = found
        assert next(seat for seat in seats if seat.role == role).replica_id == giver
        seats = [led(role, taker) if seat.role == role else seat for seat in seats]
        shape = tuple((seat.role, seat.replica_id) for seat in seats)
        assert shape not in seen, "a role came back"
        seen.add(shape)
    loads = Counter(seat.replica_id for seat in seats)
    assert max(loads[n + 1] for n in range(count)) - min(loads[n + 1] for n in range(count)) <= 1


@given(st.data())
def test_whatever_each_would_take_handing_over_comes_to_an_end(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 4))
    standing = [candidate(n + 1, tuple(sorted(data.draw(st.sets(st.sampled_from(ROLES)))))) for n in range(count)]
    able = {role: [c.replica_id for c in standing if role in c.roles] for role in ROLES}
    seats = [led(role, data.draw(st.sampled_from(able[role]))) for role in ROLES if able[role]]
    for _ in range(200):
        found = moves(seats, standing)
        if not found:
            return
        [(_, role, taker)] = found
        assert taker in able[role]
        seats = [led(role, taker) if seat.role == role else seat for seat in seats]
    raise AssertionError("roles go round and round")
