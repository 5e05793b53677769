"""Line: those who wait in this process for one lock. The first of them asks the store, the others stand behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from rota.contract.locks import LockHolder
from rota.service import Wake

_MOMENT, _LONGEST = 0.005, 0.25


class Line:
    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.wake = Wake()
        self.waiting = 0
        self.holders: tuple[LockHolder, ...] = ()
        """Who was in the way at the last look."""


class Lines:
    """All lines of this process, and how they are woken. Belongs to one event loop."""

    def __init__(self, news: Callable[[], None]) -> None:
        self._lines: dict[str, Line] = {}
        self._news, self._unheard = news, False
        self._loop = asyncio.get_running_loop()
        self._echo: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._lines)

    def enter(self, name: str) -> Line:
        line = self._lines.setdefault(name, Line())
        line.waiting += 1
        return line

    def leave(self, name: str) -> None:
        self._lines[name].waiting -= 1
        if not self._lines[name].waiting:
            del self._lines[name]

    def wake(self, name: str | None = None) -> None:
        """This lock was let go here; None: some lock was."""
        for line in self._lines.values() if name is None else filter(None, [self._lines.get(name)]):
            line.wake.set_here()

    def heard(self) -> None:
        """Something was let go, or taken, somewhere. From any thread."""
        with suppress(RuntimeError):  # the loop has ended, and with it whoever could have waited
            self._loop.call_soon_threadsafe(self._listen)

    def _listen(self) -> None:
        self._unheard = True
        if self._echo is None:
            self._tell()

    def _tell(self) -> None:
        """At once, but not all the time where many wait and many locks come and go."""
        self._echo = None
        if self._unheard:
            self._unheard = False
            self.wake()
            self._news()
            self._echo = self._loop.call_later(min(_MOMENT * (1 + len(self._lines)), _LONGEST), self._tell)

    def close(self) -> None:
        self.wake()
        if self._echo is not None:
            self._echo.cancel()
