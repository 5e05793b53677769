"""What the demo shows at one moment, as plain data: replicas, schedules with their ticks, the ledger and the story."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

Fate = Literal["coming", "waiting", "running", "orphaned", "done", "skipped", "failed"]
"""What became of a tick so far. Orphaned: the replica that ran it died, and no other has it yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """A replica."""

    name: str
    pid: int
    killed: bool = False
    """Then `doing` is what it was in the middle of."""
    term: int | None = None
    """Of the leadership, if it leads."""
    count: int | None = None
    """Of the singleton that counts, if it lives here."""
    doing: tuple[str, ...] = ()
    done: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A row of the ledger: what became of one tick."""

    run_id: int
    job: str
    due: datetime
    fate: Fate
    by: str | None = None
    """The replica that has it now, or had it last."""
    took: float = 0.0
    attempt: int = 1
    rescued: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A schedule and its ticks."""

    job: str
    every: int
    next_in: float | None = None
    ticks: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """Something worth telling, so many seconds after the start. Names of replicas in the text are shown in their
    colours."""

    at: float
    text: str
    grave: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    kind: str
    """SQLite or Postgres."""
    now: datetime
    started: datetime
    seconds: float
    actors: tuple[Actor, ...] = ()
    lines: tuple[Line, ...] = ()
    ledger: tuple[Entry, ...] = ()
    """What has come to an end, oldest first."""
    story: tuple[Happening, ...] = ()
    killed_at: datetime | None = None
    closing: bool = False

    @property
    def elapsed(self) -> float:
        return (self.now - self.started).total_seconds()

    @property
    def ticks(self) -> list[Entry]:
        """All that were due so far."""
        return [tick for line in self.lines for tick in line.ticks if tick.fate != "coming"]
