"""The address of a Postgres database: whether it can be read, and where it leads.

What cannot be read is never shown: the password may be in any part of it.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl

from rota.errors import Misconfigured

_PARTS = re.compile(r"\w+://([^/?#]*)([^?#]*)(?:\?([^#]*))?(#.*)?", re.DOTALL)
_HOST = re.compile(r"(?:\[[^\[\]]*\]|[^:\[\]]*)(?::(\d{0,5}))?")


def check_address(name: str, url: str) -> None:
    """Refuse what the driver would misread, most often for a password with a special character in it."""
    authority, path, query, fragment = _split(url)
    hosts = [_HOST.fullmatch(host) for host in authority.rpartition("@")[2].split(",")]
    ports = [host is not None and int(host[1] or 0) <= 65535 for host in hosts]
    if not all(ports) or authority.count("@") > 1 or "@" in path or fragment or not _is_query(query):
        raise Misconfigured(
            f"{name} cannot be read as postgresql://USER:PASSWORD@HOST:PORT/DATABASE: "
            "in a password write @ as %40, / as %2F, ? as %3F, # as %23, : as %3A"
        )


def place(url: str) -> tuple[str, str]:
    """Host and port, which may be several, and the database; either may be empty."""
    authority, path, query, _ = _split(url)
    # A socket's folder is given as ?host=.
    return authority.rpartition("@")[2] or dict(parse_qsl(query)).get("host", ""), path.strip("/")


def _split(url: str) -> tuple[str, ...]:
    found = _PARTS.fullmatch(url)
    return found.groups(default="") if found else ("", "", "", "")


def _is_query(text: str) -> bool:
    try:
        parse_qsl(text, strict_parsing=bool(text))
    except ValueError:
        return False
    return True
