"""Timetables against two independent judges: a brute-force enumeration, and cronsim on naive times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice

from cronsim import CronSim
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from rota.errors import BadExpression
from rota.timetable import Timetable, timetable
from tests.enumeration import ticks, zone_named

SECOND, INSTANT = timedelta(seconds=1), timedelta(microseconds=1)

ZONES = """
    UTC Etc/GMT+12 Etc/GMT-14 Europe/Paris Europe/London Europe/Dublin Europe/Lisbon Europe/Moscow
    Europe/Istanbul Europe/Volgograd Europe/Chisinau Atlantic/Azores America/New_York America/Los_Angeles
    America/St_Johns America/Caracas America/Havana America/Santiago America/Asuncion America/Sao_Paulo
    America/Nuuk America/Scoresbysund America/Argentina/San_Luis America/Godthab America/Boa_Vista
    Antarctica/Casey Antarctica/Troll Antarctica/Vostok Africa/Casablanca Africa/El_Aaiun Africa/Cairo
    Africa/Monrovia Africa/Windhoek Africa/Juba Asia/Beirut Asia/Gaza Asia/Tehran Asia/Kathmandu
    Asia/Kolkata Asia/Amman Asia/Damascus Asia/Pyongyang Asia/Jerusalem Asia/Dhaka Australia/Lord_Howe
    Australia/Adelaide Australia/Eucla Pacific/Chatham Pacific/Apia Pacific/Kwajalein Pacific/Kiritimati
    Pacific/Fakaofo Pacific/Easter Pacific/Norfolk Pacific/Tongatapu Pacific/Fiji
""".split()  # noqa: SIM905


def moment(second: int) -> datetime:
    return datetime.fromtimestamp(second, UTC)


@cache
def changing_days(zone: str) -> list[int]:
    """The days, as seconds since the epoch, in which this zone's offset changed from 1970 to 2037."""
    rules = zone_named(zone)
    starts = range(0, int(datetime(2038, 1, 1, tzinfo=UTC).timestamp()), 86400)
    offsets = [moment(start).astimezone(rules).utcoffset() for start in starts]
    return [start for start, one, other in zip(starts, offsets, offsets[1:], strict=False) if one != other]


# -- generated expressions -----------------------------------------------------------------------------------


@st.composite
def items(draw: st.DrawFn, low: int, high: int, wrap: bool = False) -> str:
    number = st.integers(low, high)
    step = draw(st.integers(1, 7 if wrap else min(high - low + 1, 30)))
    one, other = draw(number), draw(number)
    first, last = (one, other) if wrap else (min(one, other), max(one, other))
    shapes = [
        "*",
        f"*/{step}",
        str(one),
        str(other),
        f"{first}-{last}",
        f"{first}-{last}/{step}",
        f"{one}/{step}",
    ]
    return draw(st.sampled_from(shapes))


def fields(low: int, high: int) -> st.SearchStrategy[str]:
    return st.lists(items(low, high), min_size=1, max_size=3).map(",".join)


MINUTES = st.one_of(st.sampled_from(["*", "0", "30", "*/15", "59", "0/20"]), fields(0, 59))
HOURS = st.one_of(st.sampled_from(["*", "0", "1-3", "2", "*/3", "23", "0-4"]), fields(0, 23))
SPECIAL_DAYS = st.sampled_from(["L", "LW", "?", "1W", "15W", "30W", "31W", "1,L", "13", "31", "*/2", "29-31"])
DAYS = st.one_of(st.just("*"), st.just("*"), SPECIAL_DAYS, fields(1, 31))
MONTHS = st.one_of(st.just("*"), st.just("*"), st.sampled_from(["MAR-NOV", "oct", "DEC,JAN"]), fields(1, 12))
SPECIAL_WEEKDAYS = st.sampled_from(["SUN", "7", "MON-FRI", "FRI-MON", "SUN#1", "7L", "SATL", "5#5", "?", "sat,sun"])
WEEKDAYS = st.one_of(st.just("*"), st.just("*"), SPECIAL_WEEKDAYS, items(0, 7, wrap=True))


@st.composite
def crons(draw: st.DrawFn, *seconds: st.SearchStrategy[str]) -> str:
    return " ".join(draw(part) for part in (*seconds, MINUTES, HOURS, DAYS, MONTHS, WEEKDAYS))


@st.composite
def starts(draw: st.DrawFn, zone: str, within: int) -> int:
    """An instant in 1970-2037, most often not long before the offset changes."""
    days = changing_days(zone)
    if days and draw(st.integers(0, 4)) > 0:
        day: int = draw(st.sampled_from(days))
        return day + draw(st.integers(-within, 86400))
    return draw(st.integers(0, int(datetime(2037, 12, 1, tzinfo=UTC).timestamp())))


def accepted(expression: str, zone: str) -> Timetable:
    try:
        return timetable(expression, zone)
    except BadExpression as refused:
        assume("never fire" not in refused.reason)
        raise


