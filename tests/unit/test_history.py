"""The checker of histories: a good one passes, and each rule has a bad one that it catches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import chain

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cluster.history import Act, Happened, Stored, complaints, read

History = tuple[list[Happened], list[Stored], list[Act]]


def term(number: int, *, pid: int = 1, begins: int = 0, lost: bool = False, role: str = "r") -> History:
    """One term from its beginning to its end, with three writes; it takes 100."""

    def event(kind: str, at: int, **more: object) -> Happened:
        fields = {"since": 0, "nonce": number * 11} | more
        return Happened(kind, pid, role, number, begins + at, **fields)  # type: ignore[arg-type]

    def write(seq: int, at: int, by: str = "service") -> Happened:
        return event("write_ok", at, since=begins + at - 2, seq=seq, by=by)

    numbers = [10 * number + n for n in range(3)]
    history = [
        event("won", 10, since=begins + 5), event("recover", 20), event("become", 30), event("serve", 40),
        write(numbers[0], 50), write(numbers[1], 55), event("over", 60, lost=lost), event("lose_begin", 70),
        write(numbers[2], 75, by="ghost"), event("lose_end", 80), event("released", 95, since=begins + 90),
        event("write_refused", 99, since=begins + 98, by="ghost"),
    ]  # fmt: skip
    return history, [Stored(role, number, number * 11, pid)], [Act(n, role, number, number * 11) for n in numbers]


def together(*parts: History) -> History:
    history, stored, acts = zip(*parts, strict=True)
    return list(chain(*history)), list(chain(*stored)), list(chain(*acts))


def two(**second: int | bool) -> History:
    return together(term(1), term(2, pid=2, begins=100, **second))  # type: ignore[arg-type]


def edited(kind: str, edit: Callable[[Happened], Happened | None], *, of: int = 1) -> History:
    """Two terms, in which the first event of a kind of one of them is changed or left out."""
    history, stored, acts = two()
    at = next(n for n, event in enumerate(history) if (event.event, event.term) == (kind, of))
    made = edit(history[at])
    history[at : at + 1] = [] if made is None else [made]
    return history, stored, acts


def test_two_terms_one_after_the_other_are_right() -> None:
    assert complaints(*two()) == []


def test_a_service_may_write_while_its_term_is_given_up() -> None:
    assert complaints(*edited("write_ok", lambda e: replace(e, since=65, at=68))) == []


def test_terms_of_other_roles_may_overlap() -> None:
    other = term(1, pid=2, role="s")
    shifted = [replace(event, seq=event.seq + 500 if event.seq else 0) for event in other[0]]
    acts = [replace(act, seq=act.seq + 500) for act in other[2]]
    assert complaints(*together(term(1), (shifted, other[1], acts))) == []


def test_a_leader_that_was_killed_tells_no_end() -> None:
    history, stored, acts = two()
    assert complaints([e for e in history if e.term == 2 or e.at <= 55], stored, acts) == []


def test_a_frozen_leader_may_learn_of_its_end_when_another_leads() -> None:
    history, stored, acts = two()
    late = [replace(e, at=e.at + 200, since=e.since and e.since + 200, lost=True) if e.at > 57 and e.term == 1 else e
            for e in history if e.seq != 12]  # fmt: skip
    assert complaints(late, stored, acts) == []


def test_a_write_whose_answer_comes_late_is_not_stale() -> None:
    assert complaints(*edited("write_ok", lambda e: replace(e, at=300))) == []


BAD: dict[str, tuple[History, str]] = {
    "a term that the store does not have": ((two()[0], two()[1][:1], two()[2]), "which the store does not have"),
    "terms that do not grow": ((two()[0], two()[1][::-1], two()[2]), "begun after term 2"),
    "a term that is begun twice": ((two()[0], [*two()[1], two()[1][1]], two()[2]), "begun after term 2"),
    "another nonce": (edited("become", lambda e: replace(e, nonce=99)), "another nonce"),
    "two owners": (edited("become", lambda e: replace(e, pid=7)), "two owners"),
    "an accepted write of an unknown nonce": (
        (two()[0], two()[1], [*two()[2], Act(99, "r", 2, 5)]), "which never was",
    ),
    "an old write accepted after a new one": (
        (two()[0], two()[1], [*two()[2], Act(99, "r", 1, 11)]), "accepted after one of term 2",
    ),
    "an acknowledged write that is not there": ((two()[0], two()[1], two()[2][1:]), "is not there"),
    "a stale write accepted": (edited("write_ok", lambda e: replace(e, since=150, at=160)), "and was accepted"),
    "become before recovery": (edited("become", lambda e: replace(e, at=15)), "become before recover"),
    "become without recovery": (edited("recover", lambda e: None), "become without recover"),
    "a service before become": (edited("serve", lambda e: replace(e, at=25)), "serve before become"),
    "recovery without winning": (edited("won", lambda e: None), "recover without won"),
    "hooks twice": (
        (lambda h: ([*h[0], replace(h[0][2], at=45)], h[1], h[2]))(two()), "become twice",
    ),
    "released before the lose hook": (
        edited("released", lambda e: replace(e, since=65, at=69)), "released before lose_begin",
    ),
    "released in the middle of the lose hook": (
        edited("released", lambda e: replace(e, since=75, at=99)), "released before lose_end",
    ),
    "released without the lose hook": (
        (lambda h: ([e for e in h[0] if not e.event.startswith("lose")], h[1], h[2]))(two()),
        "released without the lose hook",
    ),
    "the lose hook never ends": (edited("lose_end", lambda e: None), "before the lose hook has ended"),
    "the lose hook is cut short though the term was given up": (
        edited("lose_end", lambda e: replace(e, event="lose_cut")), "cut short though the term was not lost",
    ),
    "a service writes when the term was lost": (
        (lambda h: ([replace(e, lost=True) if e.event == "over" else e for e in h[0]], h[1], h[2]))(
            edited("write_ok", lambda e: replace(e, since=65, at=68))
        ),
        "a service wrote after over",
    ),
    "a service writes while the lose hook runs": (
        edited("write_ok", lambda e: replace(e, since=72, at=74)), "a service wrote after lose_begin",
    ),
    "the next one wins before the lose hook has ended": (
        edited("won", lambda e: replace(e, at=75), of=2), "after term 2 was won, and it was not lost",
    ),
    "one process leads twice": (
        together(term(1), term(2, pid=1, begins=50)), "while it still had term 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_it_catches(name: str) -> None:
    history, told = BAD[name]
    assert any(told in complaint for complaint in complaints(*history)), complaints(*history)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_any_row_of_whole_terms_is_right_in_whatever_order_it_is_told(
    owners: list[tuple[int, bool]], rng: object
) -> None:
    history, stored, acts = together(
        *(term(n + 1, pid=pid, begins=100 * n, lost=lost) for n, (pid, lost) in enumerate(owners))
    )
    rng.shuffle(history)  # type: ignore[attr-defined]
    assert complaints(history, stored, acts) == []


@given(st.integers(1, 4), st.integers(0, 400))
def test_an_accepted_write_is_right_only_before_the_next_term(of: int, at: int) -> None:
    history, stored, acts = together(*(term(n, pid=n, begins=100 * (n - 1)) for n in range(1, 5)))
    write = Happened("write_ok", of, "r", of, at + 1, since=at, nonce=of * 11, seq=10 * of + 2, by="ghost")
    stale = any(event.event == "won" and event.term > of and event.at < at for event in history)
    assert bool(complaints([*history, write], stored, acts)) is stale


def test_other_lines_of_a_diary_are_not_read() -> None:
    line = {"event": "won", "pid": 1, "role": "r", "term": 1, "at": 5, "since": 1, "nonce": 2, "why": "?"}
    assert read([{"event": "Ready"}, line]) == [Happened("won", 1, "r", 1, 5, 1, 2)]
