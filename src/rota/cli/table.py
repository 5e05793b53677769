"""Tables for people. Whoever prints none does not import this: it takes as long as the rest of a command together."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rota.cli.say import plain

_UNFOLDED = 10_000


def console() -> Console:
    """Where people look. Without a terminal nothing is folded, so that a line stays a line for `grep`."""
    made = Console(highlight=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = _UNFOLDED
    return made


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in rows[0]:
        table.add_column(Text(plain(column)), overflow="fold", min_width=len(column))
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    _print(table)


def print_one(row: dict[str, Any]) -> None:
    """A line for each of its fields."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in row.items():
        table.add_row(Text(name, style="bold"), _cell(value))
    _print(table)


def _print(table: Table) -> None:
    """Folded to the width of a terminal; what goes elsewhere is a line per row, for grep and the like."""
    out = console()
    if out.is_terminal:
        out.print(table)
        return
    with out.capture() as captured:
        out.print(table)
    typer.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _cell(value: Any) -> Text:
    """Plain text, no markup."""
    if value is None:
        return Text("-")
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    return Text(plain(str(value)))
