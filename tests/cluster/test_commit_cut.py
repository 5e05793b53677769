"""The connection, or the process, is lost around a COMMIT: what was done is found, what was not done is done again."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

from rota.contract.places import Places
from rota.errors import RotaError
from rota.policy import Decider
from rota.store import Fired
from rota.stores.postgres import ticks
from rota.stores.postgres.store import PostgresStore
from tests.cluster.cluster import ROUNDS, SCHEDULES, Cluster, Process, cluster
from tests.cluster.judge import Schedule
from tests.cluster.proxy import POSITIONS, Cut, Position, Proxy
from tests.harness import Databases
from tests.patience import PATIENCE
from tests.store.steps import JOB, fire, hour, ledger, new_token, opened, schedule, scheduled, set_clock, tick

# The names of queries; those of a transaction of several statements stand for it.
POSTGRES = [
    "claim_runs",
    "claim_runs.one",
    "finish_runs",
    "enqueue",
    "block fire_due.plain",
    "block fire_due.write",
    "block effect",
    "block admit_waiting",
    "beat",
]
# Every other tick of a run that lasts is skipped: what is written then is more than a plain tick.
SKIPPED = Schedule("slow", "skip", "every 1s")
SQLITE = ["claim_runs", "finish_runs", "enqueue", "fire_due.write", "effect", "beat"]


def _through(proxy: Proxy, url: str) -> str:
    database = url.removeprefix("postgresql://postgres@/").partition("?")[0]
    return f"postgresql://postgres@127.0.0.1:{proxy.port}/{database}"


async def test_connections_cut_around_commit(databases: Databases, tmp_path: Path, rng: random.Random) -> None:
    server = databases.server()
    url = server.new_database()
    cuts = list(itertools.product(POSTGRES, POSITIONS))
    rng.shuffle(cuts)
    async with Proxy(server.socket) as proxy:
        async with cluster(url, tmp_path, via=_through(proxy, url), schedules=[*SCHEDULES, SKIPPED]) as it:
            for kind, position in itertools.islice(itertools.cycle(cuts), max(ROUNDS, len(cuts))):
                cut = proxy.arm(Cut(kind, position, nth=rng.randint(1, 3), reset=rng.random() < 0.5))
                for _ in range(int(PATIENCE)):
                    if await cut.happened(1.0):
                        break
                    await _come_late(it)
                assert await cut.happened(0), f"no {cut} within {PATIENCE} s; seen: {proxy.seen}"
            await it.verdict()
            assert it.count("ServiceFailed") > 0


async def _come_late(it: Cluster) -> None:
    """A tick that is past when it becomes known: nobody awaits it, as all others are where there is time to spare.

    It has no second one, by which the verdict could count its ticks; its run is judged like any other.
    """
    await it.sql(
        "insert into scheduler_configs (job_id, name, cron, concurrency_limit, next_run_at) "
        "select 'brief', 'late ' || count(*), 'every 1h', 0, now() - interval '1 second' from scheduler_configs"
    )


@pytest.mark.parametrize("position", POSITIONS)
async def test_a_tick_that_is_awaited_is_made_once(
    databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, position: Position
) -> None:
    """In one replica, and by a clock that is moved: a machine that is busy is too late for what has to be in time."""
    monkeypatch.setattr(ticks, "_HOLDS", timedelta(minutes=10))
    server = databases.server()
    url = server.new_database()
    patient = Decider(late_after=3600, check=lambda job, parameters: None)
    offered = Places(replica_id=7, token=new_token(), lanes=((frozenset([JOB]), 1),))
    async with Proxy(server.socket) as proxy, opened(url) as other, opened(_through(proxy, url)) as store:
        assert isinstance(store, PostgresStore)
        await hour(url, 0)
        made = await scheduled(other)
        await set_clock(url, tick(1) - timedelta(minutes=1))
        decisions = await store._decide_ahead(patient, [JOB], 10, [], 61.0)
        await set_clock(url, tick(1))
        cut = proxy.arm(Cut("fire_due.awaited", position))
        fired = Fired()
        with suppress(RotaError):
            fired = await store._fire_awaited(decisions, True, lambda: offered, 0.0)
        assert await cut.happened(PATIENCE)
        assert len(fired.claims) == (position == "after")
        # What the worker does, who was not told, and the scheduler, who looks again: the server may be at it still.
        runs = len(await other.reclaim(7, offered.token))
        while (await other.agenda([JOB])).due:
            runs += (await fire(other)).runs
        assert runs == 1
        assert [row.due_at for row in await ledger(other)] == [tick(1)]
        assert (await schedule(other, made.id)).next_run_at == tick(2)


async def test_a_claim_that_goes_on_without_its_connection(databases: Databases, tmp_path: Path) -> None:
    """The client asks again while the server is still busy with the first time: what that takes is not forgotten."""
    server = databases.server()
    url = server.new_database()
    async with Proxy(server.socket) as proxy:
        it = Cluster(url, tmp_path, via=_through(proxy, url), ROTA_DEAD_AFTER="30", ROTA_LEASE="20")
        try:
            await it.lay_out([])
            [replica] = await it.start(1)
            replica.send(signal.SIGSTOP)
            run_id = await it.enqueue("brief")
            operator = await asyncpg.connect(url)
            try:
                async with operator.transaction():
                    await operator.execute("select from rota.job_runs where id = $1 for update", run_id)
                    cut = proxy.arm(Cut("claim_runs.one", "blind"))
                    replica.send(signal.SIGCONT)
                    assert await cut.happened(PATIENCE)
                    await asyncio.sleep(1.0)
            finally:
                await operator.close()
            await it.reached(run_id, "succeeded", 10)
            await it.stop()
        finally:
            await it.close()


async def test_processes_killed_around_commit(tmp_path: Path, rng: random.Random) -> None:
    deaths = list(itertools.product(SQLITE, ["before", "after"]))
    rng.shuffle(deaths)
    async with cluster(f"sqlite:///{tmp_path / 'rota.db'}", tmp_path) as it:
        to_come = iter(list(itertools.islice(itertools.cycle(deaths), max(ROUNDS, len(deaths)))))
        await asyncio.gather(*(_die_again_and_again(it, replica, to_come, rng) for replica in list(it.replicas)))
        await it.verdict()
        assert await it.value("select coalesce(sum(losses), 0) from job_runs") > 0, "no death hit anything"


async def _die_again_and_again(
    it: Cluster, replica: Process, to_come: Iterator[tuple[str, str]], rng: random.Random
) -> None:
    """One place in the cluster, taken by one process after the other, each doomed in its own way."""
    await replica.kill()
    for kind, position in to_come:
        doomed = await it.spawn(ROTA_TEST_DEATH=f"{kind} {position} {rng.randint(1, 3)}")
        it.replicas.remove(doomed)
        assert await doomed.gone() == -signal.SIGKILL, doomed.stderr.read_text()
    await it.replace(replica)
