"""`python -m bench`: measure, print, keep."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import time
import warnings

from bench import drain, enqueue, idle, lateness, long, memory, pickup, replicas, schedules
from bench.machine import Bench

PARTS = {
    "enqueue": enqueue.measure,
    "drain": drain.measure,
    "pickup": pickup.measure,
    "lateness": lateness.measure,
    "schedules": schedules.measure,
    "idle": idle.measure,
    "replicas": replicas.measure,
    "memory": memory.measure,
    "long": long.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small counts: see that it runs")
    parser.add_argument("--only", nargs="*", choices=sorted(PARTS), default=list(PARTS), help="some of the parts")
    parser.add_argument("--long", action="store_true", help="two million runs in the part `long`: minutes more")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    bench = Bench(quick=options.quick, long=options.long)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}, Python {platform.python_version()}")
    try:
        for name in options.only:
            print(name)
            began = time.monotonic()
            asyncio.run(PARTS[name](bench))
            bench.forget()
            print(f"  {time.monotonic() - began:.1f} s", flush=True)
    finally:
        bench.close()


if __name__ == "__main__":
    main()
