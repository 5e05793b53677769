"""A cluster of electors, and the steady clock they measure with, which can be moved."""

from __future__ import annotations

from pathlib import Path

import pytest

from rota.clock import steady
from rota.electors import kubernetes, lease_lock
from tests.electors.cluster import Cluster


class Clock:
    def __init__(self) -> None:
        self._ahead = 0.0

    def now(self) -> float:
        return steady() + self._ahead

    def skip(self, seconds: float) -> None:
        self._ahead += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(kubernetes, "steady", made.now)
    monkeypatch.setattr(lease_lock, "steady", made.now)
    return made


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """Whatever API server the tests are run against."""
    return Cluster(tmp_path)


@pytest.fixture
def faulty(tmp_path: Path) -> Cluster:
    """Always the test server, because it can be told to fail."""
    return Cluster(tmp_path, real=False)
