"""Run a replica until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal

from rota import Rota, Settings
from rota.address import place
from rota.leader import EXIT_LOST, exiting

_NAMED = 10


async def run_replica(app: Rota) -> int:
    """The first SIGTERM or SIGINT lets running handlers finish; one more, half a second later, ends the process.

    The exit code: 0, or EXIT_LOST when it stopped because it lost a leadership.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def told(number: signal.Signals) -> None:
        stop.set()
        # Not at once: a signal to a process group often comes twice.
        loop.call_later(0.5, loop.remove_signal_handler, number)

    logging.getLogger("rota").info("starting %s", introduction(app))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told, number)
    async with app:
        await stop.wait()
    return EXIT_LOST if exiting.is_set() else 0


def introduction(app: Rota) -> str:
    """Who this is, where its tables are, what it runs."""
    jobs = sorted(app.jobs)
    named = ", ".join(jobs[:_NAMED]) + (f" and {len(jobs) - _NAMED} more" if len(jobs) > _NAMED else "")
    what = f"{len(jobs)} job{'' if len(jobs) == 1 else 's'} ({named})" if jobs else "no jobs"
    return f"{app.settings.replica} on {address(app.settings)}: {what}"


def address(settings: Settings) -> str:
    """Where the tables are, without user and password."""
    if settings.url.startswith("sqlite:"):
        return f"SQLite file {settings.url.removeprefix('sqlite:///')}"
    hosts, database = place(settings.url)
    return f"Postgres at {hosts or 'the default socket'}, database {database or 'of the user'}"
