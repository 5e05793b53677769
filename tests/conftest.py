"""Fixtures: a real Postgres out of a wheel, a SQLite file, and tests that are coroutines."""

from __future__ import annotations

import asyncio
import inspect
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import Databases, Server, embedded_server


def pytest_configure() -> None:
    """A shell that starts us in the background has us ignore Ctrl-C, and so would every process of a test."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine runs on an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True


@pytest.fixture(scope="session")
def databases() -> Iterator[Databases]:
    made = Databases()
    yield made
    made.close()


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server that a test may stop, crash and set up as it likes."""
    made = embedded_server()
    yield made
    made.close()


@pytest.fixture(params=["postgres", "sqlite"])
def url(request: pytest.FixtureRequest, databases: Databases, tmp_path: Path) -> str:
    """An empty database of each store; tests/store tries other versions of Postgres too."""
    return databases.new(request.param, tmp_path)
