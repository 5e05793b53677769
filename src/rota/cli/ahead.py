"""Ticks to come, with what is to be said about them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from rota.timetable import Timetable, zone_rules


@dataclass(frozen=True)
class Ahead:
    """A tick, and a remark where it is not what one would expect."""

    at: datetime
    remark: str | None = None


def ahead(
    table: Timetable, after: datetime, until: datetime | None, pending: datetime | None, now: datetime
) -> Iterator[Ahead]:
    """The ticks after an instant. `pending`: the one that its row has as the next one, if that is to come first."""
    zone, offset = zone_rules(table.timezone), None
    if pending is not None and until is not None and pending > until:
        return
    if pending is not None:
        off = None if table.latest(pending) == pending else "set by hand"
        late = "due, and not made yet" if pending <= now else None
        yield Ahead(pending, off or late or _remark(table, pending))
        after, offset = max(after, pending), pending.astimezone(zone).utcoffset()
    while True:
        after = table.next(after)
        if until is not None and after > until:
            return
        moved = after.astimezone(zone).utcoffset()
        remark = _remark(table, after)
        if remark is None and offset is not None and moved is not None and moved != offset:
            remark = f"clocks have gone {'forward' if moved > offset else 'back'} since the tick before"
        offset = moved
        yield Ahead(after.astimezone(UTC), remark)


def _remark(table: Timetable, tick: datetime) -> str | None:
    shift = table.shift(tick)
    return None if shift is None else str(shift)
