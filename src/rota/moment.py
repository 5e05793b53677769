"""Moments as people write and read them: `2027-03-28 02:30` on a zone's clock, `now`, `-3d`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from rota.errors import BadExpression, BadInput
from rota.expression import read_interval
from rota.timetable import zone_rules

_FIRST, _END = datetime(1970, 1, 1, tzinfo=UTC), datetime(9997, 1, 1, tzinfo=UTC)
"""Between these is what every store keeps and gives back."""
_RELATIVE = re.compile(r"([+-])\s*(\d.*)")


def check_instant(what: str, instant: datetime) -> None:
    """`BadInput` for one without a zone, or that a store would not give back as it was."""
    if instant.tzinfo is None:
        raise BadInput(f"{what} {instant} has no time zone; use an aware datetime such as datetime.now(UTC)")
    if not _FIRST <= instant < _END:
        raise BadInput(f"{what} {instant} is outside the years {_FIRST.year} to {_END.year - 1}")


def read_moment(text: str, timezone: str | None, now: datetime) -> datetime:
    """An instant. What has no offset of its own is on the clock of `timezone` (None: UTC), there the first of two."""
    text = text.strip()
    if text.lower() == "now":
        return now
    try:
        if relative := _RELATIVE.fullmatch(text):
            seconds = timedelta(seconds=_seconds(relative[2], text))
            return now + seconds if relative[1] == "+" else now - seconds
        instant = _absolute(text, zone_rules(timezone))
    except OverflowError:
        instant = _FIRST - timedelta(days=1)
    if not _FIRST <= instant < _END:
        raise BadInput(f"{text!r} is outside the years {_FIRST.year} to {_END.year - 1}")
    return instant


def _absolute(text: str, zone: ZoneInfo) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(
            f"{text!r} is no time: write 2027-03-28, 2027-03-28T02:30, 2027-03-28T02:30+01:00, now, -3d or +90m"
        ) from None
    if moment.tzinfo is not None:
        return moment.astimezone(UTC)
    instant = moment.replace(tzinfo=zone).astimezone(UTC)
    if instant.astimezone(zone).replace(tzinfo=None) != moment:
        raise BadInput(f"{text!r} does not exist in {zone.key}, whose clocks leap over it; write it with an offset")
    return instant


def show_moment(moment: datetime, timezone: str | None) -> str:
    """As the zone's clock shows it, with the zone's abbreviation."""
    local = moment.astimezone(zone_rules(timezone))
    return f"{local:%Y-%m-%d %H:%M:%S}".removesuffix(":00") + f" {local:%Z}"


def read_duration(text: str) -> float:
    """The seconds of `90`, `90s` or `1h30m`."""
    return float(text) if text.strip().isdecimal() else float(_seconds(text, text))


def show_duration(seconds: int) -> str:
    """The shortest of what `read_duration` takes."""
    parts = []
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, length)
        parts += [f"{count}{unit}"] if count else []
    return "".join(parts) or "0s"


def _seconds(interval: str, text: str) -> int:
    try:
        seconds = read_interval(f"every {interval}")
    except BadExpression:
        raise BadInput(f"{text!r} is no duration: write days, hours, minutes, seconds, such as 90m or 1d12h") from None
    assert seconds is not None
    return seconds
