"""Install: every peer into an environment of its own under .peers/, its versions pinned here."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".peers"


class PeerFailed(Exception):
    """This peer cannot be measured; the message says why, in one line."""


@dataclass(frozen=True)
class Peer:
    """A peer and the packages it needs, itself first; with `@` they are npm's."""

    name: str
    packages: tuple[str, ...]

    @property
    def node(self) -> bool:
        return "@" in self.packages[0]

    @property
    def version(self) -> str:
        return self.packages[0].replace("@", "==").partition("==")[2]

    @property
    def home(self) -> Path:
        return CACHE / self.name

    @property
    def cwd(self) -> Path:
        return self.home if self.node else ROOT

    @property
    def command(self) -> list[str]:
        """What starts its driver."""
        if self.node:
            return ["node", str(Path(__file__).parent / f"{self.name}.mjs")]
        return [str(self.home / "bin" / "python"), "-m", f"bench.peers.{self.name}"]

    def install(self) -> None:
        install(self)


PEERS = {
    peer.name: peer
    for peer in (
        Peer("pgqueuer", ("pgqueuer==1.6.0", "asyncpg==0.32.0", "uvloop==0.23.0")),
        Peer("procrastinate", ("procrastinate==3.10.0", "psycopg[binary,pool]==3.3.8", "uvloop==0.23.0")),
        Peer(
            "apscheduler",
            (
                "apscheduler==4.0.0a6",
                "sqlalchemy[asyncio]==2.1.8",
                "anyio==4.9.0",
                "asyncpg==0.32.0",
                "uvloop==0.23.0",
            ),
        ),
        Peer("dbos", ("dbos==3.3.0", "psycopg[binary]==3.3.8")),
        Peer("graphile-worker", ("graphile-worker@0.18.0",)),
        Peer("pg-boss", ("pg-boss@12.35.0",)),
    )
}


def install(peer: Peer) -> None:
    """Nothing to do where the same versions are there already."""
    marker = peer.home / "installed"
    wanted = "\n".join(peer.packages)
    if marker.exists() and marker.read_text() == wanted:
        return
    print(f"  installing {peer.name} {peer.version}", end="", flush=True)
    began = time.monotonic()
    try:
        _install(peer)
    finally:
        print(f"   {time.monotonic() - began:.0f} s", flush=True)
    marker.write_text(wanted)


def _install(peer: Peer) -> None:
    shutil.rmtree(peer.home, ignore_errors=True)
    if peer.node:
        if not (shutil.which("node") and shutil.which("npm")):
            raise PeerFailed("it needs node and npm, and they are not on the PATH")
        peer.home.mkdir(parents=True)
        _run("npm", "install", "--prefix", str(peer.home), "--no-audit", "--no-fund", *peer.packages)
    else:
        _run(sys.executable, "-m", "venv", str(peer.home))
        pip = (str(peer.home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        _run(*pip, *peer.packages)


def _run(*command: str) -> None:
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    if done.returncode:
        complaints = [line for line in done.stderr.splitlines() if "error" in line.lower()]
        raise PeerFailed("; ".join(complaints[:2]) or f"{command[0]} ended with {done.returncode}")
