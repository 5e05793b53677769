"""What a schedule expression means: a set of wall times, with no time zone yet.

`read` turns a cron expression into `WallTimes`, `read_interval` turns `every 1h30m` into seconds. Wall times
are whole seconds since 1970-01-01 00:00 on some wall clock; `rota.timetable` maps them to instants.

Cron: five fields (minute, hour, day of month, month, day of week), or six with seconds first.

- `*`, lists `1,2`, ranges `1-5`, steps `*/n`, `a-b/n` and `a/n` (from a to the field's end); names JAN-DEC
  and SUN-SAT in any case; 0 and 7 are Sunday. Only ranges of weekdays may wrap (`FRI-MON`); in `a/n` the week
  ends on Saturday. A step longer than its field is refused: `*/90` would mean hourly, and nobody means that.
- Day of month: `L` last day, `LW` last working day (Monday to Friday), `15W` the working day nearest to the
  15th within that month (none in a month without that day). Day of week: `MON#2` second Monday, `FRIL` last
  Friday. All may stand in lists. `?` is `*` in these two fields.
- As in Debian's cron, a day field that begins with `*` (or is `?`) counts as unrestricted: then both day
  fields must match. If neither does, either match suffices. So `0 0 13 * FRI` is every 13th and every Friday,
  but `0 0 */2 * FRI` is the Fridays on odd days.
- An expression that matches no day in any of the 14 kinds of year (leap or not x first weekday) is refused.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from calendar import isleap
from collections.abc import Callable
from datetime import date
from functools import lru_cache
from typing import NamedTuple, TypeVar

from rota.errors import BadExpression

DAY = 86_400
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
# Longest wait for a day that exists at all: 29 February on a given weekday, across 2100.
_RAREST_YEARS = 40
# A margin at both ends of datetime's range keeps every look ahead and behind inside it.
FIRST_YEAR, LAST_YEAR = 3, 9997
_LONGEST_INTERVAL = 366 * DAY

_MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_INTERVAL = re.compile(
    r"every\s+" + r"\s*".join(rf"(?:(\d{{1,9}})\s*{unit})?" for unit in "dhms"), re.ASCII | re.IGNORECASE
)

T = TypeVar("T")


class _Refused(Exception):
    """One item of one field cannot be read."""

    def __init__(self, item: str, reason: str) -> None:
        self.item, self.reason = item, reason


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()


_SECOND = _Field("second", 0, 59)
_MINUTE = _Field("minute", 0, 59)
_HOUR = _Field("hour", 0, 23)
_DAY = _Field("day of month", 1, 31)
_MONTH = _Field("month", 1, 12, ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"))
_WEEKDAY = _Field("day of week", 0, 6, ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"))


class _Month(NamedTuple):
    """All that a day rule needs to know about a month. Weekdays count from Sunday = 0."""

    opens_on: int
    length: int

    def weekday(self, day: int) -> int:
        return (self.opens_on + day - 1) % 7


_DayRule = Callable[[_Month], set[int]]


class Days:
    """The matching days, kept as one sorted tuple of days of the year for each of the 14 kinds of year.

    Days are numbered from 1970-01-01 = 0.
    """

    __slots__ = ("_both", "_kinds", "_months", "_on_day", "_on_weekday")

    def __init__(self, on_day: _DayRule, months: tuple[int, ...], on_weekday: _DayRule, *, both: bool) -> None:
        self._on_day, self._months, self._on_weekday, self._both = on_day, months, on_weekday, both
        self._kinds: dict[tuple[bool, int], tuple[int, ...]] = {}

    def never(self) -> bool:
        return not any(self._days_of((leap, weekday)) for leap in (True, False) for weekday in range(7))

    def ceil(self, day: int) -> int | None:
        """The first matching day >= day."""
        year = date.fromordinal(day + _EPOCH_ORDINAL).year
        for candidate in range(year, min(year + _RAREST_YEARS, LAST_YEAR) + 1):
            first, kind = _year(candidate)
            days = self._days_of(kind)
            position = bisect_left(days, day - first)
            if position < len(days):
                return first + days[position]
        return None

    def floor(self, day: int) -> int | None:
        """The last matching day <= day, or None if there is none in 40 years."""
        year = date.fromordinal(day + _EPOCH_ORDINAL).year
        for candidate in range(year, max(year - _RAREST_YEARS, FIRST_YEAR) - 1, -1):
            first, kind = _year(candidate)
            days = self._days_of(kind)
            position = bisect_right(days, day - first)
            if position:
                return first + days[position - 1]
        return None

    def count(self, start: int, end: int) -> int:
        """How many matching days there are in [start, end)."""
        total = 0
        while start < end:
            year = date.fromordinal(start + _EPOCH_ORDINAL).year
            first, kind = _year(year)
            days = self._days_of(kind)
            total += bisect_left(days, end - first) - bisect_left(days, start - first)
            start = _year(year + 1)[0]
        return total

    def _days_of(self, kind: tuple[bool, int]) -> tuple[int, ...]:
        days = self._kinds.get(kind)
        if days is None:
            days = self._kinds[kind] = tuple(self._walk(*kind))
        return days

    def _walk(self, leap: bool, opens_on: int) -> list[int]:
        matching: list[int] = []
        first = 0
        for number in range(1, 13):
            month = _Month((opens_on + first) % 7, _length(number, leap))
            if number in self._months:
                one, other = self._on_day(month), self._on_weekday(month)
                matching += (first + day - 1 for day in sorted(one & other if self._both else one | other))
            first += month.length
        return matching


class WallTimes:
    """Every wall time that matches a cron expression."""

    __slots__ = (
        "_days",
        "_hours",
        "_minutes",
        "_per_day",
        "_per_hour",
        "_per_minute",
        "_seconds",
        "starred_minute",
    )

    def __init__(
        self,
        seconds: tuple[int, ...],
        minutes: tuple[int, ...],
        hours: tuple[int, ...],
        days: Days,
        *,
        starred_minute: bool,
    ) -> None:
        self._seconds, self._minutes, self._hours, self._days = seconds, minutes, hours, days
        self._per_minute = len(seconds)
        self._per_hour = self._per_minute * len(minutes)
        self._per_day = self._per_hour * len(hours)
        self.starred_minute = starred_minute

    @property
    def all_hours(self) -> bool:
        return len(self._hours) == 24

    def ceil(self, wall: int) -> int | None:
        """The first match >= wall; None only at the end of the calendar."""
        today, second = divmod(wall, DAY)
        day = self._days.ceil(today)
        if day == today:
            rank = self._rank(second)
            if rank < self._per_day:
                return day * DAY + self._time(rank)
            day = self._days.ceil(today + 1)
        return None if day is None else day * DAY + self._time(0)

    def floor(self, wall: int) -> int | None:
        """The last match <= wall, or None if there is none in 40 years."""
        today, second = divmod(wall, DAY)
        day = self._days.floor(today)
        if day == today:
            rank = self._rank(second + 1)
            if rank:
                return day * DAY + self._time(rank - 1)
            day = self._days.floor(today - 1)
        return None if day is None else day * DAY + self._time(self._per_day - 1)

    def count(self, start: int, end: int) -> int:
        """How many matches there are in [start, end): whole days by multiplication."""
        (first, from_second), (last, to_second) = divmod(start, DAY), divmod(end, DAY)
        total = self._days.count(first, last) * self._per_day
        if self._days.ceil(first) == first:
            total -= self._rank(from_second)
        if self._days.ceil(last) == last:
            total += self._rank(to_second)
        return total

    def _rank(self, second: int) -> int:
        """How many matches of a matching day come before this second of the day."""
        hour, second = divmod(second, 3600)
        position = bisect_left(self._hours, hour)
        rank = position * self._per_hour
        if position == len(self._hours) or self._hours[position] != hour:
            return rank
        minute, second = divmod(second, 60)
        position = bisect_left(self._minutes, minute)
        rank += position * self._per_minute
        if position == len(self._minutes) or self._minutes[position] != minute:
            return rank
        return rank + bisect_left(self._seconds, second)

    def _time(self, rank: int) -> int:
        """The second of the day with that rank."""
        hour, rank = divmod(rank, self._per_hour)
        minute, rank = divmod(rank, self._per_minute)
        return self._hours[hour] * 3600 + self._minutes[minute] * 60 + self._seconds[rank]


@lru_cache(maxsize=100_000)
def read(expression: str) -> WallTimes:
    """The wall times of a cron expression; BadExpression names the field, the value and the reason."""
    second, minute, hour, day, month, weekday = _fields(expression)

    def checked(parse: Callable[[_Field, str], T], field: _Field, text: str) -> T:
        try:
            return parse(field, text)
        except _Refused as refused:
            raise BadExpression(expression, refused.reason, field=field.name, value=refused.item) from None

    seconds, minutes = checked(_numbers, _SECOND, second), checked(_numbers, _MINUTE, minute)
    hours = checked(_numbers, _HOUR, hour)
    checked(_day_rule, _DAY, day)
    checked(_numbers, _MONTH, month)
    checked(_day_rule, _WEEKDAY, weekday)
    days = _days(day, month, weekday)
    if days.never():
        reason = f"no year has such a day in month {month!r} (day of week {weekday!r}), so it would never fire"
        raise BadExpression(expression, reason, field=_DAY.name, value=day)
    return WallTimes(seconds, minutes, hours, days, starred_minute=minute.startswith("*"))


def read_interval(expression: str) -> int | None:
    """The seconds of `every 1h30m`; None if the expression does not begin with `every`."""
    text = expression.strip()
    if not text.lower().startswith("every"):
        return None
    value = text[len("every") :].strip()
    match = _INTERVAL.fullmatch(text)
    if not match or not value:
        reason = "write days, hours, minutes and seconds in this order, such as 'every 1h30m' or 'every 10s'"
        raise BadExpression(expression, reason, field="interval", value=value)
    days, hours, minutes, seconds = (int(amount or 0) for amount in match.groups())
    interval = days * DAY + hours * 3600 + minutes * 60 + seconds
    if not 1 <= interval <= _LONGEST_INTERVAL:
        reason = "an interval is at least 1 second and at most 366 days"
        raise BadExpression(expression, reason, field="interval", value=value)
    return interval


def _fields(expression: str) -> list[str]:
    text = expression.strip()
    if text.startswith("@"):
        if text.lower() == "@reboot":
            reason = "no replica's start is the cluster's start; run it when the application starts instead"
            raise BadExpression(expression, reason)
        if text.lower() not in _MACROS:
            raise BadExpression(expression, f"unknown name; the known ones are {', '.join(_MACROS)}")
        text = _MACROS[text.lower()]
    fields = text.split()
    if len(fields) not in (5, 6):
        names = ", ".join(field.name for field in (_MINUTE, _HOUR, _DAY, _MONTH, _WEEKDAY))
        reason = f"expected 5 fields ({names}), or 6 with seconds first, but there are {len(fields)}"
        raise BadExpression(expression, reason)
    return fields if len(fields) == 6 else ["0", *fields]


@lru_cache(maxsize=4096)
def _numbers(field: _Field, text: str) -> tuple[int, ...]:
    return tuple(sorted({number for item in text.split(",") for number in _expand(field, item)}))


def _expand(field: _Field, item: str) -> list[int]:
    """The numbers of `*`, `a`, `a-b`, and each of them with `/n`."""
    body, slash, step = item.upper().partition("/")
    first, dash, last = body.partition("-")
    if body == "*":
        low, high = field.low, field.high
    elif dash:
        low, high = _number(field, first, item), _number(field, last, item)
    else:
        low = _number(field, body, item)
        high = field.high if slash else low
    if low > high and field is _WEEKDAY:
        high += 7
    if low > high:
        raise _Refused(item, "the range runs backwards; write it as two ranges")
    stride = _step(field, step, item) if slash else 1
    return [n % 7 if field is _WEEKDAY else n for n in range(low, high + 1, stride)]


def _number(field: _Field, text: str, item: str) -> int:
    if text in field.names:
        return field.low + field.names.index(text)
    high = 7 if field is _WEEKDAY else field.high
    name = f" or a name such as {field.names[1]}" if field.names else ""
    # The length is bounded because int() refuses thousands of digits with an error of its own.
    if text.isascii() and text.isdecimal() and len(text) <= 4 and field.low <= int(text) <= high:
        return int(text)
    raise _Refused(item, f"expected a number from {field.low} to {high}{name}")


def _step(field: _Field, text: str, item: str) -> int:
    longest = field.high - field.low + 1
    if text.isascii() and text.isdecimal() and len(text) <= 4 and 1 <= int(text) <= longest:
        return int(text)
    raise _Refused(item, f"expected a step from 1 to {longest}; 'every 90m' writes an interval of any length")


@lru_cache(maxsize=4096)
def _days(day: str, month: str, weekday: str) -> Days:
    """Shared between expressions: most name the same few sets of days."""
    both = day.startswith(("*", "?")) or weekday.startswith(("*", "?"))
    return Days(_day_rule(_DAY, day), _numbers(_MONTH, month), _day_rule(_WEEKDAY, weekday), both=both)


@lru_cache(maxsize=4096)
def _day_rule(field: _Field, text: str) -> _DayRule:
    item_rule = _day_of_month if field is _DAY else _day_of_week
    rules = [item_rule(item) for item in ("*" if text == "?" else text).split(",")]
    return rules[0] if len(rules) == 1 else lambda month: set().union(*(rule(month) for rule in rules))


def _day_of_month(item: str) -> _DayRule:
    text = item.upper()
    if text == "L":
        return lambda month: {month.length}
    if text == "LW":
        return lambda month: {_nearest_working_day(month, month.length)}
    if text.endswith("W"):
        day = _number(_DAY, text[:-1], item)
        return lambda month: {_nearest_working_day(month, day)} if day <= month.length else set()
    days = _expand(_DAY, item)
    return lambda month: {day for day in days if day <= month.length}


def _day_of_week(item: str) -> _DayRule:
    text = item.upper()
    if text == "L":
        raise _Refused(item, "L needs a day before it here, such as FRIL for the last Friday")
    if text.endswith("L"):
        weekday = _number(_WEEKDAY, text[:-1], item) % 7
        return lambda month: {_first(month, weekday, month.length - 6)}
    if "#" in text:
        name, _, nth = text.partition("#")
        weekday = _number(_WEEKDAY, name, item) % 7
        if nth not in ("1", "2", "3", "4", "5"):
            raise _Refused(item, "expected a number from 1 to 5 after #")
        start = 7 * int(nth) - 6
        return lambda month: {day for day in (_first(month, weekday, start),) if day <= month.length}
    weekdays = set(_expand(_WEEKDAY, item))
    return lambda month: {day for day in range(1, month.length + 1) if month.weekday(day) in weekdays}


def _first(month: _Month, weekday: int, start: int) -> int:
    """The first such weekday on or after the day `start`."""
    return start + (weekday - month.weekday(start)) % 7


def _nearest_working_day(month: _Month, day: int) -> int:
    match month.weekday(day):
        case 6:
            return day - 1 if day > 1 else day + 2
        case 0:
            return day + 1 if day < month.length else day - 2
        case _:
            return day


@lru_cache(maxsize=10_000)
def _year(year: int) -> tuple[int, tuple[bool, int]]:
    """The number of the year's first day, and the year's kind."""
    ordinal = date(year, 1, 1).toordinal()
    return ordinal - _EPOCH_ORDINAL, (isleap(year), ordinal % 7)


def _length(month: int, leap: bool) -> int:
    if month == 2:
        return 29 if leap else 28
    return 30 if month in (4, 6, 9, 11) else 31
