"""What a schedule means, as sentences."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise

import pytest

from rota import timetable as module
from rota.errors import BadExpression, BadInput, UnknownTimezone
from rota.timetable import TZDATA_VERSION, timetable
from tests.enumeration import ticks, zone_named


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def local_ticks(expression: str, zone: str, after: str, until: str) -> list[str]:
    """The ticks between two wall times, as wall times with their offset."""
    tz = zone_named(zone)
    start, end = (datetime.fromisoformat(text).replace(tzinfo=tz) for text in (after, until))
    return [
        tick.astimezone(tz).isoformat(timespec="minutes") for tick in timetable(expression, zone).between(start, end)
    ]


def days(expression: str, year: int) -> list[str]:
    start, end = utc(f"{year - 1}-12-31 23:59:59"), utc(f"{year}-12-31 23:59:59")
    return [f"{tick:%m-%d}" for tick in timetable(expression).between(start, end)]


# -- expressions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        ("* * * * *", "2025-01-01 00:00:00", "2025-01-01 00:01:00"),
        ("*/15 * * * *", "2025-01-01 00:14:59", "2025-01-01 00:15:00"),
        ("  5\t*  * *   * \n", "2025-01-01 00:00:00", "2025-01-01 00:05:00"),
        ("50/3 * * * *", "2025-01-01 00:53:00", "2025-01-01 00:56:00"),
        ("10-20/5 * * * *", "2025-01-01 00:20:00", "2025-01-01 01:10:00"),
        ("*/10 * * * * *", "2025-01-01 00:00:50", "2025-01-01 00:01:00"),
        ("0 9 * * MON-FRI", "2025-01-03 09:00:00", "2025-01-06 09:00:00"),
        ("0 0 1 jan,Jul *", "2025-01-01 00:00:00", "2025-07-01 00:00:00"),
        ("0 0 * * 7", "2025-01-01 00:00:00", "2025-01-05 00:00:00"),
        ("0 0 * * 5-7", "2025-01-04 00:00:00", "2025-01-05 00:00:00"),
        ("0 0 * * FRI-MON", "2025-01-06 00:00:00", "2025-01-10 00:00:00"),
        ("0 0 * * 7-2", "2025-01-07 00:00:00", "2025-01-12 00:00:00"),
        ("0 0 ? * MON", "2025-01-01 00:00:00", "2025-01-06 00:00:00"),
        ("0 0 29 2 *", "2025-01-01 00:00:00", "2028-02-29 00:00:00"),
        ("0 0 29 2 *", "2096-02-29 00:00:00", "2104-02-29 00:00:00"),
        ("0 0 29 2 */7", "2088-02-29 00:00:00", "2128-02-29 00:00:00"),
        ("@yearly", "2025-01-01 00:00:00", "2026-01-01 00:00:00"),
        ("@Annually", "2025-01-01 00:00:00", "2026-01-01 00:00:00"),
        ("@monthly", "2025-01-01 00:00:00", "2025-02-01 00:00:00"),
        ("@weekly", "2025-01-01 00:00:00", "2025-01-05 00:00:00"),
        ("@daily", "2025-01-01 00:00:00", "2025-01-02 00:00:00"),
        ("@midnight", "2025-01-01 00:00:00", "2025-01-02 00:00:00"),
        (" @HOURLY ", "2025-01-01 00:00:00", "2025-01-01 01:00:00"),
    ],
)
def test_next_tick(expression: str, after: str, expected: str) -> None:
    assert timetable(expression).next(utc(after)) == utc(expected)


@pytest.mark.parametrize(
    ("expression", "year", "expected"),
    [
        ("0 0 L 1-4 *", 2024, ["01-31", "02-29", "03-31", "04-30"]),
        ("0 0 L 2 *", 2025, ["02-28"]),
        ("0 0 LW 5-8 *", 2025, ["05-30", "06-30", "07-31", "08-29"]),
        ("0 0 15W 2,3,6 *", 2025, ["02-14", "03-14", "06-16"]),
        ("0 0 1w 2,3,6 *", 2025, ["02-03", "03-03", "06-02"]),
        ("0 0 31W 1-6 *", 2025, ["01-31", "03-31", "05-30"]),
        ("0 0 1,L 2 *", 2025, ["02-01", "02-28"]),
        ("0 0 * 1-3 MON#2", 2025, ["01-13", "02-10", "03-10"]),
        ("0 0 * 1-5 fri#5", 2025, ["01-31", "05-30"]),
        ("0 0 * 1-3 FRIL", 2025, ["01-31", "02-28", "03-28"]),
        ("0 0 * 1-2 5L,0#1", 2025, ["01-05", "01-31", "02-02", "02-28"]),
        ("0 0 * 1 7L", 2025, ["01-26"]),
    ],
)
def test_special_days(expression: str, year: int, expected: list[str]) -> None:
    assert days(expression, year) == expected


def test_two_restricted_day_fields_mean_either() -> None:
    assert days("0 0 13 6 FRI", 2025) == ["06-06", "06-13", "06-20", "06-27"]
    assert days("0 0 10 6 FRI", 2025) == ["06-06", "06-10", "06-13", "06-20", "06-27"]
    fifth_minutes = list(timetable("*/5 * 31 * 1").between(utc("2025-01-30 12:00"), utc("2025-02-04 12:00")))
    assert {tick.day for tick in fifth_minutes} == {31, 3}  # a Friday the 31st, and a Monday
    assert len(fifth_minutes) == 2 * 288


def test_a_day_field_that_begins_with_a_star_does_not_widen_the_other() -> None:
    assert days("0 0 */2 6 FRI", 2025) == ["06-13", "06-27"]
    assert days("0 0 1-14 6 */5", 2025) == ["06-01", "06-06", "06-08", "06-13"]


@pytest.mark.parametrize(
    ("expression", "field", "value"),
    [
        ("60 * * * *", "minute", "60"),
        ("* 24 * * *", "hour", "24"),
        ("* * 0 * *", "day of month", "0"),
        ("* * 32 * *", "day of month", "32"),
        ("* * * 13 *", "month", "13"),
        ("* * * * 8", "day of week", "8"),
        ("60 * * * * *", "second", "60"),
        ("*/0 * * * *", "minute", "*/0"),
        ("*/90 * * * *", "minute", "*/90"),
        ("*/ * * * *", "minute", "*/"),
        ("*/1/2 * * * *", "minute", "*/1/2"),
        ("1,,2 * * * *", "minute", ""),
        (", * * * *", "minute", ""),
        ("-5 * * * *", "minute", "-5"),
        ("5- * * * *", "minute", "5-"),
        ("1-2-3 * * * *", "minute", "1-2-3"),
        ("20-10 * * * *", "minute", "20-10"),
        ("* 22-2 * * *", "hour", "22-2"),
        ("* * * NOV-FEB *", "month", "NOV-FEB"),
        ("² * * * *", "minute", "²"),
        ("٣ * * * *", "minute", "٣"),
        ("9" * 5000 + " * * * *", "minute", "9" * 5000),
        ("1.5 * * * *", "minute", "1.5"),
        ("? * * * *", "minute", "?"),
        ("** * * * *", "minute", "**"),
        ("MON * * * *", "minute", "MON"),
        ("* * * Mon *", "month", "Mon"),
        ("* * * * MONDAY", "day of week", "MONDAY"),
        ("* * * * MON#6", "day of week", "MON#6"),
        ("* * * * MON#", "day of week", "MON#"),
        ("* * * * MON-FRI#2", "day of week", "MON-FRI#2"),
        ("* * * * L", "day of week", "L"),
        ("* * W * *", "day of month", "W"),
        ("* * 32W * *", "day of month", "32W"),
        ("* * L-3 * *", "day of month", "L-3"),
        ("0 0 30 2 *", "day of month", "30"),
        ("0 0 31 4,6 *", "day of month", "31"),
        ("0 0 31W FEB *", "day of month", "31W"),
        ("0 0 */31 2 FRI#5", "day of month", "*/31"),
        ("every", "interval", ""),
        ("every 0s", "interval", "0s"),
        ("every 367d", "interval", "367d"),
        ("every 1.5h", "interval", "1.5h"),
        ("every 10", "interval", "10"),
        ("every 30m1h", "interval", "30m1h"),
        ("every 1 0s", "interval", "1 0s"),
        ("every -5s", "interval", "-5s"),
        ("every 2 hours", "interval", "2 hours"),
        ("everything", "interval", "thing"),
    ],
)
def test_a_bad_expression_is_refused_naming_field_value_and_reason(expression: str, field: str, value: str) -> None:
    with pytest.raises(BadExpression) as caught:
        timetable(expression)
    assert (caught.value.field, caught.value.value) == (field, value)
    assert caught.value.reason in str(caught.value)
    assert field in str(caught.value)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("", "there are 0"),
        ("* * * *", "there are 4"),
        ("* * * * * * *", "there are 7"),
        ("@reboot", "start"),
        ("@fortnightly", "@hourly"),
    ],
)
def test_an_expression_of_the_wrong_shape_is_refused_with_the_reason(expression: str, reason: str) -> None:
    with pytest.raises(BadExpression, match=reason):
        timetable(expression)


def test_two_day_fields_of_which_one_never_matches_are_accepted() -> None:
    assert days("0 0 30 2 MON", 2025) == ["02-03", "02-10", "02-17", "02-24"]


# -- intervals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "seconds"),
    [
        ("every 1s", 1),
        ("every 10s", 10),
        ("every 5m", 300),
        ("Every 1H30M", 5400),
        ("every 1h 30m", 5400),
        ("  every\t2 h ", 7200),
        ("every 1d2h3m4s", 93784),
        ("every 366d", 366 * 86400),
    ],
)
def test_an_interval_ticks_at_its_multiples_since_the_epoch(expression: str, seconds: int) -> None:
    table = timetable(expression, "Europe/Paris")
    start = utc("2025-03-29 12:34:56.789000")
    first, second, *_ = (table.next(start), table.next(table.next(start)))
    assert first.timestamp() % seconds == 0
    assert timedelta(0) < first - start <= timedelta(seconds=seconds)
    assert second - first == timedelta(seconds=seconds)
    assert table.latest(start) == first - timedelta(seconds=seconds)
    assert table.count(start, second) == 2
    assert list(table.between(start, second)) == [first, second]


def test_an_interval_with_an_unknown_zone_is_refused_all_the_same() -> None:
    with pytest.raises(UnknownTimezone):
        timetable("every 10s", "Mars/Olympus")


# -- gaps and folds ------------------------------------------------------------------------------------------


def test_a_daily_tick_in_the_spring_gap_moves_to_the_end_of_the_gap() -> None:
    assert local_ticks("30 2 * * *", "Europe/Paris", "2025-03-29 00:00", "2025-03-31 12:00") == [
        "2025-03-29T02:30+01:00",
        "2025-03-30T03:00+02:00",
        "2025-03-31T02:30+02:00",
    ]


def test_a_daily_tick_in_the_autumn_fold_happens_in_the_first_pass_only() -> None:
    assert local_ticks("30 2 * * *", "Europe/Paris", "2025-10-25 00:00", "2025-10-27 12:00") == [
        "2025-10-25T02:30+02:00",
        "2025-10-26T02:30+02:00",
        "2025-10-27T02:30+01:00",
    ]


def test_next_does_not_go_back_to_the_first_pass_from_within_the_second() -> None:
    second_pass = datetime(2025, 10, 26, 2, 10, tzinfo=zone_named("Europe/Paris"), fold=1)
    assert timetable("30 2 * * *", "Europe/Paris").next(second_pass) == utc("2025-10-27 01:30")
    assert timetable("30 2 * * *", "Europe/Paris").latest(second_pass) == utc("2025-10-26 00:30")


def test_a_yearly_tick_is_not_lost_on_the_very_day_of_the_fold() -> None:
    twice = timetable("*/10 2 26 10 *", "Europe/Paris")
    assert twice.next(utc("2025-10-26 00:55")) == utc("2025-10-26 01:00")
    once = timetable("30 2 26 10 *", "Europe/Paris")
    assert once.latest(utc("2025-10-26 01:10")) == utc("2025-10-26 00:30")


def test_quarter_hours_of_every_hour_go_through_both_passes_of_a_fold() -> None:
    assert local_ticks("*/15 * * * *", "Europe/Paris", "2025-10-26 01:59", "2025-10-26 02:59") == [
        f"2025-10-26T02:{minute:02}+02:00" for minute in (0, 15, 30, 45)
    ]
    table = timetable("*/15 * * * *", "Europe/Paris")
    assert table.count(utc("2025-10-25 23:59"), utc("2025-10-26 01:59")) == 8


def test_every_hour_written_in_any_way_is_elapsed_time() -> None:
    for hours in ("*", "*/1", "0-23", "0/1", "0-11,12-23"):
        table = timetable(f"30 {hours} * * *", "Europe/Paris")
        for change in (utc("2025-03-30 00:00"), utc("2025-10-26 00:00")):
            passing = list(table.between(change - timedelta(hours=5), change + timedelta(hours=5)))
            assert {later - earlier for earlier, later in pairwise(passing)} == {timedelta(hours=1)}


def test_ticks_swallowed_by_a_gap_merge_with_the_regular_one_at_its_end() -> None:
    swallowed = local_ticks("*/10 1-3 * * *", "Europe/Paris", "2025-03-30 01:49", "2025-03-30 03:15")
    assert swallowed == ["2025-03-30T01:50+01:00", "2025-03-30T03:00+02:00", "2025-03-30T03:10+02:00"]
    alone = local_ticks("5/10 1-3 * * *", "Europe/Paris", "2025-03-30 01:49", "2025-03-30 03:15")
    assert alone == [
        "2025-03-30T01:55+01:00",
        "2025-03-30T03:00+02:00",
        "2025-03-30T03:05+02:00",
        "2025-03-30T03:15+02:00",
    ]


def test_restricted_hours_fire_in_both_passes_only_if_the_minute_begins_with_a_star() -> None:
    window = (utc("2025-10-25 23:59:59"), utc("2025-10-26 01:59:59"))  # 02:00 to 03:00, twice
    assert timetable("*/10 1-3 * * *", "Europe/Paris").count(*window) == 12
    assert timetable("0/10 1-3 * * *", "Europe/Paris").count(*window) == 6
    assert timetable("* 2 * * *", "Europe/Paris").count(*window) == 120
    assert timetable("0-59 2 * * *", "Europe/Paris").count(*window) == 60


def test_midnight_does_not_exist_in_havana_in_spring_and_comes_twice_in_autumn() -> None:
    assert local_ticks("0 0 * * *", "America/Havana", "2025-03-08 12:00", "2025-03-10 12:00") == [
        "2025-03-09T01:00-04:00",
        "2025-03-10T00:00-04:00",
    ]
    assert local_ticks("0 0 * * *", "America/Havana", "2025-11-01 12:00", "2025-11-03 12:00") == [
        "2025-11-02T00:00-04:00",
        "2025-11-03T00:00-05:00",
    ]


def test_every_third_hour_in_chatham_does_not_hang() -> None:
    after, until = utc("2025-09-27 00:00"), utc("2025-09-28 00:00")
    table = timetable("59 */3 * * *", "Pacific/Chatham")
    # The gap from 02:45 to 03:45 swallows none of them; 03:59 just comes an hour sooner.
    assert list(table.between(after, until)) == ticks("59 */3 * * *", "Pacific/Chatham", after, until)
    spring = local_ticks("59 */3 * * *", "Pacific/Chatham", "2025-09-28 00:30", "2025-09-28 07:00")
    assert spring == ["2025-09-28T00:59+12:45", "2025-09-28T03:59+13:45", "2025-09-28T06:59+13:45"]


def test_the_gap_of_lord_howe_is_half_an_hour() -> None:
    assert local_ticks("15 2 * * *", "Australia/Lord_Howe", "2025-10-05 00:00", "2025-10-05 12:00") == [
        "2025-10-05T02:30+11:00"
    ]
    assert local_ticks("45 1 * * *", "Australia/Lord_Howe", "2025-04-06 00:00", "2025-04-06 12:00") == [
        "2025-04-06T01:45+11:00"
    ]


def test_a_whole_day_that_samoa_skipped_ticks_once_at_its_end() -> None:
    assert local_ticks("0 0 30 12 *", "Pacific/Apia", "2011-12-29 00:00", "2012-01-02 00:00") == [
        "2011-12-31T00:00+14:00"
    ]
    assert local_ticks("0 */6 * * *", "Pacific/Apia", "2011-12-29 17:00", "2011-12-31 07:00") == [
        "2011-12-29T18:00-10:00",
        "2011-12-31T00:00+14:00",
        "2011-12-31T06:00+14:00",
    ]
    assert local_ticks("0 * 30 12 *", "Pacific/Apia", "2011-12-29 00:00", "2012-01-02 00:00") == []


def test_it_makes_no_difference_where_the_search_for_changes_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK", 1000)
    monkeypatch.setattr(module, "_block", lru_cache(module._block.__wrapped__))
    for change in (utc("2025-03-30 01:00"), utc("2025-10-26 01:00")):
        for expression in ("7/10 1-3 * * *", "*/20 1-3 * * *", "40 * * * *"):
            table = timetable(expression, "Europe/Paris")
            window = (change - timedelta(hours=3), change + timedelta(hours=3))
            expected = ticks(expression, "Europe/Paris", *window)
            assert list(table.between(*window)) == expected
            assert [table.latest(tick + timedelta(seconds=59)) for tick in expected] == expected
            assert table.count(*window) == len(expected)


def test_offsets_of_odd_seconds_long_ago_do_not_hurt() -> None:
    for zone in ("Europe/Amsterdam", "Africa/Monrovia", "America/Juneau", "Asia/Manila", "Asia/Kathmandu"):
        table = timetable("0 12 * * *", zone)
        for year in (3, 1700, 1844, 1867, 1900, 1919, 9000):
            tick = table.next(datetime(year, 6, 1, tzinfo=UTC))
            assert table.latest(tick) == tick
            assert tick.astimezone(zone_named(zone)).strftime("%H:%M:%S") == "12:00:00"


# -- the rest of the contract --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            ".",
            "Europe",
            "Europe/",
            "Europe/Pariss",
            "europe/paris",
            "../etc/passwd",
            "/etc/passwd",
            "UTC\0",
        ),
        *(
            "Europe/../UTC",
            "__init__.py",
            "zones",
            "tzdata.zi",
            "a" * 5000,
            "Z\u00fcrich",
            " UTC",
            "localtime",
        ),
    ],
)
def test_a_name_that_is_no_zone_is_refused(name: str) -> None:
    with pytest.raises(UnknownTimezone):
        timetable("* * * * *", name)


def test_no_zone_is_utc() -> None:
    assert timetable("0 0 * * *").timezone == "UTC"
    assert timetable("0 0 * * *", "Etc/UTC").next(utc("2025-01-01")) == utc("2025-01-02")


def test_a_timetable_is_made_once_and_says_what_it_is() -> None:
    table = timetable("0 0 * * *", "Asia/Tokyo")
    assert timetable("0 0 * * *", "Asia/Tokyo") is table
    assert (table.expression, table.timezone) == ("0 0 * * *", "Asia/Tokyo")
    assert repr(table) == "timetable('0 0 * * *', 'Asia/Tokyo')"


def test_a_datetime_without_a_zone_is_refused() -> None:
    naive = datetime(2025, 1, 1)
    table = timetable("* * * * *")
    for ask in (
        lambda: table.next(naive),
        lambda: table.latest(naive),
        lambda: table.count(naive, utc("2025-01-01")),
        lambda: table.between(utc("2025-01-01"), naive),
    ):
        with pytest.raises(BadInput, match="no time zone"):
            ask()


def test_the_ends_of_the_calendar_are_refused_not_crashed_into() -> None:
    for zone in ("UTC", "Europe/Paris", "Pacific/Apia"):
        table = timetable("0 0 29 2 *", zone)
        for outside in (datetime.min, datetime.max):
            with pytest.raises(BadInput, match="outside"):
                table.next(outside.replace(tzinfo=UTC))
        with pytest.raises(BadInput, match="no tick left"):
            table.next(utc("9996-12-31 23:59:59"))
        assert table.latest(utc("0003-01-02")) is None
        # A Monday 1 January may be years away, close to the end.
        assert timetable("0 0 */31 1 1", zone).latest(utc("9996-12-31")) is not None


def test_any_aware_datetime_is_taken_and_utc_is_given() -> None:
    paris = datetime(2025, 6, 1, 12, 30, tzinfo=zone_named("Europe/Paris"))
    tick = timetable("0 12 * * *", "America/New_York").next(paris)
    assert (tick, tick.tzinfo) == (utc("2025-06-01 16:00"), UTC)


def test_microseconds_are_neither_rounded_up_nor_lost() -> None:
    table, tick, instant = timetable("0 0 * * *"), utc("2025-01-02"), timedelta(microseconds=1)
    assert table.next(tick - instant) == tick
    assert table.next(tick) == table.next(tick + instant) == utc("2025-01-03")
    assert table.latest(tick - instant) == utc("2025-01-01")
    assert table.latest(tick) == table.latest(tick + instant) == tick
    assert table.count(tick - instant, tick) == 1
    assert table.count(tick, tick + instant) == 0


def test_an_empty_or_backward_window_has_no_ticks() -> None:
    table = timetable("* * * * * *", "Europe/Paris")
    late, early = utc("2025-01-02"), utc("2025-01-01")
    assert table.count(late, early) == table.count(late, late) == 0
    assert list(table.between(late, early)) == []


def test_counting_decades_of_seconds_needs_no_walk() -> None:
    start, end = utc("1990-01-01"), utc("2030-01-01")
    assert timetable("* * * * * *").count(start, end) == (end - start).total_seconds()
    assert timetable("* * * * * *", "Europe/Paris").count(start, end) == (end - start).total_seconds()
    assert timetable("every 1s").count(start, end) == (end - start).total_seconds()


def test_between_is_lazy() -> None:
    seconds = timetable("* * * * * *", "Europe/Paris").between(utc("2025-01-01"), utc("9000-01-01"))
    assert next(seconds) == utc("2025-01-01 00:00:01")


def test_the_version_of_the_zone_rules_is_known() -> None:
    assert TZDATA_VERSION[:2] == "20"


def test_without_the_tzdata_package_the_systems_zones_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TZDATA_VERSION", "")
    monkeypatch.setattr(module, "_names", module._names.__wrapped__)
    paris = module._zone.__wrapped__("Europe/Paris")
    assert paris.segment(int(utc("2025-07-01").timestamp())).offset == 7200
    with pytest.raises(UnknownTimezone):
        module._zone.__wrapped__("Europe")
