"""`rota soak`: two workers for as long as you like, with kills; one ledger entry per window, and the report."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from rota import Rota
from rota.cli.demo import TARGET, close_books, print_verdict
from rota.cli.fleet import Fleet


def soak(
    minutes: Annotated[float, typer.Option(min=0.1, help="How long")] = 10.0,
    url: Annotated[str | None, typer.Option(help="Database; a SQLite file of its own if left out")] = None,
    kill_every: Annotated[
        float, typer.Option(help="Kill and restart a worker about this often, in seconds; 0: never")
    ] = 20.0,
) -> None:
    """Two workers, killed now and then; at the end every schedule window must have exactly one ledger entry."""
    with tempfile.TemporaryDirectory(prefix="rota-soak-") as folder:
        where = url or f"sqlite:///{Path(folder) / 'rota.db'}"
        clean = asyncio.run(_soak(where, minutes * 60, kill_every, Path(folder) / "log"))
    raise typer.Exit(0 if clean else 1)


async def _soak(url: str, seconds: float, kill_every: float, log: Path) -> bool:
    console = Console(highlight=False)
    fleet, app = Fleet(TARGET, url, str(log)), Rota(url)
    names = ("one", "two")
    kills, started = 0, time.monotonic()
    try:
        async with app.client():
            for name in names:
                fleet.start(name)
            while (gone := time.monotonic() - started) < seconds:
                pause = random.uniform(0.5, 1.5) * kill_every if kill_every else 30.0
                await asyncio.sleep(min(pause, seconds - gone))
                if kill_every and time.monotonic() - started < seconds:
                    victim = random.choice(names)
                    fleet.kill(victim)
                    fleet.start(victim)
                    kills += 1
                console.print(f"{time.monotonic() - started:6.0f} s of {seconds:.0f}, {kills} kills")
            verdicts = await close_books(app, console)
            await fleet.stop()
    finally:
        fleet.abandon()
    print_verdict(console, verdicts)
    clean = all(verdict.clean for verdict in verdicts)
    console.print(f"{seconds / 60:.1f} minutes, {kills} kills: " + ("clean" if clean else "NOT clean"))
    return clean
