"""`rota soak`: two workers for as long as you like, with kills; one ledger entry per window, and the report."""

from __future__ import annotations

from typing import Annotated

import typer


def soak(
    minutes: Annotated[float, typer.Option(min=0.1, help="How long")] = 10.0,
    url: Annotated[str | None, typer.Option(help="An empty database; a SQLite file of its own if left out")] = None,
    kill_every: Annotated[
        float, typer.Option(min=0, help="Kill and restart a worker about this often, in seconds; 0: never")
    ] = 20.0,
) -> None:
    """Two workers, killed now and then; at the end every schedule window must have exactly one ledger entry."""
    from rota.cli.ordeal import undergo  # only here: it takes long to import

    raise typer.Exit(0 if undergo(minutes, url=url, kill_every=kill_every) else 1)
