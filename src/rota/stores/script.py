"""The migrations as a script for a DBA: what `rota migrate` would do, as plain text.

The same versions give the same text, byte for byte. The rows of the table `migrations` are part of it, so `rota
migrate` finds nothing to do afterwards. Each migration is a transaction of its own and ends with that row: run by
mistake on tables that have it already, it fails and changes nothing.
"""

from __future__ import annotations

from typing import Literal

from rota.errors import BadInput
from rota.stores.queries import Migration

Kind = Literal["postgres", "sqlite"]


def migration_script(kind: Kind, start: int = 0, end: int | None = None, *, transactions: bool = True) -> str:
    """The steps after version `start` up to `end`. Without transactions where a tool brings its own."""
    steps, book, opening = _parts(kind)
    newest = steps[-1].version
    end = newest if end is None else end
    if not 0 <= start <= newest or not 0 < end <= newest:
        raise BadInput(f"there is no such version: tables go from 0 (none) to {newest}")
    if start >= end:
        raise BadInput(f"from version {start} to version {end} there is nothing to do")
    chosen = [step for step in steps if start < step.version <= end]
    lines = [f"-- rota: {kind} tables from version {start} to version {end}."]
    if transactions and kind == "sqlite":
        lines.append(".bail on")
    for step in chosen:
        lines.append(f"\n-- {step.name}")
        if transactions:
            lines.append(opening)
        if step.version == 1:
            lines.append(_closed(book))
        lines += [step.sql.strip(), _record(kind, step)]
        if transactions:
            lines.append("commit;")
    return "\n".join(lines) + "\n"


def _parts(kind: Kind) -> tuple[list[Migration], str, str]:
    """The migrations, the table that counts them, and how a transaction begins."""
    if kind == "sqlite":
        from rota.stores.sqlite import store as sqlite

        return sqlite.MIGRATIONS, sqlite.BOOK, "begin immediate;"
    from rota.stores.postgres import store as postgres

    return postgres.MIGRATIONS, postgres.BOOK, f"begin;\n{_closed(postgres.ONE_AT_A_TIME)}"


def _closed(statements: str) -> str:
    return f"{statements.strip()};".replace("; ", ";\n")


def _record(kind: Kind, step: Migration) -> str:
    table = "migrations" if kind == "sqlite" else "rota.migrations"
    values = f"{step.version}, '{step.name}', {step.compatible_with}"
    return f"insert into {table} (version, name, compatible_with) values ({values});"
