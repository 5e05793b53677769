"""Quiet: whether this machine has its disk and its cores to itself. What is measured beside noisy neighbours is theirs.

It is asked before a measurement begins, never by what the measurement then says.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.machine import percentile

_LOOK, _BETWEEN, _SAY_EVERY = 5.0, 0.01, 60.0
_PAGE, _PAGES = b"x" * 8192, 1000


@dataclass(frozen=True, slots=True)
class Noise:
    disk: float
    """Of a hundred waits for the disk, the second longest: milliseconds."""
    stolen: float
    """Which part of the cores' time others had, of whom this machine knows nothing else: percent."""

    @property
    def quiet(self) -> bool:
        return self.disk <= 2.0 and self.stolen <= 3.0

    def __str__(self) -> str:
        return f"fdatasync p99 {self.disk:.1f} ms, {self.stolen:.1f} % of the cores' time stolen"


class Stolen:
    """What others took of the cores since then. Where the system does not tell, nothing."""

    def __init__(self) -> None:
        self._began = psutil.cpu_times()

    def share(self) -> float:
        now = psutil.cpu_times()
        taken = getattr(now, "steal", 0.0) - getattr(self._began, "steal", 0.0)
        return float(100 * taken / max(sum(now) - sum(self._began), 0.01))


def look(folder: Path, seconds: float = _LOOK) -> Noise:
    stolen, waits, until = Stolen(), list[float](), time.monotonic() + seconds
    file = os.open(folder / "noise", os.O_CREAT | os.O_WRONLY)
    try:
        os.write(file, _PAGE * _PAGES)
        os.fsync(file)
        while time.monotonic() < until or not waits:
            os.pwrite(file, _PAGE, len(waits) % _PAGES * len(_PAGE))
            began = time.perf_counter()
            os.fdatasync(file)
            waits.append((time.perf_counter() - began) * 1000)
            time.sleep(_BETWEEN)
    finally:
        os.close(file)
    return Noise(percentile(waits, 0.99), stolen.share())


def wait(folder: Path, minutes: float) -> Noise:
    """For so long at most. What it was like in the end."""
    until, said = time.monotonic() + minutes * 60, -_SAY_EVERY
    while not (noise := look(folder)).quiet and (now := time.monotonic()) < until:
        if now >= said + _SAY_EVERY:
            said = now
            print(f"  not quiet yet: {noise}", flush=True)
    return noise