def assert_agrees(expression: str, zone: str, after: datetime, until: datetime) -> None:
    table, expected = accepted(expression, zone), ticks(expression, zone, after, until)
    assert list(table.between(after, until)) == expected
    assert table.count(after, until) == len(expected)
    newest = table.latest(until)
    if not expected:
        assert table.next(after) > until
        assert newest is None or newest <= after
        return
    assert table.next(after) == expected[0]
    assert newest == expected[-1]
    for tick in expected[:: len(expected) // 20 + 1]:
        assert table.next(tick - INSTANT) == table.latest(tick) == table.latest(tick + INSTANT) == tick
        assert table.count(tick - INSTANT, tick) == 1


# -- against the enumeration ---------------------------------------------------------------------------------


@settings(deadline=None, max_examples=250)
@given(st.data(), crons(), st.sampled_from(ZONES), st.integers(1, 40))
def test_minutes_agree_with_the_enumeration(data: st.DataObject, expression: str, zone: str, hours: int) -> None:
    after = moment(data.draw(starts(zone, 86400))) + data.draw(st.sampled_from([0, 1, 999_999])) * INSTANT
    assert_agrees(expression, zone, after, after + timedelta(hours=hours))


@settings(deadline=None, max_examples=80)
@given(st.data(), crons(st.one_of(st.just("*"), fields(0, 59))), st.sampled_from(ZONES))
def test_seconds_agree_with_the_enumeration(data: st.DataObject, expression: str, zone: str) -> None:
    after = moment(data.draw(starts(zone, 3600)))
    assert_agrees(expression, zone, after, after + timedelta(minutes=40))


def test_every_zone_agrees_around_each_of_its_latest_changes() -> None:
    for zone in ZONES:
        for day in changing_days(zone)[-2:]:
            after, until = moment(day - 3600), moment(day + 86400 + 3600)
            for expression in ("30 * * * *", "17 */2 * * *", "*/20 0-3 * * *"):
                assert_agrees(expression, zone, after, until)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**31), st.integers(1, 4000), st.integers(1, 9000))
def test_intervals_agree_with_the_enumeration(start: int, interval: int, window: int) -> None:
    assert_agrees(f"every {interval}s", "Europe/Paris", moment(start), moment(start + window))


# -- over years, where the enumeration is too slow -----------------------------------------------------------


@settings(deadline=None, max_examples=300)
@given(st.data(), crons(), st.sampled_from(ZONES))
@example(None, "0 0 29 2 */7", "Pacific/Apia")
@example(None, "0 0 30 12 *", "Pacific/Apia")
def test_next_and_latest_leap_over_nothing_that_count_sees(
    data: st.DataObject | None, expression: str, zone: str
) -> None:
    table = accepted(expression, zone)
    now = moment(data.draw(starts(zone, 86400 * 9)) if data else 1_300_000_000) + INSTANT
    tick, previous = table.next(now), table.latest(now)
    assert tick > now
    assert (table.count(now, tick - SECOND), table.count(now, tick)) == (0, 1)
    assert table.next(tick - INSTANT) == table.next(now) == tick
    assert table.latest(tick) == tick
    assert table.latest(tick - INSTANT) == previous
    if previous is not None:
        assert previous <= now
        assert (table.count(previous, now), table.count(previous - SECOND, now)) == (0, 1)


@settings(deadline=None, max_examples=60)
@given(st.data(), crons(), st.sampled_from(ZONES), st.integers(0, 20 * 366))
def test_counts_add_up(data: st.DataObject, expression: str, zone: str, days: int) -> None:
    table, start = accepted(expression, zone), moment(data.draw(starts(zone, 86400)))
    end = start + timedelta(days=days)
    middle = start + data.draw(st.integers(0, days * 86400)) * SECOND
    assert table.count(start, end) == table.count(start, middle) + table.count(middle, end)
    walked = list(islice(table.between(start, end), 200))
    assert table.count(start, walked[-1] if walked else end) == len(walked)


# -- against cronsim, on naive times -------------------------------------------------------------------------

KNOWN_TO_CRONSIM = st.tuples(
    fields(0, 59),
    fields(0, 23),
    st.one_of(st.just("*"), st.sampled_from(["L", "LW", "31", "*/2", "1,L"]), fields(1, 31)),
    st.one_of(st.just("*"), fields(1, 12)),
    st.sampled_from(["*", "*/2", "0", "7", "MON-FRI", "5-7", "SUN,TUE", "1#2", "7#1", "5L", "0L", "1-5/2"]),
).map(" ".join)


@settings(deadline=None, max_examples=200)
@given(KNOWN_TO_CRONSIM, st.datetimes(datetime(1970, 1, 1), datetime(2037, 1, 1)))
@example("*/5 * 31 * 1", datetime(2025, 1, 30))
@example("0 0 29 2 *", datetime(2096, 3, 1))
def test_without_dst_cronsim_agrees(expression: str, after: datetime) -> None:
    # cronsim takes the step of a one-value range as `a/n`.
    assume(not any(first == last for first, last in ranges_with_step(expression)))
    table, moment = accepted(expression, "UTC"), after.replace(tzinfo=UTC)
    for expected in islice(CronSim(expression, after), 10):
        moment = table.next(moment)
        assert moment == expected.replace(tzinfo=UTC)


def ranges_with_step(expression: str) -> list[list[str]]:
    items = expression.replace(" ", ",").split(",")
    return [item.split("/")[0].split("-") for item in items if "/" in item and "-" in item]
