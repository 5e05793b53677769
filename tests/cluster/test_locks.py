"""Locks between real processes that are killed, frozen and restarted: whatever they protect never overlaps."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rota import Rota
from tests.cluster.cluster import DEAD_AFTER, ROUNDS, SETTINGS, Process
from tests.cluster.trace import Trace
from tests.harness import execute
from tests.patience import PATIENCE

KILLS = max(5, ROUNDS // 4)


class Lockers:
    """Processes that do the same under locks."""

    def __init__(self, url: str, folder: Path, task: str, **environment: str) -> None:
        self._folder, self.trace, self.counter = folder, Trace(folder / "trace"), folder / "counter"
        self._environment = SETTINGS | {
            "ROTA_URL": url, "ROTA_TEST_TRACE": str(self.trace), "ROTA_TEST_TASK": task,
        } | environment  # fmt: skip
        self.counter.write_text("0" * 9)
        self.all: list[Process] = []

    async def start(self, count: int = 1) -> list[Process]:
        made = []
        for _ in range(count):
            number = len(self.all)
            made.append(await Process.spawn("tests.cluster.locker", self._folder, number, **self._environment))
            self.all.append(made[-1])
        for process in made:
            await process.said("Ready")
        return made

    async def further(self, lines: int, seconds: float = PATIENCE) -> None:
        """Wait until so many lines more have been written."""
        wanted, deadline = len(self.trace.lines()) + lines, time.monotonic() + seconds
        while len(self.trace.lines()) < wanted:
            assert time.monotonic() < deadline, f"nothing more happens: {[p.events[-3:] for p in self.all]}"
            await asyncio.sleep(0.02)


@asynccontextmanager
async def lockers(url: str, folder: Path, task: str, **environment: str) -> AsyncIterator[Lockers]:
    async with Rota(url).client():
        pass
    made = Lockers(url, folder, task, **environment)
    try:
        yield made
    finally:
        for process in made.all:
            await process.kill()


def lost_updates(made: Lockers) -> int:
    values = [line["value"] for line in made.trace.lines()]
    return len(values) - len(set(values))


async def test_no_update_is_lost_though_processes_are_killed(url: str, tmp_path: Path, rng: random.Random) -> None:
    async with lockers(url, tmp_path, "count") as it:
        running = await it.start(5)
        await it.further(20)
        for _ in range(KILLS):
            # Most often the one that has it: it has just written, or is about to.
            last = it.trace.lines()[-1]["pid"]
            victim = next((p for p in running if p.pid == last), None) if rng.random() < 0.7 else None
            victim = victim or rng.choice(running)
            await victim.kill()
            running.remove(victim)
            running += await it.start(1)
            await it.further(10)
        codes = await asyncio.gather(*(process.terminate() for process in running))
        assert set(codes) == {0}
        values = [line["value"] for line in it.trace.lines()]
        assert lost_updates(it) == 0
        assert values == sorted(values)
        # One that was killed may have written without saying so.
        assert values[-1] <= int(it.counter.read_text()) <= len(values) + KILLS
        assert len({line["pid"] for line in it.trace.lines()}) >= 5
        assert [row for row in await execute(url, "select holder from lock_holders") if row] == []


async def test_without_the_lock_updates_are_lost(url: str, tmp_path: Path) -> None:
    """The test above can fail."""
    async with lockers(url, tmp_path, "count", ROTA_TEST_LOCKED="no") as it:
        await it.start(3)
        await it.further(100)
        assert lost_updates(it) > 0


async def test_a_frozen_holder_is_replaced_and_finds_its_block_cancelled(url: str, tmp_path: Path) -> None:
    sqlite = url.startswith("sqlite")
    async with lockers(url, tmp_path, "step") as it:
        [old] = await it.start(1)
        fence = (await old.said("Held"))["fence"]
        [new] = await it.start(1)
        for _ in range(5):
            await it.further(5)
            old.send(signal.SIGSTOP)
            try:
                taken = await new.said("Held", seconds=DEAD_AFTER + 4.0 if sqlite else 20.0)
                await it.further(5)
                break
            except AssertionError:
                # A process frozen inside a write transaction of SQLite keeps the file to itself.
                assert sqlite
            finally:
                old.send(signal.SIGCONT)
        assert taken["fence"] > fence
        await old.said("Lost")
        await it.further(10)
        fences = [line["fence"] for line in it.trace.lines()]
        assert fences == sorted(fences), "the old holder went on after the new one had begun"
        # It waits for it again, and is not forgotten.
        await new.kill()
        assert (await old.said("Held", count=2, seconds=5.0))["fence"] > taken["fence"]


async def test_what_is_killed_is_replaced_long_before_its_silence_tells(url: str, tmp_path: Path) -> None:
    async with lockers(url, tmp_path, "step", ROTA_LEASE="50", ROTA_DEAD_AFTER="60") as it:
        [holder] = await it.start(1)
        await holder.said("Held")
        [waiting] = await it.start(1)
        await it.further(5)
        await holder.kill()
        await waiting.said("Held", seconds=20.0)


async def test_things_of_one_key_never_overlap_on_five_replicas(url: str, tmp_path: Path) -> None:
    async with lockers(url, tmp_path, "edit") as it:
        for process in await it.start(5):
            await process.said("Done", seconds=40.0)
        assert overlaps(it) == 0
        assert len(it.trace.lines()) == 5 * 15 * 2


async def test_without_serialization_they_do(url: str, tmp_path: Path) -> None:
    async with lockers(url, tmp_path, "edit", ROTA_TEST_LOCKED="no") as it:
        [process] = await it.start(1)
        await process.said("Done")
        assert overlaps(it) > 0


def overlaps(made: Lockers) -> int:
    """How often something of a key began while something else of it was going on."""
    going_on: dict[str, set[str]] = {}
    found = 0
    for line in made.trace.lines():
        inside = going_on.setdefault(line["key"], set())
        if line["phase"] == "start":
            found += bool(inside)
            inside.add(line["nonce"])
        else:
            inside.remove(line["nonce"])
    return found
