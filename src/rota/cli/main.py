"""The commands of `rota` and what they have in common: one sentence per error, exit codes for scripts."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from rota import Settings, __version__
from rota.cli.crontab import app as imports
from rota.cli.demo import demo
from rota.cli.leader import app as leader
from rota.cli.load import load_app
from rota.cli.locks import app as locks
from rota.cli.run import run_replica
from rota.cli.schedules import app as schedules
from rota.cli.singletons import app as singletons
from rota.cli.soak import soak
from rota.errors import RotaError
from rota.schema import SCHEMA, check_schema
from rota.stores import open_store
from rota.telemetry.logs import ContextFormatter, carry_context


class _Commands(typer.Typer):
    """Errors that rota raises on purpose end in one sentence, not in a traceback."""

    def __call__(self, *args: object, **kwargs: object) -> object:
        try:
            return super().__call__(*args, **kwargs)
        except RotaError as error:
            typer.secho(f"rota: {error}", fg="red", err=True, color=False if "NO_COLOR" in os.environ else None)
            sys.exit(1)


app = _Commands(help="Run a service as many replicas as safely as if it were one.", no_args_is_help=True)
app.command()(demo)
app.command()(soak)
app.add_typer(leader, name="leader")
app.add_typer(singletons, name="singletons")
app.add_typer(locks, name="locks")
app.add_typer(schedules, name="schedules")
app.add_typer(imports, name="import")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rota {__version__} (tables: version {SCHEMA})")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


@app.command()
def run(
    target: Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the Rota is, e.g. billing.jobs:app")],
    url: Annotated[str | None, typer.Option(help="Database, instead of the app's own or ROTA_URL")] = None,
    name: Annotated[str | None, typer.Option(help="This replica's name, instead of host and process id")] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error")] = "info",
    exit_on_lost_leadership: Annotated[
        bool, typer.Option("--exit-on-lost-leadership", help="End the process (70) when a leadership is lost.")
    ] = False,
) -> None:
    """Run an app as a replica until SIGTERM or Ctrl-C.

    Example: ROTA_URL=postgresql://localhost/shop rota run shop.jobs:app
    """
    level = logging.getLevelNamesMapping().get(log_level.upper())
    if level is None:
        raise typer.BadParameter(f"{log_level!r} is none of debug, info, warning, error", param_hint="--log-level")
    lines = logging.StreamHandler()
    lines.setFormatter(ContextFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[lines])
    loaded = load_app(target, url=url, replica=name, exit_on_lost_leadership=exit_on_lost_leadership or None)
    carry_context()  # also to handlers that the app's module made
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        raise typer.Exit(runner.run(run_replica(loaded)))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed (`rota[fast]`)."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    return new_event_loop


@app.command()
def migrate(
    url: Annotated[str | None, typer.Option(help="Database, instead of ROTA_URL")] = None,
) -> None:
    """Bring the tables up to date; safe while replicas run."""

    async def go() -> list[str]:
        store = open_store(Settings.load(url=url))
        await store.open()
        try:
            return await check_schema(store, migrate=True)
        finally:
            await store.close()

    applied = asyncio.run(go())
    for name in applied:
        typer.echo(f"applied {name}")
    typer.echo(f"tables are at version {SCHEMA}")
