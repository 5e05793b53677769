"""What every measurement stands on: databases of its own, worker processes, and raw SQL that does the same writes."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
from tests.harness import Databases

RAW = """
create table if not exists raw_runs (
    id bigserial primary key, job text not null, args json not null, state text not null default 'queued',
    started_at timestamptz, finished_at timestamptz
) with (fillfactor = 50);
create index if not exists raw_queued on raw_runs (id) where finished_at is null;
"""


@dataclass
class Bench:
    """One run of the benchmark: where it measures, how much, and what it found."""

    quick: bool
    databases: Databases = field(default_factory=Databases)
    figures: list[dict[str, Any]] = field(default_factory=list)
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="rota-bench-")))
    _made: int = 0

    def many(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def database(self, store: str) -> str:
        self._made += 1
        folder = self.folder / str(self._made)
        folder.mkdir()
        return self.databases.new(store, folder)

    def add(
        self,
        what: str,
        value: float,
        unit: str,
        *,
        system: str = "rota",
        store: str = "postgres",
        raw: float | None = None,
        **more: Any,
    ) -> None:
        """Take a figure down, and say it. The same `what` of another system is the same measurement made on it."""
        ratio = value / raw if raw else None
        if ratio is not None and unit in ("s", "ms"):
            ratio = raw / value if raw else None
        self.figures.append(
            {"what": what, "system": system, "store": store, "value": value, "unit": unit, "raw": raw, "ratio": ratio}
            | more
        )
        beside = f"   {ratio:5.2f} x raw ({raw:,.1f})" if ratio is not None and raw else ""
        extra = "".join(f"   {name} {shown}" for name, shown in more.items())
        print(f"  {system:9} {store:9} {what:52} {value:12,.1f} {unit:6}{beside}{extra}", flush=True)


@asynccontextmanager
async def raw_connection(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(RAW)
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def workers(url: str, count: int, **environment: str) -> AsyncIterator[list[asyncio.subprocess.Process]]:
    """So many replicas of bench.service, each a process."""
    processes = []
    for number in range(count):
        processes.append(
            await asyncio.create_subprocess_exec(
                sys.executable, "-m", "rota", "run", "bench.service:app", "--name", f"bench-{number}",
                "--log-level", "error", env=os.environ | {"ROTA_URL": url} | environment,
            )
        )  # fmt: skip
    try:
        yield processes
    finally:
        for process in processes:
            if process.returncode is None:
                process.terminate()
        await asyncio.gather(*(process.wait() for process in processes))


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


class Stopwatch:
    def __enter__(self) -> Stopwatch:
        self._started = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._started
