"""The live view of the demo: a pure function from a scene and a size to text. It never has more lines or columns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta

from rich.text import Text

from rota.cli.scene import Actor, Entry, Happening, Line, Scene

COLOURS = {"anna": "cyan", "ben": "magenta", "cleo": "yellow"}
_NAMES = re.compile(rf"\b({'|'.join(COLOURS)})\b")
_COMING, _WAITING, _SKIPPED = Text("·", "dim"), Text("?", "dim"), Text("-", "dim")
_ORPHANED, _FAILED, _RESCUED = Text("x", "bold red"), Text("!", "bold red"), Text("A", "bold reverse")
_UNUSUAL = ("running", "waiting", "orphaned", "skipped", "failed")
_LEFT = 28
_STORY = 5
_ROOMY = 28
"""Lines that a terminal has if there are to be empty ones."""
_AHEAD = 2
"""Seconds of the future that the time line has."""


def board(scene: Scene, width: int, height: int) -> Text:
    """The whole view. In a low terminal the story keeps its newest lines; the ledger has what the rest leaves."""
    gap = [Text()] if height >= _ROOMY else []
    lines = [
        _title(scene),
        *gap,
        _heading("replicas", "real processes, the same program"),
        *(_actor(actor) for actor in scene.actors),
        *gap,
        _heading("schedules", "one letter for each tick: the initial of the one replica that ran it"),
        *_timelines(scene, width),
        _legend(),
        *gap,
        _heading("what happened"),
    ]
    story = [told(happening) for happening in scene.story] or [Text("  nothing yet", "dim")]
    told_here = max(1, min(_STORY, height - len(lines)))
    lines += [*story[-told_here:], *(Text() for _ in range(told_here - len(story))), *gap]
    room = max(0, height - len(lines) - 1)
    lines += [_heading("ledger", _balance(scene)), *(noted(entry) for entry in scene.ledger[-room:])]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Text("\n", no_wrap=True, end="").join(lines[:height])


def told(happening: Happening) -> Text:
    """One line of the story."""
    line = Text(f"{happening.at:5.1f} s  ")
    line.append_text(coloured(happening.text, "bold red" if happening.grave else "bold"))
    return line


def noted(entry: Entry) -> Text:
    """One line of the ledger."""
    line = Text(f"  {entry.due:%H:%M:%S}  {entry.job:<12}")
    if entry.fate == "skipped":
        why = "the one before still ran" if entry.reason == "overlap" else entry.reason
        return line.append(f"{'-':<6}skipped: {why}", "dim")
    line.append(f"{entry.by or '-':<6}", COLOURS.get(entry.by or "", ""))
    line.append(entry.fate, "green" if entry.fate == "done" else "bold red")
    line.append(f" in {_duration(entry.took)}")
    if entry.attempt > 1:
        line.append(f", attempt {entry.attempt}")
    if entry.rescued:
        line.append(", rescued", "bold green")
    return line


def coloured(text: str, style: str = "") -> Text:
    """Names of replicas in their colours."""
    line = Text(text, style)
    for found in _NAMES.finditer(text):
        line.stylize(COLOURS[found[1]], *found.span())
    return line


def _title(scene: Scene) -> Text:
    kind = "one SQLite file" if scene.kind == "SQLite" else "one Postgres"
    line = Text("rota demo", "bold reverse")
    line.append(f"  {len(scene.actors)} replicas share {kind}", "not reverse")
    clock = "the books are being closed" if scene.closing else f"{scene.elapsed:.0f} s of {scene.seconds:.0f}"
    line.append(f"  |  {scene.now:%H:%M:%S} UTC  |  {clock}", "not bold not reverse")
    return line


def _heading(name: str, note: str = "") -> Text:
    line = Text(name.upper(), "bold")
    if note:
        line.append(f"  {note}", "not bold dim")
    return line


def _balance(scene: Scene) -> str:
    """The books so far, in one line."""
    fates = Counter(tick.fate for tick in scene.ticks)
    twice = len(scene.ticks) - len({(tick.job, tick.due) for tick in scene.ticks})
    parts = [f"{len(scene.ticks)} ticks so far", f"{fates['done']} completed"]
    parts += [
        f"{fates[fate]} {fate}" for fate in ("running", "waiting", "orphaned", "skipped", "failed") if fates[fate]
    ]
    return ", ".join([*parts, f"{twice} twice"])


def _legend() -> Text:
    marks = (
        (_COMING, "to come"), (_WAITING, "waiting"), (_ORPHANED, "its replica died"), (_RESCUED, "rescued"),
        (_SKIPPED, "skipped, one still ran"),
    )  # fmt: skip
    return Text("  ").join([Text(), *(Text.assemble(mark, (f" {meaning}", "dim")) for mark, meaning in marks)])


def _actor(actor: Actor) -> Text:
    colour = COLOURS.get(actor.name, "")
    line = Text("  ")
    if actor.killed:
        line.append(f"x {actor.name:<5} pid {actor.pid:<8}", f"{colour} dim")
        line.append(f"{actor.done:>3} done", "dim").append("  killed -9", "bold red")
        return line.append(f" in {' and '.join(actor.doing)}" if actor.doing else "")
    line.append(f"● {actor.name:<5}", f"bold {colour}").append(f" pid {actor.pid:<8}", "dim")
    line.append(f"{actor.done:>3} done")
    if actor.term is not None:
        line.append(f"  LEADER term {actor.term}", "bold")
    if actor.count is not None:
        line.append(f"  SINGLETON count {actor.count}", "bold")
    if actor.doing:
        line.append(f"  {', '.join(actor.doing)}", colour)
    return line


def _timelines(scene: Scene, width: int) -> Iterable[Text]:
    """A row for each schedule, a column for each second; the kill has its column too."""
    cell = 2 if (scene.seconds + 6) * 2 <= width - _LEFT else 1
    columns = max(1, (width - _LEFT) // cell)
    begin = int(scene.started.timestamp())
    begin = max(begin, int(scene.now.timestamp()) + _AHEAD - columns + 1)
    yield _axis(scene, begin, cell)
    for line in scene.lines:
        yield _timeline(line, begin, columns, cell)


def _axis(scene: Scene, begin: int, cell: int) -> Text:
    line = Text(f"  {'':<12}{'every':<6}{'next':<8}", "dim")
    if scene.killed_at is not None and (column := int(scene.killed_at.timestamp()) - begin) >= 0:
        return line.append(" " * (column * cell)).append("▼ kill -9", "bold red not dim")
    start = scene.started + timedelta(seconds=begin - int(scene.started.timestamp()))
    return line.append(f"{start:%H:%M:%S}", "dim")


def _timeline(line: Line, begin: int, columns: int, cell: int) -> Text:
    due = "-" if line.next_in is None else f"{line.next_in:.1f} s"
    row = Text(f"  {line.job:<12}").append(f"{line.every} s".ljust(6), "dim").append(due.ljust(8))
    at = {int(tick.due.timestamp()) - begin: tick for tick in line.ticks}
    for column in range(columns):
        row.append_text(_mark(at[column])) if column in at else row.append(" ")
        row.append(" " * (cell - 1))
    row.rstrip()
    return row


def _mark(tick: Entry) -> Text:
    """One character for a tick."""
    fixed = {"coming": _COMING, "waiting": _WAITING, "orphaned": _ORPHANED, "skipped": _SKIPPED, "failed": _FAILED}
    if tick.fate in fixed:
        return fixed[tick.fate]
    initial, colour = (tick.by or "?")[0], COLOURS.get(tick.by or "", "")
    if tick.fate == "running":
        return Text(initial, f"{colour} underline")
    return Text(initial.upper(), f"bold reverse {colour}") if tick.rescued else Text(initial, f"bold {colour}")


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
