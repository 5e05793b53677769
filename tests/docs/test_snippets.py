"""The documentation does what it says: snippets run, tables agree with the code, links lead somewhere.

CONTRIBUTING.md has the rules by which snippets are run.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rota import Context, Rota, Settings
from rota.baseline import read_baseline
from rota.cli.main import app as command_line
from rota.store import RunFilter
from tests.app.waiting import until
from tests.harness import Databases, execute, move_clock
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
SNIPPETS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES = [*SNIPPETS, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]

_FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (\w+)\.py\n")
_EXAMPLE = re.compile(r"# (examples/\S+)\n")
_OPENS = re.compile(r"async with app(:|,| as|\.client\()")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced snippet. `stores` is empty when it is for every store, and `theirs` when it is for another library."""

    language: str
    stores: tuple[str, ...]
    text: str
    where: str

    def is_for(self, url: str) -> bool:
        return not self.stores or ("sqlite" if url.startswith("sqlite") else "postgres") in self.stores


def blocks(page: Path, language: str | None = None) -> list[Block]:
    text = page.read_text()
    found = [
        Block(match[1], tuple(match[2].split()), match[3], f"{page.name}:{text.count(chr(10), 0, match.start()) + 2}")
        for match in _FENCE.finditer(text)
    ]
    return [block for block in found if language in (None, block.language)]


def pages_with(language: str) -> list[Any]:
    return [pytest.param(page, id=page.stem) for page in SNIPPETS if blocks(page, language)]


