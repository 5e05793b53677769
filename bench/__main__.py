"""`python -m bench`: measure, print, keep, draw."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import signal
import sys
import time
import warnings
from pathlib import Path

from bench import drain, enqueue, failover, idle, lateness, long, memory, pickup, quiet, replicas, report, schedules
from bench.machine import Bench
from bench.peers.install import PEERS
from bench.peers.measure import measure as measure_peers

PARTS = {
    "enqueue": enqueue.measure,
    "drain": drain.measure,
    "pickup": pickup.measure,
    "lateness": lateness.measure,
    "schedules": schedules.measure,
    "idle": idle.measure,
    "replicas": replicas.measure,
    "failover": failover.measure,
    "memory": memory.measure,
    "long": long.measure,
}
RESULTS = Path("bench-results")


def main() -> None:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench: told to stop"))  # servers and workers end with it
    warnings.simplefilter("ignore")
    stem = RESULTS / time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    if options.show:
        found, path = report.read(options.show), options.show
    else:
        bench = Bench(quick=options.quick, long=options.long, patience=options.quiet)
        path = options.json or stem.with_suffix(".json")
        try:
            _measure(bench, options.only)
            if options.peers is not None:
                print("peers", flush=True)
                asyncio.run(measure_peers(bench, options.peers))
        finally:
            bench.close()
            found = report.result(bench)
            report.write(found, path)
    print(f"\n{report.table(found)}")
    if told := report.others(found):
        print(f"\n{told}")
    if options.compare:
        print(f"\n{report.compare(report.read(options.compare), found)}")
    print(f"\n{path}", *_drawn(found, path), sep="\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small counts: see that it runs")
    parser.add_argument("--long", action="store_true", help="two million runs in `long`, a hundred kills in `failover`")
    parser.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS), help="some of the parts")
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), help="measure these too, or all of them")
    parser.add_argument(
        "--quiet", type=float, default=0.0, metavar="MINUTES",
        help="before each part, wait so long at most until nobody else is at the disk or the cores",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, help=f"keep the figures here instead of in {RESULTS}/")
    parser.add_argument("--compare", type=Path, help="an earlier result to compare with")
    parser.add_argument("--show", type=Path, help="print and draw this result again instead of measuring")
    return parser.parse_args()


def _measure(bench: Bench, parts: list[str]) -> None:
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}, Python {platform.python_version()}")
    for name in parts:
        print(name, flush=True)
        with quiet.surroundings(bench, name):
            began = time.monotonic()
            asyncio.run(PARTS[name](bench))
        bench.forget()
        print(f"  {time.monotonic() - began:.1f} s", flush=True)


def _drawn(found: dict[str, object], path: Path) -> list[Path]:
    from bench.plots import draw  # slow to import, and only wanted now

    return draw(found, path.with_suffix(""))


if __name__ == "__main__":
    main()
