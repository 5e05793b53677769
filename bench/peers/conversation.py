"""Conversation: a peer's driver as a process, asked on its standard input, answering lines of JSON."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import IO, Any, Protocol

import asyncpg

from bench.peers.install import PeerFailed

# What ends the measuring of one peer, and of that one only.
FAILURES = (PeerFailed, TimeoutError, OSError, asyncpg.PostgresError)
# Every start of a long drain comes in one line.
LONGEST_LINE = 64 * 1024 * 1024


class Asked(Protocol):
    """Whoever can be asked: a peer, or what a test puts in its place."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def command(self) -> list[str]: ...

    @property
    def cwd(self) -> Path: ...

    def install(self) -> None: ...


class Driver:
    """One process of a peer's driver."""

    def __init__(self, words: tuple[str, ...], process: asyncio.subprocess.Process, complaints: IO[bytes]) -> None:
        self._words, self._process, self._complaints = words, process, complaints

    async def ask(self, question: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{question}\n".encode())
        return await self.answer()

    async def answer(self, within: float = 120.0) -> Any:
        """Its next line; whatever is no JSON is the peer's own chatter."""
        assert self._process.stdout is not None
        async with asyncio.timeout(within):
            while line := await self._process.stdout.readline():
                try:
                    return json.loads(line)
                except ValueError:
                    continue
            await self._process.wait()
        raise PeerFailed(f"{' '.join(self._words)}: {self._last_words()}")

    def _last_words(self) -> str:
        self._complaints.seek(0)
        lines = self._complaints.read().decode(errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        # Node puts the message first and the stack after it, Python the other way round.
        errors = [line for line in said if "Error" in line.split(":")[0]]
        return (errors or said or [f"ended with {self._process.returncode}"])[-1]


@asynccontextmanager
async def driven(peer: Asked, url: str, *words: str) -> AsyncIterator[Driver]:
    """A driver that ends with the block, and by itself when its standard input ends."""
    with tempfile.TemporaryFile() as complaints:
        process = await asyncio.create_subprocess_exec(
            *peer.command, *words, cwd=peer.cwd, env=os.environ | {"PEER_URL": url},
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=complaints, limit=LONGEST_LINE,
        )  # fmt: skip
        try:
            yield Driver(words, process, complaints)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


@asynccontextmanager
async def workers(peer: Asked, url: str, count: int, command: str = "work") -> AsyncIterator[list[Driver]]:
    """So many workers, each a process, that are about to work."""
    async with AsyncExitStack() as stack:
        drivers = [await stack.enter_async_context(driven(peer, url, command)) for _ in range(count)]
        for driver in drivers:
            await driver.answer()
        yield drivers


async def answer(peer: Asked, url: str, command: str, count: int | None = None) -> Any:
    """One question to a process that is there for no other."""
    async with driven(peer, url, command, *([] if count is None else [str(count)])) as driver:
        return await driver.answer()


def left_out(peer: Asked, error: BaseException) -> None:
    print(f"  {peer.name} {peer.version} left out: {str(error) or 'it did not answer in time'}", flush=True)