@pytest.mark.parametrize("page", SNIPPETS, ids=lambda page: page.stem)
def test_every_snippet_is_of_a_kind_that_is_run(page: Path) -> None:
    for block in blocks(page):
        kinds = ("console",) if page.stem == "commands" else ("python", "sql", "sh", "yaml", "toml", "crontab")
        assert block.language in kinds, f"{block.where}: nobody runs {block.language!r}"
        assert set(block.stores) <= {"postgres", "sqlite", "theirs"}, block.where
        if "theirs" in block.stores:
            compile(block.text, block.where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert page.read_text().count("```") == 2 * len(blocks(page))


# -- Python ----------------------------------------------------------------------------------------


@pytest.fixture
def desk(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which a page's snippets run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ROTA_URL", url)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) == str(tmp_path / f"{name}.py"):
            del sys.modules[name]


@pytest.mark.parametrize("page", pages_with("python"))
async def test_python_snippets_run_and_print_what_they_say(page: Path, url: str, desk: Path) -> None:
    await execute(url, "create table entries (account integer, amount integer)")
    names: dict[str, Any] = {"__name__": page.stem}
    async with asyncio.timeout(PATIENCE), AsyncExitStack() as opened:
        for block in blocks(page, "python"):
            if not block.is_for(url) or _EXAMPLE.match(block.text):
                continue
            if file := _FILE.match(block.text):
                (desk / f"{file[1]}.py").write_text(block.text)
                importlib.invalidate_caches()
                importlib.import_module(file[1])
                continue
            printed: list[str] = []
            names["print"] = lambda *values, said=printed: said.append(" ".join(map(str, values)))
            await _run(block, names, opened)
            if wanted := _promised(block.text):
                assert printed == wanted, block.where


async def _run(block: Block, names: dict[str, Any], opened: AsyncExitStack) -> None:
    """What waits runs while the app is open; what declares, while it is not."""
    code = compile(block.text, block.where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    if not code.co_flags & inspect.CO_COROUTINE:
        await opened.aclose()
        await asyncio.to_thread(eval, code, names)  # a plain program has no event loop
    elif _OPENS.search(block.text):
        await opened.aclose()
        await eval(code, names)
    else:
        if names["app"]._store is None:
            await opened.enter_async_context(names["app"])
        await eval(code, names)


@pytest.mark.parametrize("page", SNIPPETS, ids=lambda page: page.stem)
def test_what_is_shown_of_an_example_is_what_it_says(page: Path) -> None:
    for block in blocks(page, "python"):
        if example := _EXAMPLE.match(block.text):
            assert block.text[example.end() :] in (ROOT / example[1]).read_text(), block.where


def _promised(text: str) -> list[str]:
    """What the comments behind, or right below, a `print` say that it prints."""
    wanted, below = [], False
    for line in text.splitlines():
        call, mark, comment = line.partition("  # ")
        if call.lstrip().startswith("print("):
            wanted += [comment] if mark else []
            below = not mark
        elif below and line.startswith("# "):
            wanted.append(line.removeprefix("# "))
        else:
            below = False
    return wanted


# -- SQL -------------------------------------------------------------------------------------------


async def history(url: str) -> None:
    """The database that the SQL snippets meet: schedules, runs of every kind, an outage of an hour, some trouble."""
    app = Rota(url, hints=True)

    @app.every("5m")
    async def collect(ctx: Context, max_x: int = 10) -> None: ...

    @app.cron("0 3 * * *", timezone="Europe/Paris")
    async def close_books() -> None: ...

    @app.job()
    async def report(day: str = "today") -> None: ...

    async def computed() -> bool:
        return all(schedule.row.next_run_at for schedule in await app.schedules())

    async def caught_up() -> object:
        return await app.store.find_runs(RunFilter(job_id="collect", states=("succeeded",)))

    async with app:
        await (await report.using(key="order-7", correlation_id="order-7").enqueue()).result(PATIENCE)
        await until(computed)
        await move_clock(url, 3600)
        await report.using(delay=86400).enqueue()  # also wakes the scheduler
        await until(caught_up)
    long_ago, lately = "'2026-01-01 00:00:00.000000'", f"'{datetime.now(UTC):%Y-%m-%d %H:%M:%S.%f}'"
    for statement in (
        "update scheduler_configs set cron = '0 4 * * *' where job_id = 'close_books'",
        "insert into scheduler_configs (job_id, name, cron, next_run_at)"
        f" values ('report', 'overdue', 'every 1h', {long_ago})",
        "insert into scheduler_configs (job_id, name, cron, invalid_reason) values ('report', 'bad', 'x', 'no cron')",
        "insert into job_runs (job_id, correlation_id, state, run_at, started_at)"
        f" values ('report', '1', 'running', {long_ago}, {long_ago})",
        "insert into scheduler_locks (config_id) select id from scheduler_configs where job_id = 'collect'",
        "update jobs set breaker = 'open' where job_id = 'report'",
        f"insert into lock_holders (token, name, fence, holder, expires_at) values (1, 'a', 1, 'x', {long_ago})",
        """insert into replicas (name, host, pid, jobs, session) values ('first', 'here', 1, '["report"]', '-')""",
        "insert into job_runs (job_id, correlation_id, state, attempt, error, run_at, started_at, finished_at)"
        f" values ('report', '2', 'failed', 2, 'ValueError: no', {lately}, {lately}, {lately})",
        "insert into job_runs (job_id, config_id, idempotency_key, correlation_id, state, run_at, due_at, started_at)"
        f" select job_id, id, 'schedule:1', '3', 'succeeded', {long_ago}, {long_ago}, {lately}"
        " from scheduler_configs where job_id = 'close_books'",
        "insert into roles (role, term, nonce, holder, elector) values ('leader', 1, 1, 'first', 'advisory')",
    ):
        await execute(url, statement)


def statements(block: Block) -> list[str]:
    return [part.strip() for part in re.split(r";\s*$", block.text, flags=re.MULTILINE) if part.strip()]


async def test_sql_snippets_find_or_change_something(url: str) -> None:
    await history(url)
    try:
        for block in [block for page in SNIPPETS for block in blocks(page, "sql") if block.is_for(url)]:
            for statement in statements(block):
                verb = statement.split()[0].upper()
                changes = verb in ("INSERT", "UPDATE", "DELETE")
                rows = await execute(url, f"{statement} RETURNING 1" if changes else statement)
                assert rows or not (changes or verb == "SELECT"), f"{block.where} finds nothing: {statement}"
    finally:
        await _dismiss_service(url)


async def _dismiss_service(url: str) -> None:
    """Roles belong to the server, not to the database."""
    if url.startswith("postgres") and await execute(url, "select from pg_roles where rolname = 'service'"):
        await execute(url, "drop owned by service")
        await execute(url, "drop role service")


def under(page: Path, heading: str) -> str:
    """The part of a page that a heading opens."""
    text = page.read_text()
    start = re.search(rf"^#+ {re.escape(heading)}$", text, re.MULTILINE)
    assert start, f"{page.name} has no heading {heading!r}"
    return re.split(r"^#+ ", text[start.end() :], maxsplit=1, flags=re.MULTILINE)[0]


def only_sql(page: Path, heading: str) -> list[str]:
    match = _FENCE.search(under(page, heading))
    assert match
    return statements(Block(match[1], (), match[3], page.name))


async def test_the_documented_ledger_accounts_for_every_tick(url: str) -> None:
    await history(url)
    [ledger] = only_sql(ROOT / "docs" / "sql.md", "The ledger")
    [(runs, not_run, ticks)] = [row[3:] for row in await execute(url, ledger) if row[1] == "collect"]
    app = Rota(url)
    async with app.client():
        [schedule] = await app.store.list_schedules("collect")
        rows = await app.store.find_runs(RunFilter(config_id=schedule.id))
    assert schedule.next_run_at is not None
    first = min(row.due_at for row in rows if row.due_at is not None)
    assert ticks == (schedule.next_run_at - first).total_seconds() // 300
    assert int(str(runs)) >= 1
    assert int(str(not_run)) >= 10


async def test_the_documented_rights_are_enough_for_a_replica(databases: Databases) -> None:
    url = databases.server().new_database()
    async with Rota(url).client():
        pass
    try:
        for statement in only_sql(ROOT / "docs" / "operations.md", "Roles"):
            await execute(url, statement)
        app = Rota(url.replace("postgres@", "service@"), migrate=False)

        @app.every("1h")
        async def tick() -> None: ...

        @app.job(transactional=True, concurrency_limit=1)
        async def work(ctx: Context) -> str:
            return str(await ctx.connection.fetchval("select current_user"))

        async with app:
            assert await (await work.enqueue()).result(PATIENCE) == "service"
            [schedule] = await app.schedules("tick")
            await (await schedule.trigger()).result(PATIENCE)
            await schedule.pause()
    finally:
        await _dismiss_service(url)


# -- the shell -------------------------------------------------------------------------------------


class Shell:
    """Runs the commands of a page, in order. Replicas are started, and stopped when the block ends."""

    def __init__(self, folder: Path, databases: Databases) -> None:
        self._folder, self._databases = folder, databases
        self._environment = os.environ | {"ROTA_URL": f"sqlite:///{folder / 'rota.db'}"}
        self._replicas: list[tuple[subprocess.Popen[bytes], Path]] = []
        self._started = 0
        self.crontab = ""
        self._shows: list[tuple[subprocess.Popen[bytes], Path]] = []

    def type(self, line: str) -> None:
        match shlex.split(line, comments=True):
            case ["rota", "run", *_] as command:
                self._replicas.append(self._start(command))
            case ["rota", "demo", *_] as command:
                self._shows.append(self._start(command))
            case ["rota", *_] as command:
                self._wait_for_replicas()
                deadline = time.monotonic() + PATIENCE
                while (done := self._run(command)).returncode:
                    # What a replica does after it has joined takes a moment.
                    told = f"{line}: {done.stdout}{done.stderr}"
                    assert self._replicas, told
                    assert time.monotonic() < deadline, told
            case ["crontab", "-l", ">", file]:
                (self._folder / file).write_text(self.crontab)
            case ["export", assignment]:
                name, _, value = assignment.partition("=")
                postgres = value.startswith("postgresql:")
                self._environment[name] = self._databases.new("postgres", self._folder) if postgres else value
            case ["make", target]:
                assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), line
            case ["pip", "install", package]:
                extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
                assert package in {f"rota[{extra}]" for extra in extras}, line
            case _:
                raise AssertionError(f"nobody knows how to check: {line}")

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", *command], cwd=self._folder, env=self._environment, check=False,
            capture_output=True, text=True, timeout=PATIENCE,
        )  # fmt: skip

    def _wait_for_replicas(self) -> None:
        for process, log in self._replicas:
            deadline = time.monotonic() + PATIENCE
            while "joined" not in log.read_text():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.02)

    def _start(self, command: list[str]) -> tuple[subprocess.Popen[bytes], Path]:
        self._started += 1
        log = self._folder / f"log-{self._started}"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", *command], cwd=self._folder, env=self._environment, stdout=output, stderr=output
            )
        return process, log

    def end_block(self) -> None:
        """All replicas of the block have joined; told to stop, they leave and say so."""
        replicas = self._replicas
        try:
            self._wait_for_replicas()
            self._replicas = []
            for process, _ in replicas:
                process.send_signal(signal.SIGTERM)
            for process, log in replicas:
                assert process.wait(30) == 0, log.read_text()
                assert "left" in log.read_text()
        finally:
            _end(replicas)

    def end_page(self) -> None:
        """What takes a while went on meanwhile."""
        try:
            for process, log in self._shows:
                assert process.wait(60) == 0, log.read_text()
        finally:
            _end(self._shows)


