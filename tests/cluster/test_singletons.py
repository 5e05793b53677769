"""Singletons in processes that are killed right after a change."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from rota import Rota
from tests.cluster.cluster import ROOT, SETTINGS
from tests.patience import PATIENCE

BODY = """
import asyncio, os, signal
from dataclasses import dataclass
from rota import Rota, Singleton

@dataclass
class Position:
    offset: int = 0

app = Rota()

@app.singleton(state=Position)
async def importer(me: Singleton[Position]) -> None:
    await me.executed()
    me.state.offset += 1
    os.kill(os.getpid(), signal.SIGKILL)

async def main() -> None:
    async with app:
        await asyncio.sleep(60)

asyncio.run(main())
"""
DEATHS = 5


async def test_what_was_changed_is_there_after_a_kill_right_behind_it(url: str, tmp_path: Path) -> None:
    program = tmp_path / "body.py"
    program.write_text(BODY)
    for _ in range(DEATHS):
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(program), cwd=ROOT, env=os.environ | SETTINGS | {"ROTA_URL": url}
        )
        assert await asyncio.wait_for(process.wait(), PATIENCE) == -9
    app = Rota(url)
    async with app.client():
        [row] = await app.store.list_singletons("importer")
        [seat] = (await app.store.look_roles())[0]
    assert (row.state, row.run_count, seat.term) == (f'{{"offset":{DEATHS}}}', DEATHS, DEATHS)
