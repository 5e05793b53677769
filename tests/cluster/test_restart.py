"""The database goes away and comes back: a server restarted, or a file that somebody else keeps locked."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from pathlib import Path

import apsw

from tests.cluster.cluster import ROUNDS, Cluster, cluster
from tests.harness import Server

LOCKER = """
import sys, apsw
connection = apsw.Connection(sys.argv[1])
connection.set_busy_timeout(10_000)
connection.execute("begin exclusive; update clock set offset_seconds = offset_seconds + 3600")
print("locked", flush=True)
sys.stdin.read()
"""


async def test_a_restarted_server_costs_no_tick(own_server: Server, tmp_path: Path, rng: random.Random) -> None:
    async with cluster(own_server.new_database(), tmp_path) as it:
        for _ in range(ROUNDS):
            await asyncio.sleep(rng.uniform(0.1, 0.6))
            await asyncio.to_thread(own_server.stop, rng.choice(["fast", "immediate"]))
            await asyncio.sleep(rng.choice([0.0, 0.0, rng.uniform(0.0, 1.0)]))
            await asyncio.to_thread(own_server.start)
        await _everybody_is_back(it)
        await it.verdict()
        assert it.count("ServiceFailed") > 0, "nobody noticed any restart"


async def test_a_file_locked_by_somebody_else_costs_no_tick(tmp_path: Path, rng: random.Random) -> None:
    path = tmp_path / "rota.db"
    async with cluster(f"sqlite:///{path}", tmp_path) as it:
        for _ in range(ROUNDS):
            await asyncio.sleep(rng.uniform(0.05, 0.3))
            await _hold(path, rng.uniform(0.2, 1.3), kill=rng.random() < 0.5)
        await _everybody_is_back(it)
        await it.verdict()
        assert await it.value("select offset_seconds from clock") == 0


async def _hold(path: Path, seconds: float, *, kill: bool) -> None:
    """Another process takes the file for itself, and then lets go of it: dead with its transaction open, or alive."""
    locker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", LOCKER, str(path), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert locker.stdout is not None
    assert locker.stdin is not None
    assert await locker.stdout.readline() == b"locked\n"
    await asyncio.sleep(seconds)
    if kill:
        locker.send_signal(signal.SIGKILL)
    else:
        locker.stdin.close()
    await locker.wait()


async def _everybody_is_back(it: Cluster) -> None:
    """Each of the three processes is in the cluster, under whatever number."""
    deadline = asyncio.get_running_loop().time() + 20
    pids = {replica.pid for replica in it.replicas}
    while True:
        try:
            if {row[0] for row in await it.sql("select pid from replicas")} == pids:
                return
        except (OSError, apsw.BusyError) as error:
            print(error)
        assert asyncio.get_running_loop().time() < deadline, await it.sql("select id, pid from replicas")
        await asyncio.sleep(0.05)
