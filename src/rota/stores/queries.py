"""Named SQL out of `.sql` files: `-- name: verb` or `-- name: verb.part` opens a statement, comments stay comments.

The verb is the name of the store's method; a test holds both stores to the same verbs.
"""

from __future__ import annotations

import re
from importlib.resources import files

_NAME = re.compile(r"^-- name: ([a-z_]+(?:\.[a-z_]+)?)$", re.MULTILINE)
_COMPATIBLE = re.compile(r"^-- compatible-with: (\d+)$", re.MULTILINE)


def load_queries(package: str) -> dict[str, str]:
    """Every statement of the package's `queries` folder, by name."""
    found: dict[str, str] = {}
    for source in sorted(files(package).joinpath("queries").iterdir(), key=lambda f: f.name):
        parts = _NAME.split(source.read_text(encoding="utf-8"))
        for name, text in zip(parts[1::2], parts[2::2], strict=True):
            if name in found:
                raise RuntimeError(f"query {name!r} is defined twice")
            found[name] = text.strip()
    return found


class Migration:
    """One step forward: its number, its name, its SQL, and the oldest code that can live with the result."""

    def __init__(self, filename: str, sql: str) -> None:
        self.name = filename.removesuffix(".sql")
        self.version = int(filename.split("_")[0])
        self.sql = sql
        stated = _COMPATIBLE.search(sql)
        if stated is None:
            raise RuntimeError(f"migration {filename} does not say `-- compatible-with: N`")
        self.compatible_with = int(stated.group(1))


def load_migrations(package: str) -> list[Migration]:
    """The package's migrations in order."""
    folder = files(package).joinpath("migrations")
    found = [Migration(f.name, f.read_text(encoding="utf-8")) for f in folder.iterdir() if f.name.endswith(".sql")]
    return sorted(found, key=lambda migration: migration.version)
