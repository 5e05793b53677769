"""SIGSTOP for longer than the others wait, then SIGCONT: the zombie finds itself deposed, and finishes nothing."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from pathlib import Path

from tests.cluster.cluster import DEAD_AFTER, ROUNDS, Cluster, Process, cluster, until


async def test_frozen_replicas_are_deposed_and_finish_nothing(url: str, tmp_path: Path, rng: random.Random) -> None:
    async with cluster(url, tmp_path) as it:
        deposed = 0
        frozen = 0
        while frozen < ROUNDS:
            victims = rng.sample(it.replicas, rng.choice([1, 2, 2]))
            freezes = (_freeze(it, victim, DEAD_AFTER + rng.uniform(0.3, 0.6)) for victim in victims)
            deposed += sum(await asyncio.gather(*freezes))
            frozen += len(victims)
        # A process frozen inside a write transaction of SQLite keeps the file to itself: then nobody can depose it.
        assert deposed == frozen or (url.startswith("sqlite") and deposed > frozen / 2), (deposed, frozen)
        await it.verdict()
        assert it.count("ReplicaDeposed") >= deposed
        assert it.count("RunTakenOver") > 0, "no zombie tried to finish anything"


async def test_a_freeze_shorter_than_that_costs_nothing(url: str, tmp_path: Path, rng: random.Random) -> None:
    async with cluster(url, tmp_path, ROTA_DEAD_AFTER="30", ROTA_LEASE="2") as it:
        for _ in range(5):
            victim = rng.choice(it.replicas)
            before = victim.replica_id
            victim.send(signal.SIGSTOP)
            await asyncio.sleep(rng.uniform(0.5, 1.5))
            victim.send(signal.SIGCONT)
            assert victim.replica_id == before
        await it.verdict()
        assert it.count("ReplicaDeposed") == 0
        assert await it.value("select coalesce(sum(losses), 0) from job_runs") == 0


async def test_what_a_zombie_claims_after_its_burial_is_not_forgotten(url: str, tmp_path: Path) -> None:
    """It still trusts itself, and claims under the number that the others have struck off."""
    it = Cluster(url, tmp_path, ROTA_BEAT="1", ROTA_LEASE="8", ROTA_DEAD_AFTER="10")
    try:
        await it.lay_out([])
        [zombie] = await it.start(1)
        await asyncio.sleep(0.3)
        zombie.send(signal.SIGSTOP)
        await it.sql(f"delete from replicas where id = {zombie.replica_id}")
        run_id = await it.enqueue("nap", seconds=3.0)
        zombie.send(signal.SIGCONT)
        await zombie.said("ReplicaJoined", count=2)
        row = await it.reached(run_id, "succeeded", 20)
        assert row["replica_id"] == zombie.replica_id
        await it.stop()
    finally:
        await it.close()


async def _inside_a_handler(it: Cluster, victim: Process) -> None:
    """So that it has something to finish when it comes back: one that takes a while, and writes nothing meanwhile."""
    deadline = time.monotonic() + 1.5
    while not it.executing(victim, ("steady", "child")) and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)


async def _freeze(it: Cluster, victim: Process, seconds: float) -> bool:
    """Whether the others gave it up in the meantime."""
    await _inside_a_handler(it, victim)
    incarnation, joins = victim.replica_id, len(victim.saw("ReplicaJoined"))
    victim.send(signal.SIGSTOP)
    frozen = time.monotonic()

    async def buried() -> bool:
        gone = not await it.sql(f"select id from replicas where id = {incarnation}")
        return gone or (time.monotonic() - frozen > 6.0)

    try:
        await until("the frozen replica is buried", buried)
        await asyncio.sleep(max(0.0, seconds - (time.monotonic() - frozen)))
        deposed = not await it.sql(f"select id from replicas where id = {incarnation}")
    finally:
        victim.send(signal.SIGCONT)
    if deposed:
        event = await victim.said("ReplicaJoined", count=joins + 1)
        assert event["replica_id"] > incarnation
    return deposed
