"""When a schedule ticks: expression + time zone -> instants. Pure: no clock is read, nothing is remembered.

The ticks of a timetable are a *set of instants*, whole seconds in UTC, the same on every replica.

- `every 10s` ticks at the multiples of its interval since the Unix epoch. The zone is checked, then ignored.
- A cron expression (`rota.expression` has the syntax) names wall times. A zone's clock makes them instants:
  - If the hours expand to all 24, every instant whose wall time matches is a tick: elapsed time goes on
    through gaps (their wall times do not exist) and through both passes of a fold.
  - If the hours are restricted, the ticks that a gap swallows become one tick at the gap's end, the same one
    as a regular tick there. In a fold only the first pass ticks, unless the minute field begins with `*`:
    then both do.

`next` is strictly later than its argument and depends on nothing else. Arithmetic is in UTC seconds
throughout: datetimes of one zone compare by wall time and ignore the fold.

The rules come from the tzdata package, never from the operating system, so that replicas with the same
`TZDATA_VERSION` agree and a caller can recompute when it changes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from rota.errors import BadInput, UnknownTimezone
from rota.expression import DAY, FIRST_YEAR, LAST_YEAR, WallTimes, read, read_interval
from rota.shift import Shift

try:
    from tzdata import IANA_VERSION as TZDATA_VERSION
except ImportError:
    TZDATA_VERSION = ""

__all__ = ["TZDATA_VERSION", "Timetable", "next_by_rules", "timetable", "zone_rules"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST = int((datetime(FIRST_YEAR, 1, 1, tzinfo=UTC) - _EPOCH).total_seconds())
_LATEST = int((datetime(LAST_YEAR, 1, 1, tzinfo=UTC) - _EPOCH).total_seconds())

_BLOCK = 1 << 25  # seconds, about 388 days: the unit in which a zone's segments are found and cached
_PROBE = 3 * DAY  # no zone has ever changed its offset and changed it back within a week
_MARGIN = 3 * DAY  # more than any two offsets differ (two days)


@lru_cache(maxsize=100_000)
def timetable(expression: str, timezone: str | None = None) -> Timetable:
    """The timetable of an expression in a zone (None: UTC). Raises BadExpression or UnknownTimezone."""
    name = "UTC" if timezone is None else timezone
    zone = _zone(name)
    interval = read_interval(expression)
    if interval is not None:
        return Every(expression, name, interval)
    return Cron(expression, name, read(expression), zone)


def zone_rules(timezone: str | None) -> ZoneInfo:
    """A zone's clock by the same rules (None: UTC). Raises UnknownTimezone."""
    return _zone("UTC" if timezone is None else timezone).rules


def next_by_rules(expression: str, timezone: str | None, after: datetime) -> datetime | None:
    """The next tick, or None for a row that makes no sense (the scheduler will say so)."""
    try:
        return timetable(expression, timezone).next(after)
    except BadInput:
        return None


