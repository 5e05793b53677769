"""One replica as a process of its own: `python -m tests.cluster.replica`. What it reports goes to stdout, a line each.

SIGTERM and SIGINT end it gracefully. ROTA_TEST_SKEW sets its clocks wrong, ROTA_TEST_DEATH kills it at a COMMIT.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal

from tests.cluster import sudden_death, wrong_clock


async def serve() -> None:
    from rota.events import Event, RunFinished, TicksFired
    from tests.cluster.service import app

    def report(event: Event) -> None:
        if not isinstance(event, RunFinished | TicksFired):
            values = {field.name: getattr(event, field.name) for field in dataclasses.fields(event)}
            say(type(event).__name__, **values)

    app.events.subscribe(Event, report)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with app:
        say("Ready")
        await stop.wait()
        say("Stopping")
    say("Stopped")


def say(what: str, /, **values: object) -> None:
    os.write(1, json.dumps({"event": what} | values, default=repr)[:4000].encode() + b"\n")


if __name__ == "__main__":
    if skew := os.environ.get("ROTA_TEST_SKEW"):
        wrong_clock.set_ahead(float(skew))
    if death := os.environ.get("ROTA_TEST_DEATH"):
        sudden_death.arm(*death.split(" "))
    asyncio.run(serve())
