"""What a SQLite file and its folder are like, seen without creating anything."""

from __future__ import annotations

import os
import shutil

import apsw

from rota.contract.findings import Finding, ok, problem, warning
from rota.errors import RotaError
from rota.stores.sqlite.base import SQLiteBase
from rota.stores.sqlite.connection import check_place, refuse_old
from rota.stores.sqlite.session import QUERIES

_ROOM = 100_000_000
_FAR = 1.0


class SQLiteDiagnosis(SQLiteBase):
    async def diagnose(self) -> list[Finding]:
        found = [_library(), *_place(self.path)]
        if all(finding.level != "problem" for finding in found):
            found += _file(self.path)
        return found


def _library() -> Finding:
    version = apsw.sqlite_lib_version()
    try:
        refuse_old(version)
    except RotaError as error:
        return problem("version", str(error), "pip install --upgrade apsw")
    return ok("version", f"SQLite {version}")


def _place(path: str) -> list[Finding]:
    folder = os.path.dirname(path)
    try:
        check_place(path)
    except RotaError as error:
        return [problem("place", str(error), "change ROTA_URL")]
    found = [ok("place", f"{folder} is on a local disk")]
    if not os.access(folder, os.W_OK | os.X_OK):
        said = f"this user may not write the folder {folder}"
        found.append(problem("rights", said, "give it the right: SQLite keeps its log, rota its locks beside the file"))
    elif os.path.exists(path) and not os.access(path, os.R_OK | os.W_OK):
        found.append(problem("rights", f"this user may not write {path}", "give it the right"))
    else:
        found.append(ok("rights", "this user may write the file and its folder"))
    free = shutil.disk_usage(folder).free
    said = f"{free / 1e9:.1f} GB free"
    found.append(
        ok("room", said) if free >= _ROOM else warning("room", said, "make room: a full disk stops everything")
    )
    return found


def _file(path: str) -> list[Finding]:
    if not os.path.exists(path):
        return [ok("reachable", "there is no file yet; it is made at the first use")]
    try:
        connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.set_busy_timeout(2000)
            return _look(connection)
        finally:
            connection.close()
    except apsw.Error as error:
        said = f"{path} cannot be read: {error}"
        return [problem("reachable", said, "name another file, or restore this one from a backup")]


def _look(connection: apsw.Connection) -> list[Finding]:
    [(mode,)] = connection.execute(QUERIES["diagnose.mode"])
    found = [ok("reachable", "the file is a database")]
    said = "the write-ahead log is on" if mode == "wal" else f"the journal is {mode}; rota turns the write-ahead log on"
    found.append(ok("journal", said))
    try:
        [(moved,)] = connection.execute(QUERIES["diagnose.moved"])
    except apsw.SQLError:
        return found  # no tables yet
    if abs(moved) > _FAR:
        found.append(warning("clock", f"rota's clock is {moved:+.0f} s off", "was a test's clock left moved?"))
    return found
