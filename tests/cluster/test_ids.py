"""Ids of real processes. `ROTA_TEST_IDS=1000000` makes so many in each of five."""

from __future__ import annotations

import asyncio
import heapq
import os
from array import array
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from rota import Rota, snowflake
from tests.harness import python

PROCESSES = 5
COUNT = int(os.environ.get("ROTA_TEST_IDS", "200000"))
MAKER = Path(__file__).with_name("id_maker.py")


def read(file: Path) -> array[int]:
    ids = array("q")
    ids.frombytes(file.read_bytes())
    return ids


async def test_ids_of_five_processes_are_distinct_and_grow(url: str, tmp_path: Path) -> None:
    async with Rota(url).client():
        pass
    files = [tmp_path / f"ids-{n}" for n in range(PROCESSES)]
    processes = [python(str(MAKER), url, str(COUNT), str(file)) for file in files]
    assert [await asyncio.to_thread(process.wait) for process in processes] == [0] * PROCESSES
    made = [read(file) for file in files]
    assert all(len(ids) >= COUNT for ids in made)
    assert all(before < after for ids in made for before, after in pairwise(ids))
    assert all(before < after for before, after in pairwise(heapq.merge(*made)))
    assert len({snowflake.parts(ids[0]).node for ids in made}) == PROCESSES
    for ids in made:
        assert abs((snowflake.parts(ids[-1]).at - datetime.now(UTC)).total_seconds()) < 60


async def test_a_forked_child_has_a_node_of_its_own(url: str, tmp_path: Path) -> None:
    script = tmp_path / "forks.py"
    script.write_text(
        "import asyncio, os, sys\n"
        "from rota import Rota, snowflake\n"
        "app = Rota(sys.argv[1])\n"
        "async def one():\n"
        "    async with app.client():\n"
        "        return await app.ids.next()\n"
        "mine = asyncio.run(one())\n"
        "child = os.fork()\n"
        "its = asyncio.run(one())\n"
        "assert its > mine\n"
        "same = snowflake.parts(its).node == snowflake.parts(mine).node\n"
        "if child == 0:\n"
        "    os._exit(same)\n"
        "assert same\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert await asyncio.to_thread(python(str(script), url).wait) == 0
