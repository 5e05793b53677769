"""`python -m rota.cli.tether ...` is `rota ...` in a process that does not outlive the one that started it.

Its standard input is a pipe whose other end its parent holds. However the parent ends, also by
kill -9, the system closes that end, and here the pipe comes to its end. That works wherever there are pipes.
"""

from __future__ import annotations

import os
import runpy
import threading


def wait_for_the_end() -> bool:
    """Return when the parent has closed its end, or is gone; true if it said goodbye, a byte, before."""
    goodbye = False
    while os.read(0, 1024):
        goodbye = True
    return goodbye


def _end() -> None:
    wait_for_the_end()
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end, daemon=True).start()
    runpy.run_module("rota", run_name="__main__")
