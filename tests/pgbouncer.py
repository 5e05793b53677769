"""A real PgBouncer in front of a test server.

Taken from the machine if it is there; else the distribution's package is fetched, with what it needs, and unpacked into
a folder of the repository: nothing is installed.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.harness import Server
from tests.patience import PATIENCE

_CACHE = Path(__file__).parents[1] / ".pgbouncer"


@contextmanager
def pgbouncer(server: Server, mode: str, **settings: str) -> Iterator[PgBouncer]:
    made = PgBouncer(server, mode, **settings)
    try:
        made.start()
        yield made
    finally:
        made.close()


class PgBouncer:
    def __init__(self, server: Server, mode: str, **settings: str) -> None:
        self._server, self._port = server, _free_port()
        self._root = Path(tempfile.mkdtemp(prefix="rota-bouncer-"))
        lines = {
            "listen_addr": "127.0.0.1", "listen_port": str(self._port), "unix_socket_dir": "", "auth_type": "any",
            "pool_mode": mode, "default_pool_size": "20", "max_client_conn": "500", "logfile": str(self._root / "log"),
        }  # fmt: skip
        text = f"[databases]\n* = host={Path(server.socket).parent} user=postgres\n[pgbouncer]\n"
        text += "".join(f"{name} = {value}\n" for name, value in (lines | settings).items())
        (self._root / "ini").write_text(text)
        if server.user is not None:
            entry = pwd.getpwnam(server.user)
            os.chown(self._root, entry.pw_uid, entry.pw_gid)
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, direct: str) -> str:
        """The same database by this way."""
        return f"postgresql://postgres@127.0.0.1:{self._port}{urlsplit(direct).path}"

    def start(self) -> None:
        program, libraries = find()
        self._process = subprocess.Popen(
            [program, "-q", str(self._root / "ini")], user=self._server.user, cwd="/", stderr=subprocess.DEVNULL,
            env=os.environ | ({"LD_LIBRARY_PATH": libraries} if libraries else {}),
        )  # fmt: skip
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and self._process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                    return
            time.sleep(0.02)
        raise RuntimeError(f"pgbouncer did not start: {(self._root / 'log').read_text()}")

    def close(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(10)
        shutil.rmtree(self._root, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@cache
def find() -> tuple[str, str]:
    """The program, and the folder of the libraries that came with it."""
    found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
    if found:
        return found, ""
    if shutil.which("apt-get") is None:
        pytest.skip("there is no pgbouncer here, and no apt-get to fetch it with: install pgbouncer")
    unpacked = _CACHE / "unpacked"
    if not unpacked.exists():
        _fetch(unpacked)
    libraries = {str(path.parent) for path in unpacked.glob("**/*.so.*")}
    return str(unpacked / "usr/sbin/pgbouncer"), ":".join(sorted(libraries))


def _fetch(unpacked: Path) -> None:
    """Into a folder of its own first: another process may be at it, or this one may be stopped."""
    _CACHE.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="fetch-", dir=_CACHE))
    plan = _apt(folder, "install", "--simulate", "--no-install-recommends", "pgbouncer")
    if plan.returncode and os.getuid() == 0:
        _apt(folder, "update")
        plan = _apt(folder, "install", "--simulate", "--no-install-recommends", "pgbouncer")
    wanted = [line.split()[1] for line in plan.stdout.splitlines() if line.startswith("Inst ")]
    if plan.returncode or not wanted or _apt(folder, "download", *wanted).returncode:
        pytest.fail(f"pgbouncer cannot be fetched, install it by hand: {plan.stderr}")
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg", "-x", str(package), str(folder / "unpacked")], check=True)
    for path in (_CACHE, folder, folder / "unpacked"):
        path.chmod(0o755)
    try:
        (folder / "unpacked").rename(unpacked)
    except OSError:
        assert unpacked.exists()
    shutil.rmtree(folder)


def _apt(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["apt-get", "-q", *arguments], cwd=folder, text=True, capture_output=True, check=False)
