"""Databases as the fixtures of rota give them to others: each test has a copy of one template."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.testing.postgres import Template
from tests.harness import Databases


@pytest.fixture(scope="session")
def server(databases: Databases) -> str:
    return os.environ.get("ROTA_TEST_DATABASE_URL") or databases.server().url("postgres")


@pytest.fixture(scope="session")
def template(server: str) -> Iterator[Template]:
    made = Template(server)
    yield made
    made.close()


@pytest.fixture(params=["postgres", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'rota.db'}"
        return
    template: Template = request.getfixturevalue("template")
    made = template.new_database()
    yield made
    template.drop(made)


@pytest.fixture
def other_url(request: pytest.FixtureRequest, url: str, tmp_path: Path) -> Iterator[str]:
    """Another empty database of the same kind."""
    if url.startswith("sqlite:"):
        yield f"sqlite:///{tmp_path / 'other.db'}"
        return
    template: Template = request.getfixturevalue("template")
    made = template.new_database()
    yield made
    template.drop(made)
