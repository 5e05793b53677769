"""Notices that a file was written to. On Linux the kernel tells (inotify); elsewhere the caller asks time and again."""

from __future__ import annotations

import ctypes
import os
import select
import time
from contextlib import suppress
from typing import Self

_IN_MODIFY = 0x2
_ENOUGH = 65536


class Watch:
    """Belongs to the thread that waits."""

    def __init__(self, path: str) -> None:
        self._events, self._poll = _inotify(path), select.poll()
        if self._events is not None:
            self._poll.register(self._events, select.POLLIN)

    @property
    def told(self) -> bool:
        """Whether a wait ends when the file is written to; if not, it only passes the time."""
        return self._events is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._events is not None:
            os.close(self._events)

    def wait(self, seconds: float) -> bool:
        """Whether it was written to, within this time or before."""
        if self._events is None or seconds < 0.001:
            # The kernel counts in milliseconds.
            time.sleep(seconds)
            seconds = 0.0
        if self._events is not None and self._poll.poll(seconds * 1000):
            with suppress(BlockingIOError):
                return bool(os.read(self._events, _ENOUGH))
        return False


def _inotify(path: str) -> int | None:
    """A file that can be read when `path` was written to; None where there is no such thing, or no more of them."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "inotify_init1"):
        return None
    file: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if file < 0:
        return None
    if libc.inotify_add_watch(file, os.fsencode(path), _IN_MODIFY) < 0:
        os.close(file)
        return None
    return file
