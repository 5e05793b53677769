"""Cost: what replicas and their database spend over a while, in CPU and in statements.

Statements are counted in the server's own log, switched on for the time of the count only: that is every statement a
client sends, BEGIN and COMMIT among them. (Postgres's counters count transactions, and late.) CPU is measured in a
while of its own, when nothing is logged.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from pathlib import Path

import psutil
from tests.harness import Server

_STATEMENT = re.compile(rb"^rota-\S* LOG:  (?:statement|execute [^:]*): ", re.MULTILINE)
_PREFIX = "%a "


async def statements(server: Server, seconds: float) -> int:
    """How many statements rota's sessions sent in so many seconds."""
    log = server.data.parent / "log"
    _log(server, "all")
    before = log.stat().st_size
    await asyncio.sleep(seconds)
    seen = _read(log, before)
    _log(server, "none")
    return len(_STATEMENT.findall(seen))


def _read(log: Path, start: int) -> bytes:
    with open(log, "rb") as lines:
        lines.seek(start)
        return lines.read()


def _log(server: Server, what: str) -> None:
    server.psql(f"alter system set log_statement = '{what}'")
    server.psql(f"alter system set log_line_prefix = '{_PREFIX}'")
    server.psql("select pg_reload_conf()")


def cpu(processes: Iterable[psutil.Process]) -> float:
    """Seconds of CPU that these have used so far; one that has ended counts nothing."""
    return sum(_used(process) for process in processes)


def server_cpu(server: Server) -> float:
    """Seconds of CPU of the server so far: of all its processes, and of those that have ended."""
    postmaster = psutil.Process(int((server.data / "postmaster.pid").read_text().split()[0]))
    ended = postmaster.cpu_times()
    return cpu((postmaster, *postmaster.children())) + ended.children_user + ended.children_system


def _used(process: psutil.Process) -> float:
    """By the scheduler's own nanoseconds where there are such: hundreds of idle processes never fill a clock tick."""
    try:
        tasks = Path(f"/proc/{process.pid}/task")
        if tasks.exists():
            return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9
        times = process.cpu_times()
        return times.user + times.system
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return 0.0
