"""`python -m bench.fleet COUNT`: many replicas, each a process, forked from one that has imported everything.

A hundred interpreters that start at once on a small machine would keep it busy for a minute; a hundred forks do not.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import replace

import uvloop

from bench import service
from rota.cli.run import run_replica


def main(count: int) -> None:
    children = []
    for number in range(count):
        child = os.fork()
        if child == 0:
            service.app.settings = replace(service.app.settings, replica=f"fleet-{number}")
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(run_replica(service.app))
            os._exit(0)
        children.append(child)

    def pass_on(number: int, _: object) -> None:
        for child in children:
            os.kill(child, number)

    signal.signal(signal.SIGTERM, pass_on)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
