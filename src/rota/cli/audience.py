"""Who the demo is shown to: a terminal, as a view that moves, or anything else, line by line."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from rota.cli.board import board, coloured, noted, told
from rota.cli.sandbox import embedded_is_installed
from rota.cli.scene import Scene
from rota.cli.verdict import Verdict, print_verdict


class Audience(Protocol):
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trail: TracebackType | None
    ) -> None: ...
    def show(self, scene: Scene) -> None: ...


class Screen:
    """A view that fills the terminal while it moves; then the terminal is as it was, and the story is printed."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, screen=True, auto_refresh=False)
        self._last: Scene | None = None

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trail: TracebackType | None
    ) -> None:
        self._live.stop()
        if error is None and self._last is not None:
            for happening in self._last.story:
                self._console.print(told(happening))

    def show(self, scene: Scene) -> None:
        self._last = scene
        self._live.update(board(scene, self._console.width, self._console.height), refresh=True)


class Lines:
    """What is new, a line each."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: set[object] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trail: TracebackType | None
    ) -> None: ...

    def show(self, scene: Scene) -> None:
        for line in self.news(scene):
            self._console.print(line, soft_wrap=True)

    def news(self, scene: Scene) -> list[Text]:
        """The lines that this scene adds to those that were shown before."""
        clock = f"{scene.elapsed:5.1f} s"
        return [
            *(coloured(f"{clock}  {a.name} has joined, pid {a.pid}") for a in scene.actors if self._is_new(a.name)),
            *(told(happening) for happening in scene.story if self._is_new(happening)),
            *(Text(clock).append_text(noted(entry)) for entry in scene.ledger if self._is_new(entry.run_id)),
        ]

    def _is_new(self, what: object) -> bool:
        if what in self._shown:
            return False
        self._shown.add(what)
        return True


def facing(console: Console, *, plain: bool) -> Audience:
    """A view that moves where it can move, and is not unwanted."""
    moving = console.is_terminal and not console.is_dumb_terminal and not plain
    return Screen(console) if moving else Lines(console)


def epilogue(console: Console, verdicts: Sequence[Verdict]) -> None:
    """The verdict, and what to do next."""
    console.print()
    print_verdict(console, verdicts)
    if not all(verdict.clean for verdict in verdicts):
        console.print("[bold red]The books do not balance.[/]")
        return
    console.print("[bold green]Every tick is accounted for: none lost, none twice.[/]")
    rota = "rota" if shutil.which("rota") else sys.argv[0]
    tries = (
        (f"{rota} run rota.cli.sample:app", "in two terminals; then kill -9 one"),
        (f"{rota} demo --postgres" if embedded_is_installed() else "make demo-postgres", "the same on a Postgres"),
        (f"{rota} soak --minutes 2", "two replicas, and many kills"),
    )
    console.print("\n[bold]Try it yourself[/]")
    width = max(len(command) for command, _ in tries)
    for command, what in tries:
        console.print(Text(f"  {command:<{width}}", "bold").append(f"   {what}", "not bold dim"), soft_wrap=True)
