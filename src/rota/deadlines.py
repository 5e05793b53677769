"""Deadlines: one sweeper for those of all attempts; a timer for each would cost more than most runs do."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable

from rota.attempt import Attempt
from rota.service import Wake

_FEW = 100


class Deadlines:
    """On the loop of the handlers."""

    def __init__(self, passed: Callable[[Attempt], None]) -> None:
        self._passed = passed
        self._heap: list[tuple[float, int, Attempt]] = []
        self._most = _FEW
        self._sooner = Wake()

    def set(self, attempt: Attempt, seconds: float) -> None:
        """`passed` is told when the attempt is not settled within so many seconds."""
        if attempt.settled:
            return
        if len(self._heap) > self._most:
            self._heap = [entry for entry in self._heap if not entry[2].settled]
            heapq.heapify(self._heap)
            self._most = 2 * len(self._heap) + _FEW
        heapq.heappush(self._heap, (time.monotonic() + seconds, attempt.claim.id, attempt))
        if self._heap[0][2] is attempt:
            self._sooner.set_here()

    async def run(self) -> None:
        while True:
            now = time.monotonic()
            while self._heap and self._heap[0][0] <= now:
                attempt = heapq.heappop(self._heap)[2]
                if not attempt.settled:
                    self._passed(attempt)
            await self._sooner.wait(self._heap[0][0] - now if self._heap else None)
