"""Two copies of SQLite in one process: apsw's, which is rota's, and the one behind Python's sqlite3 module.

The locks of a file hold between processes. Within one process a copy of SQLite keeps its own connections apart, but
knows nothing of another copy: each takes the other's locks for its own, and drops them when it closes the file.
Commits would be lost, silently. So a file has one copy at a time in each process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress

import apsw

from rota.errors import BadInput, Misconfigured

_PATIENCE = 1.0


def refuse_second_copy(path: str, kind: str) -> None:
    """Before a statement of somebody's `kind` of connection: this process must not have the file open through apsw."""
    if not _free(lambda: not _open_here(path)):
        raise BadInput(
            f"this process has {path} open through apsw, as replica, as client or by a connection of yours, and a "
            f"{kind} goes through a second copy of SQLite; two copies in one process do not see each other's locks: "
            "pass an apsw.Connection, or run the replica in another process"
        )


def refuse_other_copy(path: str) -> None:
    """Before the first connection of rota's: nothing else in this process may have the file open."""
    if not _free(lambda: _open_here(path) or not _descriptors(path)):
        raise Misconfigured(
            f"something else in this process has {path} open, such as a connection of sqlite3, SQLAlchemy or "
            "Django, and two copies of SQLite in one process do not see each other's locks: close it (an engine: "
            "dispose of it) before rota opens the file, or run the replica in a process of its own"
        )


def _free(ask: Callable[[], bool]) -> bool:
    """Threads of a replica that has just stopped close the file in a moment."""
    deadline = time.monotonic() + _PATIENCE
    while not ask():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _open_here(path: str) -> bool:
    return any(_same(connection, path) for connection in apsw.connections())


def _same(connection: apsw.Connection, path: str) -> bool:
    with suppress(OSError, apsw.Error):
        return os.path.samefile(connection.filename, path)
    return False


def _descriptors(path: str) -> int:
    """How many of this process's descriptors lead to the file; 0 also where that cannot be known."""
    found = 0
    try:
        wanted = os.stat(path)
        numbers = os.listdir("/dev/fd")
    except OSError:
        return 0
    for number in numbers:
        with suppress(OSError, ValueError):
            there = os.fstat(int(number))
            found += (there.st_dev, there.st_ino) == (wanted.st_dev, wanted.st_ino)
    return found
