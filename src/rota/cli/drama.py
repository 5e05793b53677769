"""What `rota demo` plays: everybody works, one is killed with -9, the others go on, the books are checked."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from io import TextIOWrapper

from rich.console import Console

from rota import Rota
from rota.cli.audience import Audience, epilogue, facing
from rota.cli.fleet import Fleet
from rota.cli.scene import Scene
from rota.cli.stage import perform
from rota.cli.verdict import Verdict, close_books
from rota.cli.watcher import Watcher

NAMES = ("anna", "ben", "cleo")
_LOOK_EVERY = 0.2
_LEADER_FROM, _ANYBODY_FROM = 0.3, 0.5
"""Parts of the time after which it is time to kill."""
_PATIENCE = 15.0
"""Seconds that are added if it has not come to a kill."""


def play(seconds: int, *, url: str | None, postgres: bool, plain: bool) -> bool:
    """Whether it ended well."""
    console = Console(highlight=False)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # what cannot show a character still shows the rest
    kind = "Postgres" if postgres or (url and not url.startswith("sqlite")) else "SQLite"
    console.print(f"Three replicas on one {kind} database, {seconds} s.", soft_wrap=True)

    async def act(app: Rota, fleet: Fleet) -> list[Verdict]:
        fleet.environment = {"ROTA_CONCURRENCY": "1"}  # so that the work is seen to be shared out
        for name in NAMES:
            fleet.start(name)
        await fleet.joined(app.store)
        starting.stop()
        with facing(console, plain=plain) as audience:
            verdicts = await Drama(app, fleet, Watcher(app.store, kind, seconds), audience, seconds).run()
        if not all(verdict.clean for verdict in verdicts):
            console.print(f"The replicas said:\n{fleet.said()}", markup=False, soft_wrap=True)
        return verdicts

    with console.status("Starting ...") as starting:
        verdicts = perform(act, url=url, postgres=postgres)
    epilogue(console, verdicts)
    return all(verdict.clean for verdict in verdicts)


@dataclass
class Drama:
    """Everybody works; one is killed; the others go on; the books are closed."""

    app: Rota
    fleet: Fleet
    watcher: Watcher
    audience: Audience
    seconds: float

    async def run(self) -> list[Verdict]:
        killed = False
        while (scene := await self._look()).elapsed < self.seconds + (0 if killed else _PATIENCE):
            if not killed and (victim := self._victim(scene)):
                killed = await self._strike(victim)
            await asyncio.sleep(_LOOK_EVERY)
        self.watcher.closing = True
        closing = asyncio.create_task(close_books(self.app))
        try:
            while not closing.done():
                await self._look()
                await asyncio.wait([closing], timeout=_LOOK_EVERY)
        finally:
            closing.cancel()
        await self._look()
        return closing.result()

    async def _look(self) -> Scene:
        self.fleet.check()
        scene = await self.watcher.look()
        self.audience.show(scene)
        return scene

    def _victim(self, scene: Scene) -> str | None:
        """Who is to die: somebody in the middle of a run; one who leads, too, unless that cannot be had soon."""
        at_work = self.watcher.at_work()
        for actor in scene.actors:
            part = _LEADER_FROM if actor.term is not None else _ANYBODY_FROM
            if actor.name in at_work and scene.elapsed >= part * self.seconds:
                return actor.name
        return None

    async def _strike(self, victim: str) -> bool:
        """Kill it in the middle of a run, or not at all: it is frozen first, or the run might be over by then."""
        self.fleet.freeze(victim)
        in_hand = await self.watcher.in_hand(victim)
        if not in_hand:
            self.fleet.thaw(victim)
            return False
        await self.watcher.killed(victim, self.fleet.kill(victim), in_hand)
        return True
