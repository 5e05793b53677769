"""Times as SQLite keeps them: UTC text of one fixed width, `YYYY-MM-DD HH:MM:SS.ffffff`, so that text sorts as time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache

from rota.errors import BadInput

_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
INFINITY = "9999-12-31 23:59:59.999999"


def to_text(moment: datetime) -> str:
    """An aware datetime as it is stored."""
    if moment.tzinfo is None:
        raise BadInput(f"{moment.isoformat()} has no time zone: give it one, such as datetime.UTC")
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")


@lru_cache(maxsize=1000)
def from_text(text: str) -> datetime:
    """A stored time as an aware datetime; also what somebody typed by hand, with a zone or without.

    Runs that were made together have the same times.
    """
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


@lru_cache(maxsize=1000)
def microseconds(text: str) -> int:
    """A stored time as microseconds since 1970."""
    return (from_text(text) - _EPOCH) // _MICROSECOND


def optional_text(moment: datetime | None) -> str | None:
    return None if moment is None else to_text(moment)


def optional_time(text: str | None) -> datetime | None:
    return None if text is None else from_text(text)


def shifted(text: str, seconds: float) -> str:
    """A stored time, so many seconds later."""
    try:
        return to_text(from_text(text) + timedelta(seconds=seconds))
    except (OverflowError, ValueError) as error:
        raise BadInput(f"{seconds} seconds from now is no time that can be stored") from error


def seconds_until(text: str | None, now: str) -> float | None:
    return None if text is None else (from_text(text) - from_text(now)).total_seconds()
