"""`rota demo`: three replicas share schedules, one is killed with -9, and the books are checked at the end."""

from __future__ import annotations

from typing import Annotated

import typer

from rota.errors import BadInput


def demo(
    seconds: Annotated[int, typer.Option(min=5, help="How long to run before the books are closed")] = 20,
    postgres: Annotated[bool, typer.Option("--postgres", help="On the embedded Postgres instead of SQLite")] = False,
    url: Annotated[str | None, typer.Option(help="On an empty database of yours")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Line by line, as when the output is not a terminal")] = False,
) -> None:
    """Three replicas share schedules; one is killed; nothing is lost, nothing runs twice.

    Ends by itself; the exit code is 1 if a tick was lost or doubled.
    """
    if url and postgres:
        raise BadInput("--postgres brings a database of its own: leave out --url")
    from rota.cli.drama import play  # only here: it takes long to import

    raise typer.Exit(0 if play(seconds, url=url, postgres=postgres, plain=plain) else 1)