def _end(started: list[tuple[subprocess.Popen[bytes], Path]]) -> None:
    for process, _ in started:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.mark.parametrize("page", pages_with("sh"))
def test_commands_do_what_the_page_needs(page: Path, tmp_path: Path, databases: Databases) -> None:
    services = [block for source in (page, ROOT / "README.md") for block in blocks(source, "python")]
    service = next(block for block in services if block.text.startswith("# service.py\n"))
    (tmp_path / "service.py").write_text(service.text)
    shell = Shell(tmp_path, databases)
    for block in blocks(page, "toml"):
        name = block.text.splitlines()[0].removeprefix("# ")
        assert read_baseline(block.text, block.where), block.where
        (tmp_path / name).write_text(block.text)
    shell.crontab = "".join(block.text for block in blocks(page, "crontab"))
    for block in blocks(page, "sh"):
        for line in block.text.splitlines():
            shell.type(line)
        shell.end_block()
    shell.end_page()


@pytest.mark.parametrize(("arguments", "code"), [(["--version"], 0), (["run", "nowhere:app"], 1), (["run"], 2)])
def test_exit_codes_are_the_documented_ones(arguments: list[str], code: int) -> None:
    with pytest.raises(SystemExit) as ended:
        command_line(arguments)
    assert ended.value.code == code
    assert rows_of(under(ROOT / "docs" / "operations.md", "Run it"))[str(code)]


