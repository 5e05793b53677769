"""Places: what a worker has room for. A tick that gets one starts in the transaction that makes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from rota.contract.row import Row


class Places(Row, frozen=True, kw_only=True):
    replica_id: int
    token: int
    """What is started is claimed under it."""
    lanes: tuple[tuple[frozenset[str], int], ...]
    """Jobs, and how many places they share."""

    def given_to(self, jobs: Iterable[str]) -> list[int | None]:
        """In which lane each of these runs gets a place, by the names of their jobs: first come, first served."""
        left = [room for _, room in self.lanes]
        lane_of = {job: lane for lane, (names, _) in enumerate(self.lanes) for job in names}
        given: list[int | None] = []
        for job in jobs:
            lane = lane_of.get(job)
            if lane is not None and left[lane]:
                left[lane] -= 1
                given.append(lane)
            else:
                given.append(None)
        return given

    @property
    def jobs(self) -> list[tuple[str, int]]:
        """Every job with its lane."""
        return [(job, lane) for lane, (names, _) in enumerate(self.lanes) for job in names]


Start: TypeAlias = Callable[[], Places | None]
"""Asked as late as possible: what there is room for by then."""


def nowhere() -> None:
    """No tick starts at once."""
