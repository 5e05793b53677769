"""Quiet: whether this machine has its disk and its cores to itself. What is measured beside noisy neighbours is theirs.

It is asked before a measurement begins, never by what the measurement then says.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.machine import Bench, disk, percentile

_LOOK, _BETWEEN, _SAY_EVERY = 5.0, 0.01, 60.0


@dataclass(frozen=True, slots=True)
class Noise:
    disk: float
    """Of a hundred waits for the disk, the second longest: milliseconds."""
    stolen: float
    """Which part of the cores' time others had, of whom this machine knows nothing else: percent."""
    busy: float
    """Which part of it was in use on this machine: percent."""

    @property
    def quiet(self) -> bool:
        return self.disk <= 2.0 and self.stolen <= 3.0 and self.busy <= 25.0

    def __str__(self) -> str:
        return f"fdatasync p99 {self.disk:.1f} ms, cores {self.stolen:.1f} % stolen, {self.busy:.0f} % busy"


class Cores:
    """What became of their time since then. Where the system does not tell of others, they had none."""

    def __init__(self) -> None:
        self._began = psutil.cpu_times()

    def _share(self, *names: str) -> float:
        now, began = psutil.cpu_times(), self._began
        spent = sum(getattr(now, name, 0.0) - getattr(began, name, 0.0) for name in names)
        return float(min(100 * spent / max(sum(now) - sum(began), 0.01), 100.0))  # fractions do not add up to all

    def stolen(self) -> float:
        return self._share("steal")

    def busy(self) -> float:
        return self._share("user", "nice", "system", "irq", "softirq")


def look(folder: Path, seconds: float = _LOOK) -> Noise:
    cores, waits, until = Cores(), list[float](), time.monotonic() + seconds
    with disk(folder) as sync:
        while time.monotonic() < until or not waits:
            waits.append(sync())
            time.sleep(_BETWEEN)
    return Noise(percentile(waits, 0.99), cores.stolen(), cores.busy())


def wait(folder: Path, minutes: float) -> Noise:
    """For so long at most. What it was like in the end."""
    until, said = time.monotonic() + minutes * 60, -_SAY_EVERY
    while not (noise := look(folder)).quiet and (now := time.monotonic()) < until:
        if now >= said + _SAY_EVERY:
            said = now
            print(f"  not quiet yet: {noise}", flush=True)
    return noise


@contextmanager
def surroundings(bench: Bench, what: str) -> Iterator[None]:
    """Wait for quiet, if that is wanted; what it was like, before and meanwhile, is taken down beside the figures."""
    if bench.patience:
        before = wait(bench.folder, bench.patience)
        bench.add(f"fdatasync p99 before {what}", before.disk, "ms", system="machine", store="")
        bench.add(f"stolen before {what}", before.stolen, "%", system="machine", store="")
    cores = Cores()
    yield
    bench.add(f"stolen during {what}", cores.stolen(), "%", system="machine", store="")
