"""The session locks of SQLite's replicas: one locked file per incarnation, freed by the kernel when the process dies.

The lock belongs to the open file, so a forked child would keep it alive: it closes its copy at once.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress


class FileLock:
    """An exclusive lock on a file, held until released or dead."""

    def __init__(self, path: str) -> None:
        self.path, self._file = path, -1

    def take(self) -> bool:
        """False when somebody else has it."""
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Removed between open and lock: what we locked has no name, and nobody would find it.
            if os.fstat(file).st_nlink == 0:
                raise BlockingIOError
        except BlockingIOError:
            os.close(file)
            return False
        except BaseException:
            os.close(file)
            raise
        self._file, _held[file] = file, self
        return True

    def release(self) -> None:
        """Also for copies that other processes may have of the open file."""
        file, self._file = self._file, -1
        if file >= 0:
            del _held[file]
            fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)

    def drop_copy(self) -> None:
        """In a forked child: close without unlocking, the lock is the parent's."""
        file, self._file = self._file, -1
        if file >= 0:
            del _held[file]
            os.close(file)


# By their file numbers. Copied before it is walked: other threads take and release.
_held: dict[int, FileLock] = {}


def _drop_copies() -> None:
    for lock in list(_held.values()):
        lock.drop_copy()


os.register_at_fork(after_in_child=_drop_copies)


def release_own(path: str) -> None:
    """What this very process still holds of it."""
    for lock in list(_held.values()):
        if lock.path == path:
            lock.release()


def is_free(path: str) -> bool:
    """Whether nobody holds the lock, asked without taking it from anybody. A missing file is free."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except PermissionError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(file, fcntl.LOCK_UN)
    except BlockingIOError:
        return False
    finally:
        os.close(file)
    return True


def lock_path(database: str, replica_id: int) -> str:
    return os.path.join(f"{database}-replicas", f"{replica_id}.lock")


def remove(database: str, replicas: tuple[int, ...]) -> None:
    """Tidy up after incarnations whose rows are gone."""
    for replica_id in replicas:
        with suppress(OSError):
            os.unlink(lock_path(database, replica_id))
