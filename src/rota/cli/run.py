"""Run a replica until it is told to stop."""

from __future__ import annotations

import asyncio
import signal

from rota import Rota


async def run_replica(app: Rota) -> None:
    """The first SIGTERM or SIGINT lets running handlers finish; a second one ends the process at once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def told(number: signal.Signals) -> None:
        stop.set()
        loop.remove_signal_handler(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told, number)
    async with app:
        await stop.wait()
