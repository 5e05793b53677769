"""The history of some roles, as the processes wrote it down and as the store kept it, and what must hold of it.

- Terms of a role grow, each is a row of the store with one nonce and one owner, and nobody leads without one.
- In the order in which the store accepted them, writes of an older term never follow one of a newer term.
- A write that began after a newer term was known to be won is refused.
- A write that was acknowledged is there.
- A term goes its way: won, recovery, become, services, over, lose, released; no service writes when it was lost.
- A role that was given up (and not lost) is won by the next one only after the lose hook of the last one has ended.
- A process does not lead a role again before it has let it go.

Times are those of a clock that all processes of the machine share. What took time has two: `since` is before it was
asked for, `at` after the answer. So "later" is said only of what certainly was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

ORDER = ("won", "recover", "become", "serve", "lose_begin", "lose_end", "released")
KINDS = (*ORDER, "over", "lose_cut", "write_ok", "write_refused")


@dataclass(frozen=True, slots=True)
class Happened:
    """One line of a process's diary."""

    event: str
    pid: int
    role: str
    term: int
    at: int
    since: int = 0
    nonce: int = 0
    seq: int = 0
    by: str = ""
    """Who wrote: a `service` of the leader, or a `ghost` that goes on whatever it is told."""
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Stored:
    """A term that the store began."""

    role: str
    term: int
    nonce: int
    replica_id: int


@dataclass(frozen=True, slots=True)
class Act:
    """A write that the store accepted, numbered while it held the fence."""

    seq: int
    role: str
    term: int
    nonce: int


_FIELDS = {field.name for field in fields(Happened)}


def read(lines: Iterable[dict[str, Any]]) -> list[Happened]:
    """What a process said, without what is none of the history."""
    return [
        Happened(**{name: value for name, value in line.items() if name in _FIELDS})
        for line in lines
        if line["event"] in KINDS
    ]


def complaints(history: Sequence[Happened], stored: Sequence[Stored], acts: Sequence[Act]) -> list[str]:
    """What is wrong, as sentences. `stored` and `acts` in the order of the store."""
    found = [*_terms(history, stored), *_acts(history, stored, acts)]
    roles: defaultdict[str, list[Happened]] = defaultdict(list)
    for event in sorted(history, key=lambda event: event.at):
        roles[event.role].append(event)
    for role, events in roles.items():
        by_term: defaultdict[int, list[Happened]] = defaultdict(list)
        for event in events:
            by_term[event.term].append(event)
        told = [*_stale(events), *_handovers(by_term), *_again(events)]
        for term, mine in sorted(by_term.items()):
            told += [f"term {term}: {what}" for what in _way(mine)]
        found += [f"role {role}, {what}" for what in told]
    return found


def _terms(history: Sequence[Happened], stored: Sequence[Stored]) -> Iterator[str]:
    newest: dict[str, int] = {}
    for row in stored:
        if row.term <= newest.get(row.role, 0):
            yield f"role {row.role}: term {row.term} was begun after term {newest[row.role]}"
        newest[row.role] = max(row.term, newest.get(row.role, 0))
    known = {(row.role, row.term): row.nonce for row in stored}
    owners: dict[tuple[str, int], int] = {}
    for event in history:
        key = event.role, event.term
        if key not in known:
            yield f"role {event.role}: {event.event} in term {event.term}, which the store does not have"
        elif event.nonce and event.nonce != known[key]:
            yield f"role {event.role}: {event.event} in term {event.term} with another nonce than the store has"
        if owners.setdefault(key, event.pid) != event.pid:
            yield f"role {event.role}: term {event.term} has two owners, {owners[key]} and {event.pid}"


def _acts(history: Sequence[Happened], stored: Sequence[Stored], acts: Sequence[Act]) -> Iterator[str]:
    known = {(row.role, row.term, row.nonce) for row in stored}
    newest: dict[str, int] = {}
    for act in sorted(acts, key=lambda act: act.seq):
        if (act.role, act.term, act.nonce) not in known:
            yield f"role {act.role}: a write was accepted of term {act.term}, nonce {act.nonce}, which never was"
        if act.term < newest.get(act.role, 0):
            yield f"role {act.role}: a write of term {act.term} was accepted after one of term {newest[act.role]}"
        newest[act.role] = max(act.term, newest.get(act.role, 0))
    kept = {(act.seq, act.role, act.term) for act in acts}
    for event in history:
        if event.event == "write_ok" and (event.seq, event.role, event.term) not in kept:
            yield f"role {event.role}: write {event.seq} of term {event.term} was acknowledged and is not there"


def _stale(events: list[Happened]) -> Iterator[str]:
    newest = 0
    # At the same instant the write is the earlier one, for all that can be known.
    for at, event in sorted(_moments(events), key=lambda moment: (moment[0], moment[1].event == "won")):
        if event.event == "won":
            newest = max(newest, event.term)
        elif event.term < newest:
            yield f"a write of term {event.term} began at {at}, after term {newest} was won, and was accepted"


def _moments(events: list[Happened]) -> Iterator[tuple[int, Happened]]:
    for event in events:
        if event.event == "won":
            yield event.at, event
        elif event.event == "write_ok":
            yield event.since, event


def _way(events: list[Happened]) -> Iterator[str]:
    """The events of one term."""
    first: dict[str, Happened] = {}
    for event in events:
        if event.event in first and event.event in ("won", "recover", "become", "over", "lose_begin", "released"):
            yield f"{event.event} twice"
        first.setdefault(event.event, event)
    for event in events:
        if event.event in ORDER:
            for later in ORDER[: ORDER.index(event.event)]:
                if later in first and _began(event) < first[later].at:
                    yield f"{event.event} before {later}"
    for needed, then in (("won", "recover"), ("recover", "become"), ("become", "serve"), ("become", "lose_begin")):
        if then in first and needed not in first:
            yield f"{then} without {needed}"
    if "released" in first and "lose_begin" in first and not first.keys() & {"lose_end", "lose_cut"}:
        yield "released before the lose hook has ended"
    if "lose_cut" in first and not ("over" in first and first["over"].lost):
        yield "the lose hook was cut short though the term was not lost"
    if "released" in first and "become" in first and "lose_begin" not in first:
        yield "released without the lose hook"
    for event in events:
        if event.event == "write_ok" and event.by == "service":
            for end in ("over", "lose_begin"):
                gone = end in first and (end == "lose_begin" or first[end].lost)
                if gone and event.since > first[end].at:
                    yield f"a service wrote after {end}"


def _handovers(by_term: dict[int, list[Happened]]) -> Iterator[str]:
    for (last, before), (term, after) in pairwise(sorted(by_term.items())):
        won = next((event.at for event in after if event.event == "won"), None)
        given_up = any(event.event == "over" and not event.lost for event in before)
        for event in before:
            if won is not None and given_up and event.event in ("lose_begin", "lose_end") and event.at > won:
                yield f"{event.event} of term {last} after term {term} was won, and it was not lost"


def _again(events: list[Happened]) -> Iterator[str]:
    """One process, one role: a term that was won is let go before the next is won."""
    held: dict[int, int] = {}
    for event in events:
        if event.event == "won":
            if event.pid in held:
                yield f"process {event.pid} won term {event.term} while it still had term {held[event.pid]}"
            held[event.pid] = event.term
        elif event.event == "released" and held.get(event.pid) == event.term:
            del held[event.pid]


def _began(event: Happened) -> int:
    return event.since or event.at
