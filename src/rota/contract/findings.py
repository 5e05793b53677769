"""Findings: what somebody who looks after a store would see, and what to do about it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

from rota.contract.row import Row

Level = Literal["ok", "warning", "problem"]


class Finding(Row, frozen=True, kw_only=True):
    """One thing that was looked at."""

    level: Level
    check: str
    """What was looked at, in a word or three."""
    said: str
    """How it is."""
    advice: str | None = None
    """What to do about it; None where there is nothing to do."""


def ok(check: str, said: str) -> Finding:
    return Finding(level="ok", check=check, said=said)


def warning(check: str, said: str, advice: str) -> Finding:
    """It works, and somebody should know."""
    return Finding(level="warning", check=check, said=said, advice=advice)


def problem(check: str, said: str, advice: str) -> Finding:
    """A replica would not start, or would not keep its promises."""
    return Finding(level="problem", check=check, said=said, advice=advice)


class Diagnosis(ABC):
    @abstractmethod
    async def diagnose(self) -> list[Finding]:
        """Look at the database itself: whether it answers, how it is set, what this user may do.

        Needs no open store and no tables, changes nothing, and raises nothing: trouble is a finding.
        """
