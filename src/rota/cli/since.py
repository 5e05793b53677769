"""A moment in the past, as people type it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, time, timedelta

from rota.errors import BadInput

_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d|w)")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def parse_since(text: str, now: datetime) -> datetime:
    """`90s`, `30m`, `1h`, `2d`, `1w`, `today`, `yesterday`, `03:04`, `2026-01-02`, `2026-01-02T03:04`; UTC unless said.

    `now` is the store's.
    """
    word = text.strip().lower()
    midnight = datetime.combine(now.astimezone(UTC).date(), time(), UTC)
    if word in ("today", "yesterday"):
        return midnight - timedelta(days=word == "yesterday")
    try:
        if ago := _AGO.fullmatch(word):
            return now - timedelta(seconds=float(ago[1]) * _UNITS[ago[2]])
        if re.fullmatch(r"\d{1,2}:\d{2}(:\d{2})?", word):
            return datetime.combine(midnight.date(), time.fromisoformat(word.zfill(5)), UTC)
        moment = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError):
        raise BadInput(
            f"--since {text!r} is no time: say 30m, 1h, 2d, today, yesterday, 03:04, 2026-01-02 or 2026-01-02T03:04"
        ) from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
