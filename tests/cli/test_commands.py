"""The commands as a person or a script meets them: what they print, how they exit."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rota import Rota
from rota.cli.run import address
from rota.schema import SCHEMA
from tests.app.waiting import until
from tests.harness import execute

SERVICE = """
import logging
from rota import Rota
from rota.schema import SCHEMA
app = Rota()

@app.every("1s")
async def tick() -> None:
    logging.getLogger("shop").info("ticked")
"""


def rota(*arguments: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rota", *arguments],
        cwd=folder, env=os.environ | {"NO_COLOR": "1", "COLUMNS": "200"} | environment, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip


async def test_run_is_a_replica_until_it_is_told_to_stop(url: str, tmp_path: Path) -> None:
    (tmp_path / "service.py").write_text(SERVICE)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rota", "run", "service:app", "--name", "worker-1", cwd=tmp_path,
        env=os.environ | {"ROTA_URL": url}, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    app = Rota(url)
    try:
        async with app.client():

            async def ran() -> bool:
                return bool(await execute(url, "select 1 from job_runs where state = 'succeeded'"))

            await until(ran)
            assert [row.name for row in await app.store.list_replicas()] == ["worker-1"]
            process.send_signal(signal.SIGTERM)
            _, said = await process.communicate()
            assert process.returncode == 0, said.decode()
            assert b"joined" in said
            where = b"SQLite file " if url.startswith("sqlite") else b"Postgres at "
            assert b"INFO rota: starting worker-1 on " + where in said
            assert b": 1 job (tick)\n" in said
            assert re.search(rb"INFO shop: ticked \[replica_id=\d+ replica=worker-1 job=tick run_id=\d+ ", said)
            assert await app.store.list_replicas() == []
    finally:
        if process.returncode is None:
            process.kill()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["run", "nowhere:app"], "there is no module 'nowhere' here"),
        (["run", "service:other"], "'service' has no Rota named 'other'; it has: service:app"),
        (["run", "broken:app"], "'broken' imports 'no_such_library', which is not installed here"),
        (["run", ":app"], "is not of the form MODULE:APP"),
        (["run", "..service:app"], "is not of the form MODULE:APP"),
        (["run", "service:app", "--url", "postgresql://u:hunter2/x@h/d"], "url cannot be read as postgresql://"),
        (["run", "service:app", "--url", "mysql://u:hunter2@h/d"], "neither sqlite:///FILE nor postgresql://"),
    ],
)
def test_wrong_usage_gets_one_clear_sentence(tmp_path: Path, arguments: list[str], complaint: str) -> None:
    (tmp_path / "service.py").write_text(SERVICE)
    (tmp_path / "broken.py").write_text("import no_such_library")
    done = rota(*arguments, folder=tmp_path)
    assert done.returncode == 1
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
    assert "hunter2" not in done.stderr + done.stdout


def test_migrate_says_what_it_did(url: str, tmp_path: Path) -> None:
    first, second = (rota("migrate", "--url", url, folder=tmp_path) for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 0)
    applied = ["applied 0001_engine", "applied 0002_one_at_a_time"]
    assert first.stdout.splitlines() == [*applied, f"tables are at version {SCHEMA}"]
    assert second.stdout.splitlines() == [f"tables are at version {SCHEMA}"]


def test_a_store_without_tables_is_refused_when_migrating_is_off(url: str, tmp_path: Path) -> None:
    (tmp_path / "service.py").write_text(SERVICE)
    done = rota("run", "service:app", folder=tmp_path, ROTA_URL=url, ROTA_MIGRATE="off")
    assert done.returncode == 1
    assert "run `rota migrate`" in done.stderr


def test_an_unreachable_database_is_tried_for_a_while_then_named(tmp_path: Path) -> None:
    (tmp_path / "service.py").write_text(SERVICE)
    nowhere = "postgresql://someone:hunter2@127.0.0.1:1/nowhere"
    done = rota("run", "service:app", folder=tmp_path, ROTA_URL=nowhere, ROTA_CONNECT_TIMEOUT="0.5")
    assert done.returncode == 1
    assert "Postgres at 127.0.0.1:1/nowhere does not answer" in done.stderr
    assert "tried for 0.5 s" in done.stderr
    assert "hunter2" not in done.stderr


def test_a_short_soak_is_clean(url: str, tmp_path: Path) -> None:
    done = rota("soak", "--minutes", "0.15", "--kill-every", "3", "--url", url, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "clean" in done.stdout


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("postgresql://ada:secret@box:5433/shop", "Postgres at box:5433, database shop"),
        ("postgresql://ada:secret@/shop?host=/run/postgres", "Postgres at /run/postgres, database shop"),
        ("postgresql:///shop", "Postgres at the default socket, database shop"),
    ],
)
def test_the_first_line_of_a_replica_names_the_place_and_no_password(url: str, place: str) -> None:
    assert address(Rota(url).settings) == place


def test_a_command_that_draws_nothing_does_not_import_what_draws() -> None:
    """It takes as long as everything else together; whoever presses TAB, or starts a replica, waits for it."""
    slow = {"rich", "asyncpg", "apsw"}
    code = f"import sys, rota.cli.main; print({slow} & {{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
