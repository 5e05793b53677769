"""Where rota's tables are when a Django project does not say: by the database that it has.

On Postgres: in that database, in a schema of their own, so that a run can be part of the project's transactions. On
SQLite: in a file of their own beside the project's. Django opens its file with the interpreter's copy of SQLite, rota
brings one of its own, and two copies in one process do not see each other's locks: on one file, commits would be lost.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from rota.errors import Misconfigured

POSTGRES = ("django.db.backends.postgresql", "django.contrib.gis.db.backends.postgis")
SQLITE = ("django.db.backends.sqlite3", "django.contrib.gis.db.backends.spatialite")
_CARRIED = ("passfile", "sslcert", "sslcrl", "sslkey", "sslmode", "sslpassword", "sslrootcert", "target_session_attrs")
_ELSEWHERE = ("service", "assume_role")
"""Options that lead to another place, or to another user, in a way that rota's driver does not know."""
_WAY_OUT = 'give ROTA = {"URL": "postgresql://..."} in the settings'


def url_of(alias: str, database: Mapping[str, Any]) -> str:
    """The url for rota that goes with `DATABASES[alias]`."""
    engine, name = database.get("ENGINE"), str(database.get("NAME") or "")
    if engine in POSTGRES:
        return _postgres(alias, database, name)
    if engine not in SQLITE:
        raise Misconfigured(f"DATABASES[{alias!r}] has the engine {engine!r}, where rota cannot be: {_WAY_OUT}")
    if in_memory(database):
        raise Misconfigured(
            f"DATABASES[{alias!r}] is in memory, with no place beside it for rota's own file: "
            'give ROTA = {"URL": "sqlite:////a/file.db"} in the settings'
        )
    return f"sqlite:///{os.path.abspath(name)}.rota"


def in_memory(database: Mapping[str, Any]) -> bool:
    """As Django's tests are on SQLite."""
    name = str(database.get("NAME") or "")
    return database.get("ENGINE") in SQLITE and (name.startswith((":memory:", "file:")) or not name)


def refuse_shared_file(url: str, databases: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Nobody gets two copies of SQLite on one file."""
    if not url.startswith("sqlite:///"):
        return
    file = os.path.realpath(url.removeprefix("sqlite:///"))
    for alias, database in databases:
        if database.get("ENGINE") in SQLITE and not in_memory(database) and file == os.path.realpath(database["NAME"]):
            raise Misconfigured(
                f"rota's url names the file of DATABASES[{alias!r}], {file}: two copies of SQLite in one process do "
                "not see each other's locks, and would lose commits. Give rota a file of its own, or use Postgres"
            )


def _postgres(alias: str, database: Mapping[str, Any], name: str) -> str:
    options = database.get("OPTIONS") or {}
    for option in _ELSEWHERE:
        if options.get(option):
            raise Misconfigured(f"DATABASES[{alias!r}] has the option {option!r}, which rota cannot follow: {_WAY_OUT}")
    if not name:
        raise Misconfigured(f"DATABASES[{alias!r}] has no NAME: {_WAY_OUT}")
    user, password = str(database.get("USER") or ""), str(database.get("PASSWORD") or "")
    who = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    # Host and port as parameters: there a folder of sockets and a list of servers can be written too.
    query = {"host": _hosts(str(database.get("HOST") or "")), "port": str(database.get("PORT") or "")}
    query |= {option: str(options[option]) for option in _CARRIED if options.get(option)}
    more = urlencode({key: value for key, value in query.items() if value}, quote_via=quote, safe="")
    return f"postgresql://{who}{'@' if who else ''}/{quote(name, safe='')}{'?' if more else ''}{more}"


def _hosts(hosts: str) -> str:
    """An IPv6 address needs brackets where a port could follow."""
    return ",".join(f"[{host}]" if host.count(":") > 1 and host[0] != "[" else host for host in hosts.split(","))
