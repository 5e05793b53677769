"""`rota migrate`: bring the tables forward, or see whether that is needed."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from rota import Settings
from rota.cli.look import AsJson, Url, missing_file, show_one
from rota.cli.say import say
from rota.errors import SchemaMismatch
from rota.schema import SCHEMA, check_schema
from rota.stores import open_store


def migrate(
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit with 1 when there is something to do.")
    ] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Bring the tables up to date; safe while replicas run.

    Example: rota migrate --check || rota migrate
    """

    def tell(name: str) -> None:
        if not as_json:
            say(f"applied {name}")

    async def go() -> tuple[int, list[str]]:
        store = open_store(Settings.load(url=url))
        if check and missing_file(store):
            return 0, []
        await store.open()
        try:
            try:
                applied = await check_schema(store, migrate=not check, applied=tell)
            except SchemaMismatch:
                if not check:
                    raise
                applied = []
            return (await store.schema_version())[0], applied
        finally:
            await store.close()

    version, applied = asyncio.run(go())
    behind = version < SCHEMA
    if as_json:
        show_one({"version": version, "needed": SCHEMA, "applied": applied, "behind": behind}, as_json=True)
    elif behind:
        say(f"tables are at version {version}, and {SCHEMA} is needed: run `rota migrate`")
    else:
        say(f"tables are at version {version}")
    raise typer.Exit(1 if behind else 0)
