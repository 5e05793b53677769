"""The demo as a viewer meets it: what it shows, how it ends, and that nothing of it is left behind."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest

from rota import Context, Rota
from rota.cli.verdict import require_unused
from rota.cli.watcher import Watcher
from rota.errors import BadInput
from tests.cli.terminal import on_a_terminal
from tests.harness import execute, freeze_clock
from tests.patience import PATIENCE

CLEAN = "Every tick is accounted for: none lost, none twice."


@pytest.fixture
def folder() -> Iterator[Path]:
    """For temporary files, at a short path: a server has its socket there."""
    with tempfile.TemporaryDirectory(prefix="rota-test-") as made:
        yield Path(made)


def start(folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rota", "demo", *arguments], env=os.environ | {"TMPDIR": str(folder)} | environment,
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def read_until(process: subprocess.Popen[str], pattern: str, times: int) -> list[str]:
    """Read what it says up to the n-th line that has this; what was found."""
    assert process.stdout is not None
    found: list[str] = []
    while len(found) < times:
        line = process.stdout.readline()
        assert line, process.communicate()
        found += re.findall(pattern, line)
    return found


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("store", [[], ["--postgres"]], ids=["sqlite", "postgres"])
def test_line_by_line_it_shows_the_kill_the_rescue_and_clean_books(folder: Path, store: list[str]) -> None:
    process = start(folder, "--seconds", "5", *store)
    said, trouble = process.communicate(timeout=120)
    assert process.returncode == 0, said + trouble
    killed = re.search(r"kill -9 (\d+): (\w+) dies in the middle of (\w+) ([\d:]{8})", said)
    assert killed, said
    pid, victim, job, tick = killed.groups()
    assert f"{victim} has joined, pid {pid}" in said
    rescued = re.search(rf"(\w+) takes over {job} {tick}, \d+\.\d s after the kill", said)
    assert rescued, said
    assert rescued[1] != victim
    assert re.search(rf"{tick}  {job} +\w+ +done in .*rescued", said), said
    assert re.search(r"\w+ leads, term 1\n", said), said
    assert CLEAN in said
    assert "Try it yourself" in said
    assert "\x1b" not in said
    assert list(folder.glob("rota-demo-*")) == []


def test_on_a_terminal_it_is_a_view_that_ends_with_the_verdict(folder: Path) -> None:
    code, written = on_a_terminal("demo", "--seconds", "5", TMPDIR=str(folder))
    assert code == 0, written
    view, _, rest = written.partition("\x1b[?1049l")
    for shown in ("REPLICAS", "SCHEDULES", "WHAT HAPPENED", "LEDGER", "kill -9", "LEADER"):
        assert shown in view
    assert "takes over" in rest
    assert CLEAN in rest
    assert written.count("\x1b[?1049h") == 1
    assert written.rfind("\x1b[?25h") > written.rfind("\x1b[?25l")


def test_ctrl_c_ends_it_and_gives_the_terminal_back(folder: Path) -> None:
    code, written = on_a_terminal("demo", interrupt_at="LEDGER", TMPDIR=str(folder))
    assert code == 130
    assert "\x1b[?1049l" in written
    assert "Traceback" not in written
    assert list(folder.glob("rota-demo-*")) == []


def test_nothing_outlives_a_demo_that_is_killed(folder: Path) -> None:
    with start(folder, "--postgres", "--seconds", "600") as process:
        pids = [int(pid) for pid in read_until(process, r"has joined, pid (\d+)", 3)]
        pids.append(int(next(folder.glob("*/postgres/postmaster.pid")).read_text().split()[0]))
        assert all(alive(pid) for pid in pids)
        process.kill()
    deadline = time.monotonic() + PATIENCE
    while any(alive(pid) for pid in pids) or list(folder.glob("rota-demo-*")):
        assert time.monotonic() < deadline, pids
        time.sleep(0.05)


async def test_who_is_killed_was_in_the_middle_of_what_cannot_have_ended(url: str) -> None:
    """The end of anything else may be on its way to the database, which goes on where the replica is frozen."""
    app = Rota(url, replica="ben", shutdown_timeout=0.1)
    started = list[str]()

    @app.job()
    async def import_feed(ctx: Context) -> None:
        started.append(ctx.job)
        await asyncio.Event().wait()

    heartbeat = app.job(name="heartbeat")(import_feed.fn)
    async with app:
        watcher = Watcher(app.store, "any", 5)
        await freeze_clock(url, datetime.now(UTC))
        for job in (import_feed, heartbeat):
            await job.enqueue()
        while len(started) < 2:
            await asyncio.sleep(0.01)
        await watcher.look()
        assert [row.job_id for row in await watcher.in_hand("ben")] == ["import_feed"]
        await freeze_clock(url, datetime.now(UTC) + timedelta(seconds=60))
        assert await watcher.in_hand("ben") == []


async def test_a_row_that_somebody_removed_makes_it_fail(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'rota.db'}"
    with start(tmp_path, "--seconds", "5", "--url", url) as process:
        read_until(process, "heartbeat .* done", 2)
        second = "select id from job_runs where job_id = 'heartbeat' order by id limit 1 offset 1"
        await execute(url, f"delete from job_runs where id = ({second})")
        said, _ = process.communicate()
    assert process.returncode == 1, said
    assert "The books do not balance." in said
    assert CLEAN not in said
    assert await execute(url, "select count(*) from scheduler_configs") == [(0,)]


async def test_a_database_in_use_is_refused(url: str) -> None:
    app = Rota(url)

    @app.every("1h")
    async def invoices() -> None: ...

    async with app.client():
        await require_unused(app.store)
    async with app:
        with pytest.raises(BadInput, match=r"in use \(.*invoices/default\)"):
            await require_unused(app.store)


def test_it_says_why_the_replicas_do_not_start(folder: Path) -> None:
    process = start(folder, ROTA_ELECTOR="kubernetes", KUBECONFIG=str(folder / "none"))
    _, trouble = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert re.search(r"replica \w+ ended by itself, with exit code 1. It said:\nrota: .*kube", trouble, re.I), trouble
    assert "Traceback" not in trouble
    assert list(folder.glob("rota-demo-*")) == []
