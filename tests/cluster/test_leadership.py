"""Leadership under faults, with real processes: one leader per role, its writes fenced, its hooks in order.

The history of every test is judged by tests/cluster/history.py when it ends.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from pathlib import Path

from rota import Rota
from rota.leader import EXIT_LOST
from tests.cluster.cluster import DEAD_AFTER, cluster, until
from tests.cluster.leaders import DEFAULTS, Leaders, apart, leaders
from tests.harness import Databases, Server

KILLS = int(os.environ.get("ROTA_ROUNDS", "3"))


async def test_a_killed_leader_is_replaced(url: str, tmp_path: Path) -> None:
    async with leaders(url, tmp_path) as it:
        for _ in range(KILLS):
            victim, term = await it.leader()
            await victim.kill()
            await it.saw("become", after=term)
            await it.replace(victim)


async def test_where_takeover_is_strict_nobody_begins_while_the_last_one_may_trust_itself(
    url: str, tmp_path: Path
) -> None:
    async with leaders(url, tmp_path, count=2, ROTA_TEST_STRICT="1", **DEFAULTS) as it:
        victim, term = await it.leader()
        killed = time.monotonic_ns()
        await victim.kill()
        _, won = await it.saw("won", after=term)
        # Counted from its last beat, which may be two old.
        silence = float(DEFAULTS["ROTA_LEASE"]) - 2 * float(DEFAULTS["ROTA_BEAT"])
        assert won["at"] - killed > silence * 1e9


async def test_a_frozen_leader_is_replaced_and_its_late_writes_are_refused(url: str, tmp_path: Path) -> None:
    async with leaders(url, tmp_path) as it:
        for _ in range(2):
            zombie, term = await it.leader()
            await it.freeze(zombie)
            successor, _ = await it.saw("become", after=term)
            assert successor is not zombie
            await it.leader(after=term)
            woken = time.monotonic_ns()
            zombie.send(signal.SIGCONT)

            async def refused(since: int = woken, term: int = term) -> bool:
                mine = [e for _, e in it.seen("write_refused") if e["term"] == term and e["since"] > since]
                return any(event["by"] == "ghost" for event in mine)

            await until("the ghost of the frozen leader is refused", refused)
            await it.steps_down(term)


async def test_a_leader_whose_connection_is_cut_steps_down(databases: Databases, tmp_path: Path) -> None:
    async with apart(databases.server(), tmp_path) as it:
        for _ in range(3):
            victim, term = await it.leader()
            it.proxies[victim.pid].cut()
            await it.steps_down(term)
            await it.leader(after=term)


async def test_a_leader_behind_a_silent_partition_steps_down_first(databases: Databases, tmp_path: Path) -> None:
    # Two seconds lie between its end and the next beginning: no pause of a busy machine is that long.
    async with apart(databases.server(), tmp_path, ROTA_LEASE="1.0", ROTA_DEAD_AFTER="3.0") as it:
        for _ in range(2):
            victim, term = await it.leader()
            it.proxies[victim.pid].mute()
            successor, became = await it.saw("become", after=term)
            assert successor is not victim
            [over] = [event for _, event in it.seen("over") if event["term"] == term]
            assert over["at"] < became["at"], "it believed in its term for longer than the others waited"
            it.proxies[victim.pid].unmute()
            await it.leader(after=term)


async def test_a_crash_of_the_server_ends_the_term_and_loses_no_write(own_server: Server, tmp_path: Path) -> None:
    async with leaders(own_server.new_database(), tmp_path) as it:
        for _ in range(2):
            _, term = await it.leader()
            await asyncio.to_thread(own_server.stop, "immediate")
            await asyncio.to_thread(own_server.start)
            await it.leader(after=term)


async def test_a_graceful_stop_hands_on_after_the_lose_hook(url: str, tmp_path: Path) -> None:
    async with leaders(url, tmp_path, ROTA_TEST_FAREWELL="0.3") as it:
        for _ in range(3):
            leaving, term = await it.leader()
            assert await leaving.terminate() == 0
            _, become = await it.saw("become", after=term)
            [(_, ended)] = [pair for pair in it.seen("lose_end") if pair[1]["term"] == term]
            assert ended["at"] < become["at"]
            await it.replace(leaving)


async def test_a_leader_that_is_asked_to_steps_down(url: str, tmp_path: Path) -> None:
    async with leaders(url, tmp_path, count=3, **DEFAULTS) as it:  # nobody dies here, also not of a busy machine
        first, term = await it.leader()
        await _ask(it, "leader", None)
        second, again = await it.leader(after=term)
        assert second is not first
        target = next(replica for replica in it.replicas if replica is not second)
        await _ask(it, "leader", target.replica_id)
        assert (await it.leader(after=again))[0] is target


async def _stands(it: Leaders, name: str) -> bool:
    app = Rota(it.url)
    async with app.client():
        return any(candidate.name == name for candidate in (await app.store.look_roles())[1])


async def _ask(it: Leaders, role: str, meant_for: int | None) -> None:
    app = Rota(it.url)
    async with app.client():
        await app.store.ask_step_down(role, meant_for=meant_for)


async def test_roles_are_spread_and_stay_so_after_a_kill(url: str, tmp_path: Path) -> None:
    async with leaders(url, tmp_path, ROTA_TEST_ROLES="a,b,c", ROTA_TEST_SETTLED="1.5") as it:
        await until("each leads one", lambda: _loads(it, [1, 1, 1]))
        victim = it.replicas[0]
        await victim.kill()
        it.replicas.remove(victim)
        await until("two lead three", lambda: _loads(it, [1, 2]))
        await it.start(1)
        await until("each leads one again", lambda: _loads(it, [1, 1, 1]))


async def _loads(it: Leaders, wanted: list[int]) -> bool:
    found = await it.sql("select replica_id from roles where replica_id is not null")
    alive = [replica.replica_id for replica in it.replicas]
    return sorted([row[0] for row in found].count(replica) for replica in alive) == wanted


async def test_a_process_that_is_told_so_ends_when_it_is_cut_off(databases: Databases, tmp_path: Path) -> None:
    async with apart(databases.server(), tmp_path, count=2, ROTA_EXIT_ON_LOST_LEADERSHIP="1") as it:
        victim, term = await it.leader()
        it.proxies[victim.pid].cut()
        assert await victim.gone() in (0, EXIT_LOST)
        it.replicas.remove(victim)
        await it.leader(after=term)


async def test_a_frozen_process_that_is_told_so_ends_when_it_wakes(url: str, tmp_path: Path) -> None:
    async with leaders(url, tmp_path, count=2, ROTA_EXIT_ON_LOST_LEADERSHIP="1") as it:
        victim, term = await it.leader()
        await it.freeze(victim)
        await it.saw("become", after=term)
        victim.send(signal.SIGCONT)
        assert await victim.gone() in (0, EXIT_LOST)


async def test_code_that_does_not_stop_is_reported_and_not_led_beside(databases: Databases, tmp_path: Path) -> None:
    async with apart(databases.server(), tmp_path, count=2, ROTA_TEST_STUBBORN="1") as it:
        victim, term = await it.leader()
        it.proxies[victim.pid].mute()
        successor, again = await it.leader(after=term)
        assert successor is not victim
        it.proxies[victim.pid].unmute()
        stuck = await victim.said("LeaderStuck", count=3)
        assert (stuck["role"], stuck["term"], stuck["what"]) == ("leader", term, "declare.<locals>.serve")
        await until("it is back", lambda: _stands(it, f"r{it.all.index(victim)}"))
        await successor.kill()
        it.replicas.remove(successor)
        # It would be the only one left; it does not begin anew beside what does not stop.
        await asyncio.sleep(2 * DEAD_AFTER)
        assert not it.seen("won", after=again)


async def test_ticks_of_leading_and_sharing_schedulers_are_made_once(
    url: str, tmp_path: Path, rng: random.Random
) -> None:
    async with cluster(url, tmp_path, count=2, ROTA_SCHEDULER="leader") as it:
        await it.start(1, ROTA_SCHEDULER="shared")
        for _ in range(KILLS):
            await asyncio.sleep(rng.uniform(0.2, 0.9))
            victim = rng.choice(it.replicas)
            await victim.kill()
            await it.replace(victim, ROTA_SCHEDULER=rng.choice(["leader", "shared"]))
        await it.verdict()


async def test_with_leading_schedulers_alone_no_tick_is_lost(url: str, tmp_path: Path) -> None:
    async with cluster(url, tmp_path, count=2, ROTA_SCHEDULER="leader") as it:
        for _ in range(2):
            [(leader,)] = await until(
                "somebody makes ticks", lambda: it.sql("select replica_id from roles where replica_id is not null")
            )
            victim = next((replica for replica in it.replicas if replica.replica_id == leader), it.replicas[0])
            await victim.kill()
            await it.replace(victim)
        await it.verdict()