class Timetable(ABC):
    """A set of instants. Takes any aware datetime, returns datetimes in UTC."""

    __slots__ = ("_last", "expression", "timezone")

    def __init__(self, expression: str, timezone: str) -> None:
        self.expression, self.timezone = expression, timezone
        self._last: tuple[datetime, datetime] | None = None

    def __repr__(self) -> str:
        return f"timetable({self.expression!r}, {self.timezone!r})"

    def next(self, after: datetime) -> datetime:
        """The first tick strictly later than `after`."""
        last = self._last  # schedules with the same expression are due at the same time, and ask the same
        if last is not None and last[0] == after:
            return last[1]
        found = _EPOCH + timedelta(seconds=self._ceil(_seconds(after) + 1))
        self._last = (after, found)
        return found

    def latest(self, at: datetime) -> datetime | None:
        """The newest tick that is not later than `at`; None if there was none in 40 years."""
        tick = self._floor(_seconds(at))
        return None if tick is None else _EPOCH + timedelta(seconds=tick)

    def count(self, after: datetime, until: datetime) -> int:
        """How many ticks there are in (after, until], without walking through them."""
        start, end = _seconds(after) + 1, _seconds(until) + 1
        return self._count(start, end) if start < end else 0

    def shift(self, tick: datetime) -> Shift | None:
        """What a change of the clocks has to do with this tick, if anything."""
        return self._shift(_seconds(tick))

    def between(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """The ticks in (after, until], ascending, found as they are asked for."""
        return self._walk(_seconds(after) + 1, _seconds(until))

    def _walk(self, start: int, last: int) -> Iterator[datetime]:
        while start <= last and (tick := self._ceil(start)) <= last:
            yield _EPOCH + timedelta(seconds=tick)
            start = tick + 1

    def _shift(self, instant: int) -> Shift | None:
        return None

    @abstractmethod
    def _ceil(self, instant: int) -> int:
        """The first tick >= instant."""

    @abstractmethod
    def _floor(self, instant: int) -> int | None:
        """The last tick <= instant."""

    @abstractmethod
    def _count(self, start: int, end: int) -> int:
        """How many ticks there are in [start, end), which is not empty."""


class Every(Timetable):
    """Multiples of an interval since the Unix epoch."""

    __slots__ = ("interval",)

    def __init__(self, expression: str, timezone: str, interval: int) -> None:
        super().__init__(expression, timezone)
        self.interval = interval

    def _ceil(self, instant: int) -> int:
        return -(-instant // self.interval) * self.interval

    def _floor(self, instant: int) -> int:
        return instant // self.interval * self.interval

    def _count(self, start: int, end: int) -> int:
        return (end - 1) // self.interval - (start - 1) // self.interval


class Cron(Timetable):
    """The wall times of a cron expression, as one zone's clock shows them."""

    __slots__ = ("_both_passes", "_elapsed", "_wall", "_zone")

    def __init__(self, expression: str, timezone: str, wall: WallTimes, zone: _Zone) -> None:
        super().__init__(expression, timezone)
        self._wall, self._zone = wall, zone
        self._elapsed = wall.all_hours
        self._both_passes = wall.all_hours or wall.starred_minute

    def _ceil(self, instant: int) -> int:
        while True:
            segment = self._zone.segment(instant)
            if instant == segment.start and self._swallowed(segment):
                return instant
            wall = self._wall.ceil(max(instant + segment.offset, self._opening(segment)))
            if wall is None:
                raise BadInput(f"{self!r} has no tick left before the end of the calendar")
            if wall < segment.end + segment.offset:
                return wall - segment.offset
            # Nothing matches before `wall`, so a rare expression may leap over whole segments. But not from
            # close to a segment's end: a fold there may show again what lies behind us.
            leap = wall - _MARGIN if segment.end - instant > _MARGIN else segment.end
            instant = max(segment.end, leap)

    def _floor(self, instant: int) -> int | None:
        while True:
            segment = self._zone.segment(instant)
            wall = self._wall.floor(instant + segment.offset)
            if wall is None:
                return None
            if wall >= self._opening(segment):
                return wall - segment.offset
            if self._swallowed(segment):
                return segment.start
            leap = wall + _MARGIN if instant - segment.start > _MARGIN else segment.start - 1
            instant = min(segment.start - 1, leap)

    def _count(self, start: int, end: int) -> int:
        total = 0
        while start < end:
            segment = self._zone.segment(start)
            stop = min(end, segment.end)
            first, last = max(start + segment.offset, self._opening(segment)), stop + segment.offset
            if first < last:
                total += self._wall.count(first, last)
            if start == segment.start and self._swallowed(segment):
                total += not self._wall.count(first, first + 1)
            start = stop
        return total

    def _shift(self, instant: int) -> Shift | None:
        segment = self._zone.segment(instant)
        shown, wall = segment.start + segment.offset, instant + segment.offset
        if instant == segment.start and self._swallowed(segment):
            first = self._wall.ceil(segment.reached)
            assert first is not None
            return Shift("swallowed", first, segment.reached, shown, self._wall.count(segment.reached, shown))
        if wall < segment.reached:
            return Shift("again", wall, segment.reached, shown)
        later = self._zone.segment(segment.end)
        while later.offset == segment.offset and 0 < later.start - instant < _MARGIN:  # the edge of a block
            later = self._zone.segment(later.end)
        shown = later.start + later.offset
        if shown <= wall < later.reached:
            return Shift("both" if self._both_passes else "first", wall, later.reached, shown)
        return None

    def _opening(self, segment: _Segment) -> int:
        """The first wall time of this segment that may tick."""
        shown = segment.start + segment.offset
        return shown if self._both_passes else max(shown, segment.reached)

    def _swallowed(self, segment: _Segment) -> bool:
        """Whether the gap before this segment swallowed ticks, which are then due as one at its start."""
        shown = segment.start + segment.offset
        if self._elapsed or segment.reached >= shown:
            return False
        wall = self._wall.ceil(segment.reached)
        return wall is not None and wall < shown


class _Segment(NamedTuple):
    """A stretch of instants [start, end) with one offset.

    `reached` is the wall time that the clock had reached when the segment began. If it is before the
    segment's own first wall time there is a gap between them, if after, a fold.
    """

    start: int
    end: int
    offset: int
    reached: int


class _Zone:
    __slots__ = ("_fixed", "rules")

    def __init__(self, rules: ZoneInfo) -> None:
        self.rules = rules
        always = _Segment(2 * _EARLIEST, 2 * _LATEST, 0, 2 * _EARLIEST)
        self._fixed = always if rules.key in ("UTC", "Etc/UTC") else None

    def segment(self, instant: int) -> _Segment:
        if self._fixed is not None:
            return self._fixed
        starts, segments = _block(self.rules, instant // _BLOCK)
        return segments[bisect_right(starts, instant) - 1]


@lru_cache(maxsize=1024)
def _zone(name: str) -> _Zone:
    if name not in _names():
        raise UnknownTimezone(name)
    if not TZDATA_VERSION:
        return _Zone(ZoneInfo(name))
    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as rules:
        return _Zone(ZoneInfo.from_file(rules, key=name))


@lru_cache(maxsize=1)
def _names() -> frozenset[str]:
    """Compared with, never opened unseen: a name may come from a row that somebody typed."""
    if not TZDATA_VERSION:
        return frozenset(available_timezones())
    return frozenset(files("tzdata").joinpath("zones").read_text(encoding="ascii").split())


@lru_cache(maxsize=8192)
def _block(rules: ZoneInfo, number: int) -> tuple[tuple[int, ...], tuple[_Segment, ...]]:
    """The segments of one block and their starts. The block's edges cut segments, without gap or fold."""
    start, end = number * _BLOCK, (number + 1) * _BLOCK
    # Begin early enough to know of a fold that is still under way at the edge.
    since = start - _MARGIN
    offset = _offset(rules, since)
    reached = since + offset
    segments: list[_Segment] = []
    for at, changed in [*_changes(rules, since, end), (end, 0)]:
        if at > start:
            if since < start:
                since, reached = start, max(reached, start + offset)
            segments.append(_Segment(since, at, offset, reached))
        reached = at + offset
        since, offset = at, changed
    return tuple(segment.start for segment in segments), tuple(segments)


def _changes(rules: ZoneInfo, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Each instant in (start, end) at which the offset changes, and the offset from there on."""
    offset = _offset(rules, start)
    while start < end:
        probe = min(start + _PROBE, end)
        if _offset(rules, probe) == offset:
            start = probe
            continue
        while probe - start > 1:
            middle = (start + probe) // 2
            if _offset(rules, middle) == offset:
                start = middle
            else:
                probe = middle
        start, offset = probe, _offset(rules, probe)
        if start < end:
            yield start, offset


def _offset(rules: ZoneInfo, instant: int) -> int:
    offset = (_EPOCH + timedelta(seconds=instant)).astimezone(rules).utcoffset()
    assert offset is not None
    return offset.days * DAY + offset.seconds


def _seconds(moment: datetime) -> int:
    """Whole seconds since the epoch, rounded down. Subtracting datetimes of two zones is done in UTC."""
    try:
        since = moment - _EPOCH
    except TypeError:
        raise BadInput(f"{moment!r} has no time zone: pass an aware datetime, such as one in UTC") from None
    seconds = since.days * DAY + since.seconds
    if not _EARLIEST <= seconds < _LATEST:
        raise BadInput(f"{moment!r} is outside the years {FIRST_YEAR} to {LAST_YEAR - 1}")
    return seconds
