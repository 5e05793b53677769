"""A cluster of real processes on one database, the schedules they live by, and what can be done to them."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rota import Rota
from tests.cluster.judge import Schedule, judge, moment
from tests.cluster.trace import Trace
from tests.harness import execute, ready
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
ROUNDS = int(os.environ.get("ROTA_ROUNDS", "20"))
BEAT, LEASE, DEAD_AFTER = 0.2, 0.6, 1.0
SETTINGS = {
    "ROTA_BEAT": str(BEAT),
    "ROTA_LEASE": str(LEASE),
    "ROTA_DEAD_AFTER": str(DEAD_AFTER),
    # Here replicas die by the dozen, and no run is to blame for it.
    "ROTA_MAX_LOSSES": "1000",
}

SCHEDULES = [
    Schedule("brief", "skip", "every 1s"),
    Schedule("brief", "free", "every 1s", limit=0, catch_up="all"),
    Schedule("steady", "queue", "every 1s", overlap="queue", catch_up="all"),
    Schedule("steady", "two", "every 2s", limit=2, overlap="queue_one"),
    Schedule("plain", "zoned", "*/2 * * * * *", zone="Australia/Lord_Howe", limit=0),
    Schedule("parent", "default", "every 1s", overlap="queue"),
    Schedule("ledger", "default", "every 1s", overlap="queue", catch_up="all"),
]


def new_random() -> random.Random:
    """Reproducible: pytest shows the seed of a test that failed, ROTA_SEED brings it back."""
    seed = os.environ.get("ROTA_SEED") or str(random.SystemRandom().randrange(10**9))
    print(f"ROTA_SEED={seed}")
    return random.Random(seed)


async def until(what: str, check: Callable[[], Awaitable[Any]], seconds: float = PATIENCE) -> Any:
    """Ask until the answer is true; a database that is away for a moment is asked again."""
    deadline, answer = time.monotonic() + seconds, None
    while time.monotonic() < deadline:
        answer = await check()
        if answer:
            return answer
        await asyncio.sleep(0.02)
    raise AssertionError(f"not within {seconds:g} s: {what} (last answer: {answer!r})")


@dataclass
class Process:
    """One replica."""

    process: asyncio.subprocess.Process
    stderr: Path
    events: list[dict[str, Any]] = field(default_factory=list)
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)
    _reader: asyncio.Task[None] | None = None

    @classmethod
    async def spawn(cls, program: str, folder: Path, number: int, **environment: str) -> Process:
        stderr = folder / f"stderr-{number}"
        errors = os.open(stderr, os.O_WRONLY | os.O_CREAT)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", program, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=errors,
                env=os.environ | {"ROTA_REPLICA": f"r{number}"} | environment,
            )  # fmt: skip
        finally:
            os.close(errors)
        made = cls(process, stderr)
        made._reader = asyncio.create_task(made._read())
        return made

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            async with self._news:
                self.events.append(json.loads(line))
                self._news.notify_all()
        async with self._news:
            self.events.append({"event": "Gone"})
            self._news.notify_all()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def replica_id(self) -> int:
        """Of its present incarnation."""
        return max([e["replica_id"] for e in self.events if e["event"] == "ReplicaJoined"], default=0)

    def saw(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]

    async def said(self, kind: str, *, count: int = 1, seconds: float = PATIENCE) -> dict[str, Any]:
        """Wait for its n-th event of a kind."""
        try:
            async with asyncio.timeout(seconds), self._news:
                await self._news.wait_for(lambda: len(self.saw(kind)) >= count or self.saw("Gone"))
        except TimeoutError:
            raise AssertionError(f"no {kind} from {self.pid} within {seconds:g} s: {self.events[-5:]}") from None
        if len(self.saw(kind)) < count:
            raise AssertionError(f"no {kind} from {self.pid}, it is gone: {self.stderr.read_text()[-2000:]}")
        return self.saw(kind)[count - 1]

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def gone(self, seconds: float = PATIENCE) -> int:
        async with asyncio.timeout(seconds):
            assert self._reader is not None
            await asyncio.shield(self._reader)
            return await self.process.wait()

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.gone()

    async def terminate(self, seconds: float = PATIENCE) -> int:
        """Gracefully; its exit status."""
        if self.process.returncode is None:
            self.send(signal.SIGTERM)
        return await self.gone(seconds)


class Cluster:
    """Some replicas on one database. What happened to it is judged at the end."""

    program = "tests.cluster.replica"

    def __init__(self, url: str, folder: Path, *, via: str | None = None, **environment: str) -> None:
        self.url, self._folder = url, folder
        self.trace = Trace(folder / "trace")
        self._environment = {"ROTA_URL": via or url, "ROTA_TEST_TRACE": str(self.trace)} | SETTINGS | environment
        self.schedules: list[Schedule] = []
        self.replicas: list[Process] = []
        self.all: list[Process] = []

    # -- before and after --------------------------------------------------------------------------

    async def lay_out(self, schedules: Sequence[Schedule] = SCHEDULES) -> None:
        """The tables, and schedules whose first tick is known."""
        async with Rota(self.url).client():
            pass
        lite = self.url.startswith("sqlite")
        schema = "" if lite else "public."
        await execute(self.url, f"create table {schema}effects (run_id bigint not null, attempt integer not null)")
        for statement in (COMPLETIONS_SQLITE,) if lite else COMPLETIONS:
            await execute(self.url, statement)
        soon = datetime.now(UTC) + timedelta(seconds=2)
        first = soon.replace(microsecond=0, second=soon.second // 2 * 2)
        for schedule in schedules:
            await self.add_schedule(schedule, first)

    async def add_schedule(self, schedule: Schedule, first: datetime) -> None:
        zone = f"'{schedule.zone}'" if schedule.zone else "null"
        await execute(
            self.url,
            "insert into scheduler_configs "
            "(job_id, name, cron, timezone, concurrency_limit, overlap, catch_up, next_run_at) "
            f"values ('{schedule.job}', '{schedule.name}', '{schedule.cron}', {zone}, {schedule.limit}, "
            f"'{schedule.overlap}', '{schedule.catch_up}', '{first:%Y-%m-%dT%H:%M:%SZ}')",
        )
        schedule.first = first
        self.schedules.append(schedule)

    async def spawn(self, **environment: str) -> Process:
        """One more replica, not ready yet."""
        made = await Process.spawn(self.program, self._folder, len(self.all), **self._environment | environment)
        self.replicas.append(made)
        self.all.append(made)
        return made

    async def start(self, count: int = 3, **environment: str) -> list[Process]:
        made = [await self.spawn(**environment) for _ in range(count)]
        for replica in made:
            await replica.said("Ready")
        return made

    async def replace(self, replica: Process, **environment: str) -> Process:
        """A new one for one that is gone."""
        self.replicas.remove(replica)
        [made] = await self.start(1, **environment)
        return made

    async def close(self) -> None:
        for replica in self.all:
            if replica.process.returncode is None:
                replica.process.kill()  # all of them first: whoever is told to stop may not get to wait
        for replica in self.all:
            await replica.kill()

    # -- looking -----------------------------------------------------------------------------------

    async def sql(self, text: str) -> list[tuple[Any, ...]]:
        return await execute(self.url, text)

    async def value(self, text: str) -> Any:
        return (await self.sql(text))[0][0]

    def executing(self, replica: Process, jobs: Sequence[str]) -> bool:
        """It is inside a handler of one of these."""
        lines = [line for line in self.trace.lines()[-200:] if line["pid"] == replica.pid and line["job"] in jobs]
        return bool({line["nonce"] for line in lines} - {line["nonce"] for line in lines if line["phase"] == "end"})

    async def enqueue(self, job: str, **parameters: Any) -> int:
        """From outside, as a service that runs nothing would do it."""
        from tests.cluster import service

        app = Rota(self.url)
        made = app.add_job(service.app.jobs[job].fn, job, service.app.jobs[job].policies)
        async with app.client():
            return (await made.enqueue(**parameters)).id

    async def run(self, run_id: int) -> dict[str, Any]:
        names = ("state", "attempt", "losses", "replica_id", "error", "result")
        [row] = await self.sql(f"select {', '.join(names)} from job_runs where id = {run_id}")
        return dict(zip(names, row, strict=True))

    async def reached(self, run_id: int, state: str, seconds: float = PATIENCE) -> dict[str, Any]:
        async def look() -> dict[str, Any] | None:
            row = await self.run(run_id)
            return row if row["state"] == state else None

        found: dict[str, Any] = await until(f"run {run_id} is {state}", look, seconds)
        return found

    # -- the end -----------------------------------------------------------------------------------

    async def settle(self, seconds: float = PATIENCE) -> None:
        """No more ticks; wait until all runs have ended; stop gracefully; nothing may be left behind."""
        await until("every schedule has had some ticks", self._old_enough, seconds)
        await self.sql("update scheduler_configs set enabled = false")

        async def active() -> bool:
            return not await self.sql("select id from job_runs where state in ('queued', 'running') limit 1")

        try:
            await until("all runs have ended", active, seconds)
        except AssertionError as error:
            names = "id, job_id, state, attempt, losses, replica_id"
            stuck = await self.sql(f"select {names} from job_runs where state in ('queued', 'running')")
            places = {t: await self.sql(f"select * from {t}") for t in (*PLACES, "replicas")}
            raise AssertionError(f"{error}: {stuck}\n{places}") from None

        async def buried() -> bool:
            return len(await self.sql("select id from replicas")) == len(self.replicas)

        await until("the dead are buried", buried, seconds)
        await self.stop()

    async def _old_enough(self) -> bool:
        frontier = {
            (job, name): at
            for job, name, at in await self.sql("select job_id, name, next_run_at from scheduler_configs")
        }
        return all(
            schedule.first is not None
            and moment(frontier[schedule.job, schedule.name]) >= schedule.first + timedelta(seconds=4)
            for schedule in self.schedules
        )

    async def stop_all_but_queued(self, queued: Sequence[int]) -> None:
        """Stop while these still wait to be run."""
        await self._terminate()
        await self._nothing_left(("claims", "scheduler_locks", "cancellations", "replicas"))
        assert await ready(self.url) == sorted(queued)

    async def stop(self) -> None:
        await self._terminate()
        await self._nothing_left((*PLACES, "replicas"))

    async def _terminate(self) -> None:
        codes = await asyncio.gather(*(replica.terminate() for replica in self.replicas))
        assert set(codes) <= {0}, f"exit codes {codes}: {[r.stderr.read_text()[-1500:] for r in self.replicas]}"
        self.replicas = []

    async def _nothing_left(self, tables: Sequence[str]) -> None:
        for table in tables:
            left = await self.sql(f"select * from {table}")
            assert not left, f"left in {table}: {left}"

    async def verdict(self, *, interrupted: bool = False) -> None:
        """Settle, then judge the whole history. `interrupted`: attempts were cut short without anybody's death."""
        await self.settle()
        complaints = judge(await self._ledger(), self.schedules, self.trace.lines(), interrupted=interrupted)
        for replica in self.all:
            text = replica.stderr.read_text()
            if at := re.search("never retrieved|was destroyed|ResourceWarning|Exception (ignored )?in", text):
                complaints.append(f"stderr of {replica.pid}: {text[max(0, at.start() - 200) : at.start() + 2000]}")
        assert not complaints, "\n".join(complaints[:40])

    async def _ledger(self) -> dict[str, list[dict[str, Any]]]:
        columns = {
            "job_runs": "id, job_id, config_id, idempotency_key, parent_id, state, reason, attempt, losses, due_at, "
            "missed_from, missed_to, missed_count, replica_id, started_at, finished_at, result, error",
            "scheduler_configs": "id, job_id, name, next_run_at, invalid_reason",
            "schedule_stats": "config_id, run_count, last_state",
            "effects": "run_id, attempt",
            "completions": "run_id, state",
        }
        ledger = {}
        for table, names in columns.items():
            rows = await self.sql(f"select {names} from {table}")
            ledger[table] = [dict(zip(names.split(", "), row, strict=True)) for row in rows]
        return ledger

    def count(self, kind: str) -> int:
        return sum(len(replica.saw(kind)) for replica in self.all)


# Every end of a run that the store takes down is noted, also one that it should have refused.
COMPLETIONS = (
    "create table public.completions (run_id bigint not null, state text not null)",
    """create function public.completed() returns trigger language plpgsql security definer as $$
begin
    insert into public.completions values (new.id, new.state::text);
    return null;
end $$""",
    """create trigger completed after update of state on rota.job_runs
for each row when (new.state in ('succeeded', 'failed', 'cancelled')) execute function public.completed()""",
)
COMPLETIONS_SQLITE = """
create table completions (run_id integer not null, state text not null);
create trigger completed after update of state on job_runs when new.state in ('succeeded', 'failed', 'cancelled')
begin
    insert into completions values (new.id, new.state);
end
"""
PLACES = ("ready", "delayed", "waiting", "claims", "scheduler_locks", "cancellations")


@asynccontextmanager
async def cluster(
    url: str,
    folder: Path,
    *,
    count: int = 3,
    via: str | None = None,
    schedules: Sequence[Schedule] = SCHEDULES,
    **environment: str,
) -> AsyncIterator[Cluster]:
    """A cluster at work."""
    made = Cluster(url, folder, via=via, **environment)
    try:
        await made.lay_out(schedules)
        await made.start(count)
        yield made
    finally:
        await made.close()
