"""Moments as people write and read them, and what the clocks do to a tick."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from rota.errors import BadInput
from rota.moment import read_duration, read_moment, show_duration, show_moment
from rota.timetable import timetable, zone_rules

NOW = datetime(2027, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "zone", "moment"),
    [
        ("2027-03-27", "Europe/Paris", datetime(2027, 3, 26, 23, tzinfo=UTC)),
        ("2027-03-27 02:30", None, datetime(2027, 3, 27, 2, 30, tzinfo=UTC)),
        ("2027-03-27T02:30:15", "Asia/Tokyo", datetime(2027, 3, 26, 17, 30, 15, tzinfo=UTC)),
        ("2027-03-27T02:30+05:00", "Europe/Paris", datetime(2027, 3, 26, 21, 30, tzinfo=UTC)),
        ("2027-03-27T02:30Z", "Europe/Paris", datetime(2027, 3, 27, 2, 30, tzinfo=UTC)),
        ("2027-10-31T02:30", "Europe/Paris", datetime(2027, 10, 31, 0, 30, tzinfo=UTC)),  # the first of two
        ("now", None, NOW),
        ("-1d12h", None, NOW - timedelta(hours=36)),
        ("+90m", "Europe/Paris", NOW + timedelta(minutes=90)),
    ],
)
def test_a_time_without_an_offset_is_on_the_clock_of_the_zone(text: str, zone: str | None, moment: datetime) -> None:
    assert read_moment(text, zone, NOW) == moment


@pytest.mark.parametrize("text", ["", "noon", "-1", "+x", "2027-13-01", "-5 apples"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=r"is no (time|duration)"):
        read_moment(text, None, NOW)


@pytest.mark.parametrize("text", ["0001-01-01", "1969-12-31", "9999-12-31", "9999-12-31T23:59-12:00"])
def test_a_time_that_no_store_keeps_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="is outside the years 1970 to 9996"):
        read_moment(text, "Asia/Tokyo", NOW)


def test_a_time_that_the_clocks_leap_over_is_refused() -> None:
    with pytest.raises(BadInput, match="does not exist in Europe/Paris"):
        read_moment("2027-03-28T02:30", "Europe/Paris", NOW)


def test_what_is_shown_can_be_told_apart_in_a_fold() -> None:
    first = datetime(2027, 10, 31, 0, 30, tzinfo=UTC)
    assert show_moment(first, "Europe/Paris") == "2027-10-31 02:30 CEST"
    assert show_moment(first + timedelta(hours=1), "Europe/Paris") == "2027-10-31 02:30 CET"
    assert show_moment(first + timedelta(seconds=7), None) == "2027-10-31 00:30:07 UTC"


@pytest.mark.parametrize("seconds", [1, 59, 60, 3600, 5400, 86399, 86400, 90061])
def test_a_duration_is_read_as_it_was_shown(seconds: int) -> None:
    assert read_duration(show_duration(seconds)) == seconds
    assert read_duration(str(seconds)) == seconds


# -- what the clocks do ----------------------------------------------------------------------------


def remarks(expression: str, zone: str, start: datetime, count: int) -> list[tuple[str, str]]:
    table, found = timetable(expression, zone), []
    for _ in range(count):
        start = table.next(start)
        shift = table.shift(start)
        found.append((f"{start.astimezone(zone_rules(zone)):%H:%M %Z}", str(shift) if shift else ""))
    return found


def test_ticks_that_a_gap_swallows_say_so() -> None:
    before = datetime(2027, 3, 27, 22, tzinfo=UTC)
    assert remarks("30 2 * * *", "Europe/Paris", before, 2) == [
        ("03:00 CEST", "02:30 does not exist on 2027-03-28: runs at 03:00"),
        ("02:30 CEST", ""),
    ]
    assert remarks("*/20 2 * * *", "Europe/Paris", before, 1) == [
        ("03:00 CEST", "3 ticks from 02:00 on do not exist on 2027-03-28: one run at 03:00"),
    ]
    assert remarks("30 * * * *", "Europe/Paris", before, 5) == [
        ("23:30 CET", ""), ("00:30 CET", ""), ("01:30 CET", ""), ("03:30 CEST", ""), ("04:30 CEST", ""),
    ]  # fmt: skip


def test_ticks_in_a_fold_say_whether_they_come_once_or_twice() -> None:
    before = datetime(2027, 10, 30, 22, tzinfo=UTC)
    assert remarks("30 2 * * *", "Europe/Paris", before, 2) == [
        ("02:30 CEST", "clocks go back on 2027-10-31: 02:30 happens twice, runs the first time only"),
        ("02:30 CET", ""),
    ]
    assert remarks("*/30 2 * * *", "Europe/Paris", before, 4) == [
        ("02:00 CEST", "clocks go back on 2027-10-31: 02:00 happens twice, runs both times"),
        ("02:30 CEST", "clocks go back on 2027-10-31: 02:30 happens twice, runs both times"),
        ("02:00 CET", "the second 02:00 of 2027-10-31: clocks went back from 03:00"),
        ("02:30 CET", "the second 02:30 of 2027-10-31: clocks went back from 03:00"),
    ]


@pytest.mark.parametrize("zone", ["Europe/Paris", "Australia/Lord_Howe", "America/St_Johns", "UTC", "Asia/Tokyo"])
@pytest.mark.parametrize("expression", ["30 2 * * *", "*/15 * * * *", "15,45 1-2 * * *", "*/10 1,2 * * *"])
def test_a_remark_is_made_just_where_a_wall_time_is_missing_or_doubled(zone: str, expression: str) -> None:
    """Against an independent look: how often the zone's clock shows what the tick shows."""
    table, rules = timetable(expression, zone), zone_rules(zone)
    start = datetime(2027, 1, 1, tzinfo=UTC)
    for tick in table.between(start, start + timedelta(days=365)):
        shift, wall = table.shift(tick), tick.astimezone(rules).replace(tzinfo=None)
        twice = wall.replace(tzinfo=rules, fold=0).utcoffset() != wall.replace(tzinfo=rules, fold=1).utcoffset()
        second = tick.astimezone(rules).fold == 1
        if twice:
            assert shift is not None
            assert (shift.kind == "again") == second
        else:
            assert shift is None or shift.kind == "swallowed"
