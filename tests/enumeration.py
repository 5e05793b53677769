"""The ticks of an expression by brute force: the oracle that rota is measured against. It never imports rota.

It walks every instant of the window, asks the zone for the wall time, and asks each field whether it matches.
Then it applies the two DST rules, word for word. Slow and plain on purpose: for windows of an hour at second
resolution, or of some days at minute resolution.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from importlib.resources import files
from zoneinfo import ZoneInfo

MONTHS = {
    "JAN": 1,
    "FEB": 2,
    "MAR": 3,
    "APR": 4,
    "MAY": 5,
    "JUN": 6,
    "JUL": 7,
    "AUG": 8,
    "SEP": 9,
    "OCT": 10,
    "NOV": 11,
    "DEC": 12,
}
WEEKDAYS = {"SUN": 0, "MON": 1, "TUE": 2, "WED": 3, "THU": 4, "FRI": 5, "SAT": 6}
SHORTHAND = {
    "@YEARLY": "0 0 1 1 *",
    "@ANNUALLY": "0 0 1 1 *",
    "@MONTHLY": "0 0 1 * *",
    "@WEEKLY": "0 0 * * SUN",
    "@DAILY": "0 0 * * *",
    "@MIDNIGHT": "0 0 * * *",
    "@HOURLY": "0 * * * *",
}
ONE_DAY = timedelta(days=1)


def ticks(expression: str, timezone: str | None, after: datetime, until: datetime) -> list[datetime]:
    """Every tick in (after, until], in UTC."""
    start, end = int(after.timestamp() // 1) + 1, int(until.timestamp() // 1)
    text = expression.strip().upper()
    if text.startswith("EVERY"):
        interval = seconds_of(text)
        return [moment(second) for second in range(start, end + 1) if second % interval == 0]
    fields = SHORTHAND.get(text, text).split()
    if len(fields) == 5:
        fields = ["0", *fields]
    zone = zone_named(timezone or "UTC")
    step = step_of(fields, zone, start, end)
    first = -(-start // step) * step
    return [moment(second) for second in range(first, end + 1, step) if is_tick(fields, zone, second, step)]


def is_tick(fields: list[str], zone: ZoneInfo, second: int, step: int) -> bool:
    local = moment(second).astimezone(zone)
    if not hours_are_restricted(fields[2]):
        return wall_matches(fields, local)
    before = moment(second - step).astimezone(zone)
    gap = local.replace(tzinfo=None) - before.replace(tzinfo=None) - timedelta(seconds=step)
    if gap > timedelta(0):
        return any(wall_matches(fields, wall) for wall in walls_up_to(local, gap, step))
    if local.fold == 1 and not fields[1].startswith("*"):
        return False
    return wall_matches(fields, local)


@lru_cache
def hours_are_restricted(hours: str) -> bool:
    return not all(matches(hours, hour, 0, 23) for hour in range(24))


def walls_up_to(local: datetime, gap: timedelta, step: int) -> list[datetime]:
    """The wall times that a gap swallowed, and the one at its end."""
    end = local.replace(tzinfo=None)
    return [end - timedelta(seconds=back) for back in range(0, int(gap.total_seconds()) + 1, step)]


def wall_matches(fields: list[str], wall: datetime) -> bool:
    second, minute, hour, day, month, weekday = fields
    return (
        matches(second, wall.second, 0, 59)
        and matches(minute, wall.minute, 0, 59)
        and matches(hour, wall.hour, 0, 23)
        and matches(month, wall.month, 1, 12)
        and day_matches(day, weekday, wall.date())
    )


@lru_cache(maxsize=100_000)
def day_matches(day: str, weekday: str, on: date) -> bool:
    by_day = any(month_day_matches(item, on) for item in day.replace("?", "*").split(","))
    by_weekday = any(weekday_matches(item, on) for item in weekday.replace("?", "*").split(","))
    if day[0] in "*?" or weekday[0] in "*?":
        return by_day and by_weekday
    return by_day or by_weekday


def month_day_matches(item: str, on: date) -> bool:
    month = [on.replace(day=1) + n * ONE_DAY for n in range(31)]
    month = [each for each in month if each.month == on.month]
    working = [each for each in month if each.isoweekday() <= 5]
    if item == "L":
        return on == month[-1]
    if item == "LW":
        return on == working[-1]
    if item.endswith("W"):
        wanted = int(item[:-1])
        return wanted <= len(month) and on == min(working, key=lambda each: abs(each.day - wanted))
    return matches(item, on.day, 1, 31)


def weekday_matches(item: str, on: date) -> bool:
    today = on.isoweekday() % 7
    if "#" in item:
        name, nth = item.split("#")
        return number(name) % 7 == today and (on.day + 6) // 7 == int(nth)
    if item.endswith("L"):
        return number(item[:-1]) % 7 == today and (on + 7 * ONE_DAY).month != on.month
    return matches(item, today, 0, 6) or matches(item, today + 7, 0, 6)


@lru_cache(maxsize=100_000)
def matches(text: str, value: int, low: int, high: int) -> bool:
    for item in text.split(","):
        body, _, step = item.partition("/")
        if body == "*":
            first, last = low, high
        elif "-" in body:
            first, last = (number(end) for end in body.split("-"))
            if last < first:
                last += 7
        else:
            first = 0 if step and number(body) > high else number(body)  # Sunday's 7 in 7/2
            last = high if step else first
        if first <= value <= last and (value - first) % int(step or 1) == 0:
            return True
    return False


def number(text: str) -> int:
    return MONTHS[text] if text in MONTHS else WEEKDAYS[text] if text in WEEKDAYS else int(text)


def seconds_of(text: str) -> int:
    sizes = {"D": 86400, "H": 3600, "M": 60, "S": 1}
    return sum(int(amount) * sizes[unit] for amount, unit in re.findall(r"(\d+)\s*([DHMS])", text))


def step_of(fields: list[str], zone: ZoneInfo, start: int, end: int) -> int:
    """60 if the ticks are on whole minutes in UTC too, which historic offsets such as -0:44:30 are not."""
    offsets = [moment(second).astimezone(zone).utcoffset() for second in (start - 86400, end)]
    return 60 if fields[0] == "0" and not any(offset and offset.seconds % 60 for offset in offsets) else 1


def moment(second: int) -> datetime:
    return datetime.fromtimestamp(second, UTC)


@lru_cache
def zone_named(name: str) -> ZoneInfo:
    """From the tzdata package: the operating system may have other rules."""
    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as rules:
        return ZoneInfo.from_file(rules, key=name)
