"""Run a replica until it is told to stop."""

from __future__ import annotations

import asyncio
import signal

from rota import Rota


async def run_replica(app: Rota) -> None:
    """The first SIGTERM or SIGINT lets running handlers finish; one more, half a second later, ends the process."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def told(number: signal.Signals) -> None:
        stop.set()
        # Not at once: a signal to a process group often comes twice.
        loop.call_later(0.5, loop.remove_signal_handler, number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told, number)
    async with app:
        await stop.wait()
