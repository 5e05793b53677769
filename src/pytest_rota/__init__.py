"""Fixtures of rota for pytest. This module stands apart from the package `rota`, and imports it only when a fixture is
used: pytest loads it in every run, also of suites that have nothing to do with rota.

No fixture needs an event loop, so they work with whatever runs a suite's coroutines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from rota import Rota
    from rota.testing import Clock, Cluster
    from rota.testing.postgres import Template


class MakeCluster(Protocol):
    """What the fixture `rota_cluster` gives: `cluster` on the test's own database."""

    def __call__(
        self, app: Rota | Callable[[], Rota], *, replicas: int = 1, start: datetime | None = None
    ) -> AbstractAsyncContextManager[Cluster]: ...


@pytest.fixture
def rota_sqlite_url(tmp_path: Path) -> str:
    """The url of an SQLite file that is not there yet."""
    return f"sqlite:///{tmp_path / 'rota.db'}"


@pytest.fixture(scope="session")
def rota_postgres_server() -> Iterator[str]:
    """The url of a Postgres server on which databases may be made: the embedded one. Override it to use another."""
    from rota.testing.postgres import EmbeddedPostgres

    server = EmbeddedPostgres()
    yield server.url
    server.close()


@pytest.fixture(scope="session")
def _rota_template(rota_postgres_server: str) -> Iterator[Template]:
    from rota.testing.postgres import Template

    template = Template(rota_postgres_server)
    yield template
    template.close()


@pytest.fixture
def rota_postgres_url(_rota_template: Template) -> Iterator[str]:
    """The url of a Postgres database with rota's tables, for this test alone."""
    url = _rota_template.new_database()
    yield url
    _rota_template.drop(url)


@pytest.fixture
def rota_url(rota_sqlite_url: str) -> str:
    """The url of an empty database: SQLite. Override it to choose Postgres, or both."""
    return rota_sqlite_url


@pytest.fixture
def rota_clock(rota_url: str) -> Clock:
    """The clock of the database `rota_url`."""
    from rota.testing import Clock

    return Clock(rota_url)


@pytest.fixture
def rota_cluster(rota_url: str) -> MakeCluster:
    """`async with rota_cluster(app, replicas=3) as it:`, on the database `rota_url`."""
    from rota.testing import cluster

    def make(
        app: Rota | Callable[[], Rota], *, replicas: int = 1, start: datetime | None = None
    ) -> AbstractAsyncContextManager[Cluster]:
        return cluster(app, replicas=replicas, start=start, url=rota_url)

    return make
