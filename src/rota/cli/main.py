"""The commands of `rota` and what they have in common: one sentence per error, exit codes for scripts."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from rota import __version__
from rota.cli.crontab import app as imports
from rota.cli.demo import demo
from rota.cli.doctor import doctor
from rota.cli.leader import app as leader
from rota.cli.load import load_app
from rota.cli.locks import app as locks
from rota.cli.migrate import migrate
from rota.cli.replicas import replicas
from rota.cli.run import run_replica
from rota.cli.runs import app as runs
from rota.cli.say import complain
from rota.cli.schedules import app as schedules
from rota.cli.singletons import app as singletons
from rota.cli.soak import soak
from rota.cli.sql import sql
from rota.errors import RotaError
from rota.schema import SCHEMA
from rota.telemetry.logs import ContextFormatter, carry_context

_LIFE, _LOOK, _TABLES, _TRY = "Run it", "Look and act", "Set it up", "Try it"
# The command line's own errors: wrong usage. typer does not export their common base.
_UsageError: type[Any] = typer.BadParameter.__mro__[1]
_INTERRUPTED = 130


class _Commands(typer.Typer):
    """Errors that rota raises on purpose, and wrong usage, end in one sentence; bugs end in a plain traceback."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            sys.exit(super().__call__(*args, **{"prog_name": "rota", "standalone_mode": False} | kwargs))
        except RotaError as error:
            complain(str(error))
            sys.exit(1)
        except UnicodeEncodeError as error:
            complain(f"{error.object!r} cannot be written as {error.encoding}")
            sys.exit(2)
        except _UsageError as error:
            path = error.ctx.command_path if error.ctx else "rota"
            if (
                said := error.format_message().replace("Value error, ", "").rstrip(".")
            ):  # a command without arguments shows its help instead
                complain(f"{said}; see `{path} --help`")
            sys.exit(2)
        except typer.Abort as error:
            if isinstance(error.__cause__, KeyboardInterrupt):
                sys.exit(_INTERRUPTED)
            complain("nothing was changed")  # nobody said yes
            sys.exit(_INTERRUPTED if isinstance(error.__context__, KeyboardInterrupt) else 1)  # at the question
        except KeyboardInterrupt:
            sys.exit(_INTERRUPTED)


app = _Commands(
    help="Run a service as many replicas as safely as if it were one.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


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


@app.command(rich_help_panel=_LIFE)
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
    # What was imported stays. Without this, a collection goes through all of it now and then, and every tick waits.
    gc.collect()
    gc.freeze()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        raise typer.Exit(runner.run(run_replica(loaded)))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed (`rota[fast]`)."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    return new_event_loop


app.command(rich_help_panel=_LOOK)(replicas)
app.command(rich_help_panel=_TABLES)(migrate)
app.command(rich_help_panel=_TABLES)(sql)
app.command(rich_help_panel=_TABLES)(doctor)
app.add_typer(schedules, name="schedules", rich_help_panel=_LOOK)
app.add_typer(runs, name="runs", rich_help_panel=_LOOK)
app.add_typer(leader, name="leader", rich_help_panel=_LOOK)
app.add_typer(singletons, name="singletons", rich_help_panel=_LOOK)
app.add_typer(locks, name="locks", rich_help_panel=_LOOK)
app.add_typer(imports, name="import", rich_help_panel=_TABLES)
app.command(rich_help_panel=_TRY)(demo)
app.command(rich_help_panel=_TRY)(soak)