# -- tables and links ------------------------------------------------------------------------------


def rows_of(text: str) -> dict[str, list[str]]:
    """The rows of a table by their first cell, without the header."""
    table = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in table[2:]}


def test_the_table_of_settings_is_that_of_the_code() -> None:
    table = rows_of(under(ROOT / "docs" / "operations.md", "Settings"))
    defaults = Settings.load({})
    assert list(table) == [f"`{field.name}`" for field in fields(Settings)]
    for name, (environment, default, meaning) in table.items():
        bare = name.strip("`")
        assert environment == f"`ROTA_{bare.upper()}`"
        value = getattr(defaults, bare)
        assert default == ("host name and process id" if bare == "replica" else f"`{value}`" if value != "" else "none")
        assert meaning


async def test_the_tables_of_columns_are_those_of_the_database(url: str) -> None:
    page = ROOT / "docs" / "sql.md"
    async with Rota(url).client():
        pass
    sqlite = url.startswith("sqlite")
    tables = [
        str(name)
        for (name,) in await execute(
            url,
            "select name from sqlite_master where type = 'table' and name not like 'sqlite%'"
            if sqlite
            else "select table_name from information_schema.tables where table_schema = 'rota'",
        )
    ]
    described = re.findall(r"^### (\w+_\w+|jobs|replicas|roles|singletons)$", page.read_text(), re.MULTILINE)
    assert len(described) == 10
    for table in described:
        columns = await execute(
            url,
            f"select name from pragma_table_info('{table}')"
            if sqlite
            else "select column_name from information_schema.columns"
            f" where table_schema = 'rota' and table_name = '{table}'",
        )
        documented = [name for cell in rows_of(under(page, table)) for name in re.findall(r"`(\w+)`", cell)]
        assert sorted(documented) == sorted(str(name) for (name,) in columns), table
    rest = under(page, "The rest")
    assert {table for table in tables if table not in described and f"`{table}`" not in rest} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(page.read_text()):
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.is_file(), f"{page.name} links to {link}"
        assert not anchor or anchor in _anchors(target), f"{page.name} links to {link}"


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
