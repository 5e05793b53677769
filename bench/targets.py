"""Targets: what the figures are to reach first. Beside raw SQL or another system they hold on any machine.

An amount of work in a second was set on a machine on which raw SQL drained 81,547 runs a second with one connection.
On a slower one it is also seen what that leaves of it, by what raw SQL drains in the same run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

Figure = dict[str, Any]
_SET_AT = 81_547.0


@dataclass(frozen=True, slots=True)
class Target:
    """At least so many times raw, or the figure of another measurement or system; or a value not to be exceeded."""

    what: str
    """How the name of the figure begins."""
    store: str = "postgres"
    ratio: float | None = None
    least: float | None = None
    most: float | None = None
    beside: tuple[str, float] | None = None
    """The name of another figure of rota's, and how many times it this one is to be."""
    system: tuple[str, float] | None = None
    """Another system, and how many times its figure ours is to be."""
    work: bool = False
    """A slower machine does less of it in a second."""

    def __str__(self) -> str:
        wishes = []
        if self.ratio is not None:
            wishes.append(f"{self.ratio:g} x raw")
        if self.least is not None:
            wishes.append(f">= {self.least:,g}")
        if self.most is not None:
            wishes.append(f"<= {self.most:,g}")
        if self.beside is not None:
            wishes.append(f"{self.beside[1]:g} x {self.beside[0]}")
        if self.system is not None:
            wishes.append(f"{self.system[1]:g} x {self.system[0]}")
        return ", ".join(wishes)

    def within_reach(self, figure: Figure) -> bool:
        """Not where raw SQL, which does the least that has to be done, misses it: that is the machine."""
        raw = figure["raw"]
        return raw is None or bool((self.most or raw) >= raw >= (self.least or raw))

    def at(self, speed: float) -> Target:
        """What is left of it on a machine of this speed; a faster one has to do no more."""
        part = min(speed, 1.0)
        least, most = (
            None if self.least is None else self.least * part,
            None if self.most is None else self.most / part,
        )
        return replace(self, least=least, most=most) if self.work else self

    def reached(self, figure: Figure, figures: list[Figure]) -> bool | None:
        """None when what it is to be compared with was not measured."""
        value, answers = figure["value"], []
        if self.ratio is not None:
            answers.append(None if figure["ratio"] is None else figure["ratio"] >= self.ratio)
        if self.least is not None:
            answers.append(value >= self.least)
        if self.most is not None:
            answers.append(value <= self.most)
        if self.beside is not None:
            answers.append(_times(value, _find(figures, self.beside[0], figure["store"], "rota"), self.beside[1]))
        if self.system is not None:
            answers.append(
                _times(value, _find(figures, figure["what"], figure["store"], self.system[0]), self.system[1])
            )
        if False in answers:
            return False
        return None if None in answers else True


def _times(value: float, other: Figure | None, factor: float) -> bool | None:
    return None if other is None else value >= factor * float(other["value"])


def _find(figures: list[Figure], what: str, store: str, system: str) -> Figure | None:
    return next((f for f in figures if (f["what"], f["store"], f["system"]) == (what, store, system)), None)


_AT_ONCE = "enqueue from 20 connections at once"
_ASYNC = "drain, async no-op, 1 process"
FIRST = (
    Target(_ASYNC, ratio=0.6, system=("pgqueuer", 2.5)),
    Target("drain, async no-op, 2 processes", ratio=0.6),
    Target("drain, plain functions in threads", beside=(_ASYNC, 0.5)),
    Target(_ASYNC, store="sqlite", ratio=0.3),
    Target("drain, plain functions in threads", store="sqlite", beside=(_ASYNC, 0.5)),
    Target("drain of", least=0.8),
    Target("enqueue one by one", ratio=0.8),
    Target("enqueue_many, 1000 at a time, with keys", ratio=0.3),
    # No collapse from NOTIFY: nearly as many as when there is none.
    Target(_AT_ONCE, beside=(f"{_AT_ONCE}, without hints", 0.8)),
    Target("pick-up p50", most=2.0),
    Target("pick-up p99", most=5.0),
    Target("tick lateness p99", most=25.0),
    Target("tick lateness p99", store="sqlite", most=25.0),
    Target("10,000 schedules due at once, last run row written", most=0.6, work=True),
    Target("10,000 schedules due at once, last run started", most=1.0, work=True),
    Target("100,000 schedules due of", least=25_000, work=True),
    Target("idle queries per second", most=1.0),
    Target("idle CPU of a replica", most=1.0),
    Target("idle CPU of a replica", store="sqlite", most=1.0),
    Target("failover, kill -9, p99", most=1000.0),
    Target("failover, kill -9, p99", store="sqlite", most=1000.0),
    Target("failover, frozen", most=10.0),
    Target("failover, frozen", store="sqlite", most=10.0),
    Target("failover, silent cut", most=10.0),
    Target("memory, 100,000 queued runs, 10,000 schedules, peak", most=80.0),
    Target("memory, 100,000 queued runs, 10,000 schedules, peak", store="sqlite", most=80.0),
)


def target_of(figure: Figure) -> Target | None:
    """The one with the longest name that fits. What others are measured by is not measured by itself."""
    controls = {t.beside[0] for t in FIRST if t.beside} - {t.what for t in FIRST}
    if figure["what"] in controls:
        return None
    fitting = [t for t in FIRST if t.store == figure["store"] and figure["what"].startswith(t.what)]
    return max(fitting, key=lambda t: len(t.what), default=None) if figure["system"] == "rota" else None


def speed_of(figures: list[Figure]) -> float | None:
    """Of this machine, beside the one on which amounts of work were set."""
    drain = _find(figures, _ASYNC, "postgres", "rota")
    return None if drain is None or drain["raw"] is None else float(drain["raw"]) / _SET_AT
