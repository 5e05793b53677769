"""`rota sql`: the migrations as text, for those who let nobody but themselves change tables."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from rota import Settings
from rota.cli.look import Url
from rota.schema import SCHEMA
from rota.stores.script import migration_script


class StoreKind(StrEnum):
    postgres = "postgres"
    sqlite = "sqlite"


def sql(
    store: Annotated[StoreKind | None, typer.Option(help="For which; else that of --url or ROTA_URL.")] = None,
    start: Annotated[int, typer.Option("--from", metavar="VERSION", help="What the tables are at; 0: none.")] = 0,
    end: Annotated[int, typer.Option("--to", metavar="VERSION", help="What they are to be at.")] = SCHEMA,
    no_transaction: Annotated[
        bool, typer.Option("--no-transaction", help="Without BEGIN and COMMIT, for tools that bring their own.")
    ] = False,
    url: Url = None,
) -> None:
    """Print the SQL that `rota migrate` would run, with the rows by which it knows that it was run.

    It connects to nothing. The same versions print the same text. For Flyway: `rota sql --store postgres
    --no-transaction > V1__rota.sql`; for Alembic: the same file, read by `op.execute`.

    Examples: rota sql --store postgres | psql shop; rota sql --store postgres --from 1
    """
    kind = store or (StoreKind.sqlite if Settings.load(url=url).url.startswith("sqlite:") else StoreKind.postgres)
    typer.echo(migration_script(kind.value, start, end, transactions=not no_transaction), nl=False)
