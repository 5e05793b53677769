"""Connections to a SQLite file: how they are made, and how their errors become rota's, at this one boundary.

A process must reach the file through one copy of SQLite only, and that is apsw's: the locks of a file hold between
processes, and whatever else in this process opens and closes the file takes ours away.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable
from pathlib import Path

import apsw

from rota.errors import BadInput, Misconfigured, RotaError, SchemaMismatch, StoreUnavailable, StoreUnfit
from rota.stores.sqlite.copies import refuse_other_copy

OLDEST = (3, 51, 3)
PATIENCE = 5.0
"""Seconds that a writer waits for another one before it gives up."""

_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "ceph", "fuse.ceph", "glusterfs", "fuse.glusterfs",
     "lustre", "afs"}
)  # fmt: skip
# FULL: a commit that was answered survives the loss of power.
_PRAGMAS = """
pragma synchronous = full;
pragma foreign_keys = on;
pragma recursive_triggers = off;
pragma temp_store = memory;
pragma cache_size = -8000;
pragma journal_size_limit = 67108864
"""


def database_path(url: str) -> str:
    """The file of `sqlite:///relative.db` or `sqlite:////absolute/path.db`, made absolute."""
    name = url.removeprefix("sqlite:///")
    if not name or name.endswith("/"):
        raise Misconfigured(f"url {url!r} names no file: write sqlite:///rota.db or sqlite:////var/lib/rota.db")
    if name.startswith(":memory:"):
        raise Misconfigured("sqlite in memory cannot be shared by threads and processes: name a file")
    return os.path.abspath(name)


def refuse_old(version: str) -> None:
    """WAL used by several processes can be corrupted before 3.51.3."""
    if tuple(int(part) for part in version.split(".")[:3]) < OLDEST:
        raise StoreUnavailable(
            f"SQLite {version} can damage a file that several processes write: rota needs "
            f"{'.'.join(map(str, OLDEST))} or later; upgrade apsw, which brings its own"
        )


def network_filesystem(mountinfo: str, directory: str) -> str | None:
    """The type of the network file system that the directory is on, going by /proc/self/mountinfo."""
    best, kind = "", ""
    for line in mountinfo.splitlines():
        head, _, tail = line.partition(" - ")
        fields = head.split()
        if len(fields) < 5 or not tail:
            continue
        mount = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
        inside = directory == mount or directory.startswith(mount.rstrip("/") + "/")
        # Of two mounts on one place the later one hides the earlier.
        if inside and len(mount) >= len(best):
            best, kind = mount, tail.split()[0]
    return kind if kind in _NETWORK else None


def check_place(path: str) -> None:
    directory = os.path.dirname(path)
    if not os.path.isdir(directory):
        raise StoreUnfit(f"there is no directory {directory}: create it, or change the url")
    if os.path.isdir(path):
        raise StoreUnfit(f"{path} is a directory: name a file in it")
    try:
        mountinfo = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return
    if kind := network_filesystem(mountinfo, os.path.realpath(directory)):
        raise StoreUnfit(
            f"{path} is on a network file system ({kind}), where SQLite's locks do not hold: "
            "put the file on a local disk, or use Postgres"
        )


def connect(path: str, patience: float = PATIENCE) -> apsw.Connection:
    """A connection for one thread, on a file that is fit for it."""
    refuse_old(apsw.sqlite_lib_version())
    with translated(path):
        check_place(path)
        refuse_other_copy(path)
        connection = apsw.Connection(path, statementcachesize=200)
        try:
            if connection.readonly("main"):
                raise StoreUnavailable(f"{path} is read-only for this user: make the file writable")
            connection.set_busy_handler(_wait(patience))
            _use_wal(connection, path, patience)
            connection.execute(_PRAGMAS)
        except BaseException:
            connection.close()
            raise
        return connection


def _wait(patience: float) -> Callable[[int], bool]:
    """Asks again every few milliseconds. SQLite's own handler sleeps up to 100, and starves among eager writers."""
    deadline = 0.0

    def wait(tries: int) -> bool:
        nonlocal deadline
        if tries == 0:
            deadline = time.monotonic() + patience
        if time.monotonic() >= deadline:
            return False
        time.sleep(random.uniform(0.0005, min(0.001 * (tries + 1), 0.008)))
        return True

    return wait


def _use_wal(connection: apsw.Connection, path: str, patience: float) -> None:
    if connection.pragma("journal_mode") == "wal":
        return
    deadline = time.monotonic() + patience
    while True:
        try:
            mode = connection.pragma("journal_mode", "wal")
            break
        except apsw.BusyError:
            # Two that create the file at once: SQLite does not call the busy handler for this.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    if mode != "wal":
        raise StoreUnavailable(f"{path} cannot have a write-ahead log ({mode}): put it on a local disk")


class translated:
    """Turns the driver's errors into rota's, with the way out in the sentence."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None or isinstance(error, RotaError):
            return
        if isinstance(error, apsw.ConstraintError | apsw.MismatchError):
            raise BadInput(f"nothing was changed: {error}") from error
        if isinstance(error, apsw.SQLError):
            _explain(self._path, error)
        if isinstance(error, apsw.Error | OSError):
            kind_of = StoreUnfit if isinstance(error, apsw.NotADBError) else StoreUnavailable
            raise kind_of(f"{self._path} {_trouble(self._path, error)}") from error


def _explain(path: str, error: apsw.SQLError) -> None:
    if "no such table" in str(error) or "no such column" in str(error):
        raise SchemaMismatch(f"{path} lacks rota's tables ({error}): run `rota migrate`") from error
    if "already exists" in str(error):
        raise SchemaMismatch(f"{path} has tables of somebody else ({error}): give rota a file of its own") from error


def _trouble(path: str, error: Exception) -> str:
    directory = os.path.dirname(path)
    match error:
        case apsw.BusyError() | apsw.LockedError():
            return "is busy: another process holds a write transaction; end it, or make it shorter"
        case apsw.ReadOnlyError() | apsw.PermissionsError() | apsw.AuthError() | PermissionError():
            return f"cannot be written: give this user the right to write the file and {directory}"
        case apsw.CantOpenError():
            return f"cannot be opened: give this user the right to write the file and {directory}"
        case apsw.NotADBError():
            return "is not a SQLite database: name another file, or move this one away"
        case apsw.CorruptError():
            return f"is damaged ({error}): restore it from a backup"
        case apsw.FullError():
            return "cannot grow: the disk is full; make room"
    return f"does not answer: {type(error).__name__}: {error}"
