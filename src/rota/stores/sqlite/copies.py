"""Two copies of SQLite in one process: apsw's, which is rota's, and the one behind Python's sqlite3 module.

The locks of a file hold between processes. Within one process a copy of SQLite keeps its own connections apart, but
knows nothing of another copy: each takes the other's locks for its own, and drops them when it closes the file.
Commits would be lost, silently. So a file has one copy at a time in each process.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

import apsw

from rota.errors import Misconfigured

_PATIENCE = 1.0


def open_here(path: str) -> bool:
    """Whether this process has the file open through apsw: a replica or a client of rota, or the caller itself."""
    return any(_same(connection, path) for connection in apsw.connections())


def refuse_other_copy(path: str) -> None:
    """Before the first connection of rota's: nothing else in this process may have the file open."""
    deadline = time.monotonic() + _PATIENCE
    while not open_here(path) and _descriptors(path):
        # What apsw is just closing is gone in a moment.
        if time.monotonic() > deadline:
            raise Misconfigured(
                f"something else in this process has {path} open, such as a connection of sqlite3, SQLAlchemy or "
                "Django, and two copies of SQLite in one process do not see each other's locks: close it (an engine: "
                "dispose of it) before rota opens the file, or run the replica in a process of its own"
            )
        time.sleep(0.01)


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
