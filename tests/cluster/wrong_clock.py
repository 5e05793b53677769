"""A process whose wall clock is wrong: everything in Python that tells the time of day, moved by some hours."""

from __future__ import annotations

import datetime
import time
from typing import Any

_real = datetime.datetime


class _Kind(type):
    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, _real)


def set_ahead(seconds: float) -> None:
    """Before anything imports `datetime.datetime`."""
    offset, real_time, real_time_ns = datetime.timedelta(seconds=seconds), time.time, time.time_ns

    class Wrong(_real, metaclass=_Kind):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return _real.now(tz) + offset

        @classmethod
        def utcnow(cls) -> Any:
            return _real.now(datetime.UTC).replace(tzinfo=None) + offset

        @classmethod
        def today(cls) -> Any:
            return _real.now() + offset

    time.time = lambda: real_time() + seconds
    time.time_ns = lambda: real_time_ns() + int(seconds * 1e9)
    datetime.datetime = Wrong  # type: ignore[misc]
