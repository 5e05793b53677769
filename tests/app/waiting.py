"""Waiting for something that must come true, with a deadline that only a broken rota meets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tests.patience import PATIENCE

T = TypeVar("T")


async def until(ask: Callable[[], Awaitable[T | None]], seconds: float = PATIENCE) -> T:
    """The first true answer."""
    deadline = time.monotonic() + seconds
    while not (answer := await ask()):
        if time.monotonic() > deadline:
            raise AssertionError(f"it did not come true within {seconds} s")
        await asyncio.sleep(0.02)
    return answer
