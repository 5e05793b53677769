"""Member: one replica of a cluster, as the test sees it."""

from __future__ import annotations

from typing import Literal

from rota.settings import Settings
from rota.testing.stepped import Twin

Condition = Literal["alive", "paused", "cut off", "killed"]


class Member:
    """One replica of the cluster, as the test sees it."""

    def __init__(self, index: int, twin: Twin, settings: Settings) -> None:
        self.index, self._twin = index, twin
        self.condition: Condition = "alive"
        self._beat, self._lease, self._dead_after = settings.beat, settings.lease, settings.dead_after
        self._silent_for: float = 0.0

    def __repr__(self) -> str:
        return f"<{self.name}, {self.condition}>"

    @property
    def name(self) -> str:
        """As in the table of replicas."""
        return self._twin.settings.replica

    @property
    def ids(self) -> frozenset[int]:
        """The numbers that it has had; a new one each time that it came back after it was given up."""
        return frozenset(self._twin.incarnations)

    @property
    def running(self) -> tuple[int, ...]:
        """The runs that it has in hand."""
        return () if self.condition == "killed" else tuple(run_id for run_id, _ in self._twin.worker.running())
