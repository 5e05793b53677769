"""Both stores, always; `ROTA_CLUSTER_KINDS=postgres15` tries another one."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.cluster.cluster import ROUNDS, new_random
from tests.harness import Databases

STORES = os.environ.get("ROTA_CLUSTER_KINDS", "postgres,sqlite").split(",")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """More rounds take more time."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(240 + 15 * ROUNDS))


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, databases: Databases, tmp_path: Path) -> str:
    """An empty database of each kind."""
    return databases.new(request.param, tmp_path)


@pytest.fixture
def rng() -> random.Random:
    return new_random()
