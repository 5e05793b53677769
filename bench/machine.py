"""What every measurement stands on: databases of its own, worker processes, and raw SQL that does the same writes."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import psutil
from tests.harness import Databases, Server, embedded_server

from bench import service
from bench.wire import Wire, open_wire
from rota import Rota

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
    long: bool = False
    patience: float = 0.0
    """Minutes to wait for a quiet machine before each measurement."""
    databases: Databases = field(default_factory=Databases)
    figures: list[dict[str, Any]] = field(default_factory=list)
    series: dict[str, list[float]] = field(default_factory=dict)
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="rota-bench-")))
    _made: int = 0

    def many(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def database(self, store: str) -> str:
        return self.databases.new(store, self.new_folder())

    def new_folder(self) -> Path:
        self._made += 1
        folder = self.folder / str(self._made)
        folder.mkdir()
        return folder

    @contextmanager
    def server(self, **settings: str | int) -> Iterator[Server]:
        """A server to itself: what other measurements left behind must not be on its bill."""
        server = embedded_server()
        try:
            for name, value in settings.items():
                server.psql(f"alter system set {name} = '{value}'")
            server.stop()
            server.start()
            yield server
        finally:
            server.close()

    def forget(self) -> None:
        """Away with the databases of a part that is over, before the next one is disturbed by their vacuum."""
        self.databases.close()
        self.databases = Databases()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()

    def close(self) -> None:
        self.databases.close()
        shutil.rmtree(self.folder, ignore_errors=True)

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
            ratio = raw / value if raw and value else None
        self.figures.append(
            {"what": what, "system": system, "store": store, "value": value, "unit": unit, "raw": raw, "ratio": ratio}
            | more
        )
        beside = f"   {ratio:5.2f} x raw ({shown(raw)})" if ratio is not None and raw else ""
        extra = "".join(f"   {name} {told}" for name, told in more.items())
        print(f"  {system:9} {store:9} {what:56} {shown(value):>10} {unit:3}{beside}{extra}", flush=True)

    def keep(self, name: str, values: Sequence[float]) -> None:
        """What a single figure cannot show, for the plots."""
        self.series[name] = [round(value, 4) for value in values]


@asynccontextmanager
async def raw_connection(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(RAW)
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def client(url: str, **settings: Any) -> AsyncIterator[Rota]:
    """An app with the jobs of the service that only enqueues and looks."""
    app = Rota(url, **settings)
    for name, job in service.app.jobs.items():
        app.add_job(job.fn, name, job.policies)
    async with app.client():
        yield app


@dataclass
class Crew:
    """Processes that work for the benchmark, and what they say."""

    processes: list[psutil.Process]
    wire: Wire


@asynccontextmanager
async def crew(commands: Sequence[Sequence[str]], joining: int, **environment: str) -> AsyncIterator[Crew]:
    """Python processes of these arguments; begins when so many have said that they joined."""
    started: list[asyncio.subprocess.Process] = []
    folder = Path(tempfile.mkdtemp(prefix="rota-wire-"))
    try:
        async with open_wire(folder / "wire") as wire:
            try:
                for command in commands:
                    started.append(
                        await asyncio.create_subprocess_exec(
                            sys.executable, *command, env=os.environ | environment | {"BENCH_WIRE": str(wire.path)}
                        )
                    )
                pids = [(await wire.hear("joined"))[0] for _ in range(joining)]
                yield Crew([psutil.Process(pid) for pid in pids], wire)
            finally:
                for process in started:
                    if process.returncode is None:
                        process.terminate()
                await asyncio.gather(*(process.wait() for process in started))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def workers(url: str, count: int, **environment: str) -> AsyncIterator[Crew]:
    """So many replicas of bench.service, each a process that has joined."""
    run = ("-m", "rota", "run", "bench.service:app", "--log-level", "error", "--name")
    commands = [(*run, f"bench-{number}") for number in range(count)]
    async with crew(commands, count, ROTA_URL=url, **environment) as made:
        yield made


@contextmanager
def disk(folder: Path) -> Iterator[Callable[[], float]]:
    """What a commit waits for: call it to have a page written, and the milliseconds until the disk has it."""
    page, pages, turn = b"x" * 8192, 1000, itertools.count()
    file = os.open(folder / "pages", os.O_CREAT | os.O_WRONLY)

    def sync() -> float:
        os.pwrite(file, page, next(turn) % pages * len(page))
        began = time.perf_counter()
        os.fdatasync(file)
        return (time.perf_counter() - began) * 1000

    try:
        os.write(file, page * pages)
        os.fsync(file)
        yield sync
    finally:
        os.close(file)


def shown(value: float) -> str:
    """Three digits that matter, as people read numbers."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of the values that such a share of them does not exceed."""
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * share) - 1, 0)]


def middle(ours: Sequence[float], others: Sequence[float]) -> tuple[float, float]:
    """Of rounds that were made by turns, what was measured in the one whose ratio is in the middle: the machine itself
    is faster or slower from second to second, and stands still now and then."""
    rounds = sorted(zip(ours, others, strict=True), key=lambda rates: rates[0] / rates[1])
    return rounds[len(rounds) // 2]


class Stopwatch:
    def __enter__(self) -> Stopwatch:
        self._started = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._started
