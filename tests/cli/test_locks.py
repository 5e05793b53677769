"""`rota locks` as a person or a script meets it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from rota import LockLost, Rota
from tests.cli.test_commands import rota


async def test_who_holds_what_is_listed_and_taken_away(url: str, tmp_path: Path) -> None:
    async def call(*arguments: str) -> tuple[int, str, str]:
        done = await asyncio.to_thread(rota, "locks", *arguments, "--url", url, folder=tmp_path)
        assert "\x1b" not in done.stdout
        return done.returncode, done.stdout, done.stderr

    async def work(app: Rota, held: asyncio.Event) -> None:
        async with app.lock("[red]ledger[/red]"), app.lock(42), app.semaphore("gpu", limit=2):
            held.set()
            await asyncio.sleep(60)

    app = Rota(url, replica="web-1")
    async with app:
        assert await call("list") == (0, "no lock is held\n", "")
        assert await call("list", "--json") == (0, "[]\n", "")
        held = asyncio.Event()
        working = asyncio.create_task(work(app, held))
        await held.wait()
        code, shown, _ = await call("list")
        assert code == 0
        for text in ("[red]ledger[/red]", "rota:key:42", "rota:semaphore:gpu", "web-1 (replica 1)", " UTC ("):
            assert text in shown
        code, document, _ = await call("who", "rota:key:42", "--json")
        [row] = json.loads(document)
        assert (row["name"], row["fence"], row["holder"], row["alive"]) == ("rota:key:42", 1, "web-1", True)
        assert await call("who", "nothing") == (0, "nobody holds 'nothing'\n", "")
        code, _, complaint = await call("release", "nothing", "--yes")
        assert (code, complaint) == (
            1, "rota: nobody holds lock 'nothing'; `rota locks list` shows those that are held\n"
        )  # fmt: skip
        assert (await call("release", "rota:key:42"))[0] == 1  # nobody said yes
        assert not working.done()
        code, said, _ = await call("release", "rota:key:42", "--yes")
        assert code == 0
        assert "released 'rota:key:42'" in said
        with pytest.raises(LockLost, match="somebody took it away"):
            await working
        assert await call("list") == (0, "no lock is held\n", "")


def test_tables_that_are_not_there_are_not_made_by_looking(url: str, tmp_path: Path) -> None:
    done = rota("locks", "list", "--url", url, folder=tmp_path)
    assert done.returncode == 1
    assert "run `rota migrate`" in done.stderr
    assert list(tmp_path.iterdir()) == []  # no SQLite file either
