"""Pure decisions about vacant roles: who takes one now, who hands one over. Nothing here reads a clock or a database.

Roles are spread: one that leads more than another candidate for the same role lets it go first, for a while; one that
leads at least two more than a settled candidate hands one over. So a crash is answered at once by whoever leads least,
and a first replica does not keep everything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from rota.contract.roles import Candidate, Seat

Takeover = Literal["prompt", "strict"]

PATIENCE = 1.0
"""Seconds for which one that leads more waits for those who lead less."""
SETTLED, NEWCOMER = 10.0, 5.0
"""Nothing is handed over before its term is so old, and to nobody who has been there for less."""


def vacant(seat: Seat, takeover: Takeover, strict_after: float) -> bool:
    """Nobody leads. With `strict`, nobody can believe to lead either: the last one let it go, or has been silent for
    longer than it trusts itself."""
    if seat.alive:
        return False
    if takeover == "prompt" or seat.released or seat.term == 0:
        return True
    return seat.ended is not None and seat.ended >= strict_after


def may_take(seat: Seat, me: int, seats: Sequence[Seat], candidates: Sequence[Candidate], vacant_for: float) -> bool:
    """Whether this replica should take a vacant seat now, or leave it to another one for a moment."""
    gone = {s.replica_id for s in seats if not s.alive}  # dead, and not buried yet
    others = [c for c in candidates if c.replica_id not in gone | {me} and seat.role in c.roles]
    if seat.meant_for is not None and seat.meant_for != me:
        return all(c.replica_id != seat.meant_for for c in others)
    if seat.meant_for == me or vacant_for >= PATIENCE:
        return True
    loads = _loads(seats)
    return all(loads[me] <= loads[c.replica_id] for c in others)


def handover(
    me: int, seats: Sequence[Seat], candidates: Sequence[Candidate], ages: Mapping[str, float]
) -> tuple[str, int] | None:
    """A role of ours that another one should lead, and who. `ages`: seconds since each of our terms began.

    `seats` are all there are, also those that we would not take. Everybody sees the same, finds the same two, and only
    one of them is the giver: so there is one move at a time.
    """
    loads = _loads(seats)
    settled = sorted((c for c in candidates if c.age >= NEWCOMER), key=lambda c: (loads[c.replica_id], c.replica_id))
    for candidate in settled:
        enough = loads[candidate.replica_id] + 2
        givers = {who for role, who in _held(seats) if role in candidate.roles and loads[who] >= enough}
        if givers:
            if me != min(givers, key=lambda giver: (-loads[giver], giver)):
                return None
            role = max((r for r, age in ages.items() if r in candidate.roles and age >= SETTLED), default=None)
            return None if role is None else (role, candidate.replica_id)
    return None


def is_next(me: int, seats: Sequence[Seat], candidates: Sequence[Candidate]) -> bool:
    """Whether this one is among the two that would take a vacancy first: they look often, the others need not."""
    loads = _loads(seats)
    ahead = sum((loads[c.replica_id], c.replica_id) < (loads[me], me) for c in candidates)
    return ahead < 2


def _loads(seats: Sequence[Seat]) -> Counter[int]:
    return Counter(who for _, who in _held(seats))


def _held(seats: Sequence[Seat]) -> list[tuple[str, int]]:
    return [(seat.role, seat.replica_id) for seat in seats if seat.alive and seat.replica_id is not None]
