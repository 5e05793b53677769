"""Where the demo and the soak take place: a database, replicas on it, and nothing left behind however it ends."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import typer

from rota import Rota
from rota.cli.fleet import Fleet
from rota.cli.sandbox import sandbox
from rota.cli.verdict import require_unused, withdraw

T = TypeVar("T")
Play = Callable[[Rota, Fleet], Awaitable[T]]

_REACHED_WITHIN = 5.0


def perform(play: Play[T], *, url: str | None = None, postgres: bool = False) -> T:
    """Run a play, on a database of its own if no `url` is given. Ctrl-C ends it with 130, SIGTERM with 143."""
    told: list[signal.Signals] = []
    try:
        with sandbox(postgres=postgres) as (folder, own):
            return asyncio.run(_perform(play, url or own, folder, told, borrowed=url is not None))
    except KeyboardInterrupt:
        raise typer.Exit(128 + signal.SIGINT) from None
    except asyncio.CancelledError:
        raise typer.Exit(128 + told[0] if told else 1) from None


async def _perform(play: Play[T], url: str, folder: Path, told: list[signal.Signals], *, borrowed: bool) -> T:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def end(number: signal.Signals) -> None:
        told.append(number)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, end, number)
    app, fleet = Rota(url, connect_timeout=_REACHED_WITHIN), Fleet(url, folder / "log")
    async with app.client():
        await require_unused(app.store)
        try:
            return await play(app, fleet)
        finally:
            try:
                if borrowed:
                    await fleet.stop()
                    await withdraw(app)
            finally:
                fleet.abandon()
