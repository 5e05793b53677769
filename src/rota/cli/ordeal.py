"""What `rota soak` does to two workers: kills, until the time is over; and the report."""

from __future__ import annotations

import asyncio
import random
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from rota import Rota
from rota.cli.fleet import Fleet
from rota.cli.stage import perform
from rota.cli.verdict import Verdict, close_books, print_verdict

_NAMES = ("one", "two")
_LOOK_EVERY, _SAY_EVERY = 0.25, 30.0


def undergo(minutes: float, *, url: str | None, kill_every: float) -> bool:
    """Whether it was clean."""
    console = Console(highlight=False)
    kills = f"a kill about every {kill_every:g} s" if kill_every else "no kills"
    console.print(f"Two replicas on one database for {minutes:g} minutes, {kills}.", soft_wrap=True)
    ordeal = Ordeal(console, minutes * 60, kill_every)
    verdicts = perform(ordeal.run, url=url)
    print_verdict(console, verdicts)
    clean = all(verdict.clean for verdict in verdicts)
    end = "[bold green]clean[/]" if clean else "[bold red]NOT clean[/]"
    console.print(f"{minutes:g} minutes, {ordeal.kills} kills: {end}", soft_wrap=True)
    if not clean:
        console.print(f"The replicas said:\n{ordeal.said}", markup=False, soft_wrap=True)
    return clean


class Ordeal:
    """Two workers that are killed and started again."""

    def __init__(self, console: Console, seconds: float, kill_every: float) -> None:
        self._console, self._seconds, self._kill_every = console, seconds, kill_every
        columns = (TextColumn("{task.description}"), BarColumn(None), TextColumn("{task.fields[kills]} kills"))
        still = not console.is_terminal or console.is_dumb_terminal
        self._bar = Progress(*columns, TimeRemainingColumn(), console=console, disable=still)
        self._task = self._bar.add_task("soaking", total=seconds, kills=0)
        self._say_at = 0.0
        self.kills = 0
        self.said = ""

    async def run(self, app: Rota, fleet: Fleet) -> list[Verdict]:
        for name in _NAMES:
            fleet.start(name)
        await fleet.joined(app.store)
        with self._bar:
            await self._kill_and_restart(fleet)
            self._bar.update(self._task, description="closing the books")
            verdicts = await close_books(app)
        await fleet.stop()
        self.said = fleet.said()
        return verdicts

    async def _kill_and_restart(self, fleet: Fleet) -> None:
        started = time.monotonic()
        kill_at = self._pause()
        while (gone := time.monotonic() - started) < self._seconds:
            fleet.check()
            if gone >= kill_at:
                kill_at = gone + self._pause()
                victim = random.choice(_NAMES)
                fleet.kill(victim)
                fleet.start(victim)
                self.kills += 1
                self._say_at = gone
            self._say(gone)
            await asyncio.sleep(min(_LOOK_EVERY, self._seconds - gone))

    def _pause(self) -> float:
        return random.uniform(0.5, 1.5) * self._kill_every if self._kill_every else float("inf")

    def _say(self, gone: float) -> None:
        """The bar moves; where there is none, a line for each kill and now and then."""
        self._bar.update(self._task, completed=gone, kills=self.kills)
        if self._bar.disable and gone >= self._say_at:
            self._say_at = gone + _SAY_EVERY
            self._console.print(f"{gone:6.0f} s of {self._seconds:.0f}, {self.kills} kills")
