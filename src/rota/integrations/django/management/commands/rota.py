"""`manage.py rota`: this project as a replica, until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import replace
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from rota.cli.run import run_replica
from rota.errors import RotaError
from rota.telemetry.logs import ContextFilter, ContextFormatter, carry_context

_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


class Command(BaseCommand):
    help = "Run this project as a rota replica until SIGTERM or Ctrl-C: schedules fire, jobs run."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--name", help="this replica's name, instead of host and process id")
        parser.add_argument(
            "--exit-on-lost-leadership", action="store_true", help="end the process (70) when a leadership is lost"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            from rota.integrations.django.project import app

            given = {"replica": options["name"], "exit_on_lost_leadership": options["exit_on_lost_leadership"] or None}
            app.settings = replace(app.settings, **{key: value for key, value in given.items() if value is not None})
            _log(options["verbosity"])
            code = asyncio.run(run_replica(app))
        except RotaError as error:
            raise CommandError(f"rota: {error}") from error
        if code:
            sys.exit(code)


def _log(verbosity: int) -> None:
    """To stderr, unless the project's LOGGING says where rota's records go."""
    carry_context()
    logger = logging.getLogger("rota")
    if not logger.hasHandlers():
        lines = logging.StreamHandler()
        lines.setFormatter(ContextFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        lines.addFilter(ContextFilter())
        logger.addHandler(lines)
        logger.setLevel(_LEVELS[min(verbosity, 2)])
