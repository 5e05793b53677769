"""`python -m bench`: measure, print, keep."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import time
import warnings
from pathlib import Path

from bench import drain, enqueue
from bench.machine import Bench

PARTS = {"enqueue": enqueue.measure, "drain": drain.measure}


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small counts: see that it runs")
    parser.add_argument("--only", nargs="*", choices=sorted(PARTS), default=list(PARTS), help="some of the parts")
    parser.add_argument("--json", type=Path, help="keep the figures here")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    bench = Bench(quick=options.quick)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}, Python {platform.python_version()}")
    try:
        for name in options.only:
            print(name)
            asyncio.run(PARTS[name](bench))
    finally:
        bench.databases.close()
    if options.json:
        kept = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "quick": options.quick,
            "figures": bench.figures,
        }
        options.json.write_text(json.dumps(kept, indent=1))


if __name__ == "__main__":
    main()
