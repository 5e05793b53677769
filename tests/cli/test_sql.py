"""`rota sql` prints what `rota migrate` does; `rota migrate --check` says whether there is something to do."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import apsw
import pytest
import sqlalchemy

from rota.schema import SCHEMA
from rota.stores.script import migration_script
from tests.cli.calling import call, called
from tests.harness import Databases, execute
from tests.patience import PATIENCE

SHELLS = [[sys.executable, "-m", "apsw"], *([["sqlite3"]] if shutil.which("sqlite3") else [])]


@pytest.fixture
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a second file may be."""
    return tmp_path_factory.mktemp("other")


def script(store: str, *more: str) -> str:
    said = call("sql", "--store", store, *more)
    assert said.code == 0, said.err
    return said.out


def shell(command: list[str], path: Path, text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, str(path)], input=text, text=True, capture_output=True, check=False, timeout=PATIENCE
    )


async def tables(url: str) -> list[tuple[object, ...]]:
    """Everything that the database has, as it would describe it itself, and the migrations it thinks it had."""
    book = await execute(url, "select version, name, compatible_with from migrations order by version")
    if url.startswith("sqlite"):
        found = await execute(url, "select type, name, tbl_name, rtrim(sql, char(10)) from sqlite_master order by name")
        return [*found, *await execute(url, "select name, seq from sqlite_sequence order by name"), *book]
    columns = await execute(
        url,
        "select table_name, column_name, data_type, column_default, is_nullable from information_schema.columns"
        " where table_schema = 'rota' order by 1, ordinal_position",
    )
    indexes = await execute(url, "select indexdef from pg_indexes where schemaname = 'rota' order by 1")
    functions = await execute(
        url, "select pg_get_functiondef(oid) from pg_proc where pronamespace = 'rota'::regnamespace order by 1"
    )
    rules = await execute(
        url,
        "select conrelid::regclass::text, pg_get_constraintdef(oid) from pg_constraint"
        " where connamespace = 'rota'::regnamespace order by 1, 2",
    )
    triggers = await execute(
        url,
        "select pg_get_triggerdef(t.oid) from pg_trigger t join pg_class c on c.oid = t.tgrelid"
        " where c.relnamespace = 'rota'::regnamespace and not t.tgisinternal order by 1",
    )
    options = await execute(
        url, "select relname, reloptions from pg_class where relnamespace = 'rota'::regnamespace order by 1"
    )
    return [*columns, *indexes, *functions, *rules, *triggers, *options, *book]


async def migrated(databases: Databases, kind: str, folder: Path) -> list[tuple[object, ...]]:
    url = databases.new(kind, folder)
    assert (await called("migrate", "--url", url)).code == 0
    return await tables(url)


@pytest.mark.parametrize("steps", [[(0, SCHEMA)], [(n, n + 1) for n in range(SCHEMA)]], ids=["at once", "one by one"])
async def test_psql_makes_the_same_tables(
    databases: Databases, tmp_path: Path, other: Path, steps: list[tuple[int, int]]
) -> None:
    url = databases.new("postgres", tmp_path)
    for start, end in steps:
        text = script("postgres", "--from", str(start), "--to", str(end))
        databases.server().psql_file(url, text)
    assert await tables(url) == await migrated(databases, "postgres", other)
    assert (await called("migrate", "--url", url)).out == f"tables are at version {SCHEMA}\n"
    before = await tables(url)
    with pytest.raises(RuntimeError, match="already exists"):
        databases.server().psql_file(url, script("postgres"))
    assert await tables(url) == before


@pytest.mark.parametrize("command", SHELLS, ids=lambda command: Path(command[-1]).name)
async def test_the_sqlite_shell_makes_the_same_tables(
    databases: Databases, tmp_path: Path, other: Path, command: list[str]
) -> None:
    path = tmp_path / "rota.db"
    for n in range(SCHEMA):
        done = shell(command, path, script("sqlite", "--from", str(n), "--to", str(n + 1)))
        assert (done.returncode, done.stderr) == (0, "")
    url = f"sqlite:///{path}"
    assert await tables(url) == await migrated(databases, "sqlite", other)
    assert (await called("migrate", "--url", url)).out == f"tables are at version {SCHEMA}\n"
    before = await tables(url)
    again = shell(command, path, script("sqlite"))
    assert again.returncode != 0
    assert "already exists" in again.stderr
    assert await tables(url) == before


async def test_tools_that_bring_their_own_transaction_can_run_it(
    databases: Databases, tmp_path: Path, other: Path
) -> None:
    """Alembic's `op.execute(text)` is `connection.execute(sqlalchemy.text(text))`."""
    url = databases.new("postgres", tmp_path)
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))

    def upgrade() -> None:
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text(script("postgres", "--no-transaction")))
        engine.dispose()

    await asyncio.to_thread(upgrade)
    assert await tables(url) == await migrated(databases, "postgres", other)


async def test_sqlite_can_run_it_in_a_transaction_of_somebody_else(
    databases: Databases, tmp_path: Path, other: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'rota.db'}"
    connection = apsw.Connection(str(tmp_path / "rota.db"))
    with connection:
        connection.execute(script("sqlite", "--no-transaction"))
    connection.close()
    assert await tables(url) == await migrated(databases, "sqlite", other)


def test_the_same_versions_print_the_same_text_and_the_steps_are_its_parts() -> None:
    for store in ("postgres", "sqlite"):
        assert script(store) == script(store)
    whole = migration_script("postgres")
    for n in range(SCHEMA):
        part = migration_script("postgres", n, n + 1)
        assert part.split("\n", 1)[1] in whole


def test_the_store_is_that_of_the_url() -> None:
    assert call("sql", ROTA_URL="postgresql://nowhere/x").out == script("postgres")
    assert call("sql", "--url", "sqlite:///x.db").out == script("sqlite")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--from", "99"], "there is no such version: tables go from 0 (none) to"),
        (["--to", "99"], "there is no such version"),
        (["--to", "0"], "there is no such version"),
        (["--from", str(SCHEMA)], "there is nothing to do"),
    ],
)
def test_versions_that_are_not_there_are_refused(arguments: list[str], complaint: str) -> None:
    said = call("sql", "--store", "sqlite", *arguments)
    assert (said.code, said.out) == (1, "")
    assert complaint in said.err


def test_check_tells_whether_there_is_something_to_do_and_does_nothing(url: str) -> None:
    for _ in range(2):
        behind = call("migrate", "--check", "--url", url)
        assert behind.code == 1
        assert behind.out == f"tables are at version 0, and {SCHEMA} is needed: run `rota migrate`\n"
    if url.startswith("sqlite"):
        assert not Path(url.removeprefix("sqlite:///")).exists()
    done = call("migrate", "--json", "--url", url)
    assert (done.code, done.data["behind"], len(done.data["applied"])) == (0, False, SCHEMA)
    current = call("migrate", "--check", "--url", url)
    assert (current.code, current.out) == (0, f"tables are at version {SCHEMA}\n")
    assert call("migrate", "--check", "--json", "--url", url).data == {
        "version": SCHEMA, "needed": SCHEMA, "applied": [], "behind": False,
    }  # fmt: skip
