"""Run a replica until it is told to stop."""

from __future__ import annotations

import asyncio
import signal

from rota import Rota
from rota.leader import EXIT_LOST, exiting


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

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told, number)
    async with app:
        await stop.wait()
    return EXIT_LOST if exiting.is_set() else 0
