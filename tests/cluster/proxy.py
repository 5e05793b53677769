"""Between a replica and Postgres: forwards messages one by one, knows which of them commits what, and cuts there.

It can also fall silent: nothing passes, either way, and neither side is told. What is silent once stays so.

It follows the protocol's framing: the startup message has no type, all others have a byte for it and a length. A turn
of the client ends with Sync or a simple Query; the server answers each with ReadyForQuery. The turn commits when it
runs a statement outside of a transaction block, or when it is the COMMIT of one.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from rota.stores.postgres import claim, enqueue
from rota.stores.postgres.connection import QUERIES

Position = Literal["before", "during", "blind", "after"]
POSITIONS: tuple[Position, ...] = ("before", "during", "blind", "after")
_SSL, _GSS, _CANCEL = 80877103, 80877104, 80877102
_NAMES = {sql: name for name, sql in QUERIES.items()}
_NAMES |= {claim._claim_query(jobs): "claim_runs" for jobs in (1, 2, 4, 8, 16)}
_NAMES |= dict.fromkeys(enqueue._ENQUEUES, "enqueue")


@dataclass
class Cut:
    """Cut the n-th turn that commits `kind`: the name of a query, after `block ` when it is in a transaction block.

    `effect` is what a transactional job of the service writes.

    `before`: it never reaches the server. `during`: the server has done it, the client never hears of it. `blind`: the
    same, but nobody waits for the server. `after`: the answer has been passed on.
    """

    kind: str
    position: Position
    nth: int = 1
    reset: bool = False
    """The client sees a reset instead of an end."""
    _done: asyncio.Event = field(default_factory=asyncio.Event, repr=False)

    def cut(self) -> None:
        self._done.set()

    async def happened(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._done.wait()
        return self._done.is_set()


class Proxy:
    """Listens on a port of its own; `async with` it."""

    def __init__(self, server_socket: str) -> None:
        self._upstream = server_socket
        self._armed: Cut | None = None
        self._pipes: set[asyncio.Task[None]] = set()
        self.port = 0
        self.seen: dict[str, int] = {}
        self._heard = asyncio.Event()
        self._heard.set()

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._pipes):
            task.cancel()
        if self._pipes:
            await asyncio.wait(self._pipes)

    @property
    def silent(self) -> bool:
        return not self._heard.is_set()

    def mute(self) -> None:
        """A cable is pulled: no packet passes, and no connection is closed."""
        self._heard.clear()

    def unmute(self) -> None:
        """New connections work; those that were silent are closed."""
        self._heard.set()

    async def heard(self) -> None:
        await self._heard.wait()

    def cut(self) -> None:
        """Close every connection."""
        for pipe in list(self._pipes):
            pipe.cancel()

    def arm(self, cut: Cut) -> Cut:
        self._armed = cut
        return cut

    def due(self, kinds: set[str]) -> Cut | None:
        """The cut that this turn calls for."""
        for kind in kinds:
            self.seen[kind] = self.seen.get(kind, 0) + 1
        cut = self._armed
        if cut is None or cut.kind not in kinds:
            return None
        cut.nth -= 1
        if cut.nth > 0:
            return None
        self._armed = None
        return cut

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pipes.add(task)
        try:
            # Also when cancelled: in 3.11 the stream server reports that as an error of its own.
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await Pipe(self, reader, writer).run(self._upstream)
        finally:
            writer.transport.abort()
            self._pipes.discard(task)


class _Severed(Exception):
    """This connection is cut."""


class _Mute(Exception):
    """What was to be passed on is lost, and with it the thread of the conversation."""


class Pipe:
    """One connection of a client."""

    def __init__(self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy, self._reader, self._writer = proxy, reader, writer
        self._statements: dict[bytes, str] = {}
        self._running: set[str] = set()
        self._block: set[str] = set()
        self._in_block = False
        self._pending: Cut | None = None

    async def run(self, upstream: str) -> None:
        startup = await self._startup()
        if self._proxy.silent:
            await self._proxy.heard()
            return
        self._server_reader, self._server_writer = await asyncio.open_unix_connection(upstream)
        try:
            self._server_writer.write(startup)
            ways = [asyncio.create_task(self._silenced(way)) for way in (self._forth(), self._back())]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        finally:
            self._server_writer.transport.abort()

    async def _silenced(self, way: Coroutine[Any, Any, None]) -> None:
        """Neither side hears of the other's end while nothing passes."""
        with suppress(asyncio.IncompleteReadError, OSError, _Mute):
            await way
        await self._proxy.heard()

    async def _next(self, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        message = await _message(reader)
        if self._proxy.silent:
            raise _Mute
        return message

    async def _startup(self) -> bytes:
        while True:
            head = await self._reader.readexactly(8)
            length, code = struct.unpack("!II", head)
            if code in (_SSL, _GSS):
                self._writer.write(b"N")
                continue
            return head + await self._reader.readexactly(length - 8)

    async def _forth(self) -> None:
        while True:
            kind, message = await self._next(self._reader)
            self._note(kind, message[5:])
            if kind not in b"SQ":
                self._server_writer.write(message)
                continue
            cut = self._proxy.due(self._committing(kind, message[5:]))
            if cut is None:
                self._server_writer.write(message)
                await self._server_writer.drain()
                continue
            if cut.position == "before":
                self._sever(cut)
            self._pending = cut if cut.position != "blind" else None
            self._server_writer.write(message)
            await self._server_writer.drain()
            if cut.position == "blind":
                self._sever(cut)

    def _note(self, kind: int, body: bytes) -> None:
        if kind == ord("P"):
            name, sql = body.split(b"\0", 2)[:2]
            self._statements[name] = _NAMES.get(sql.decode(), "")
        elif kind == ord("B"):
            self._running.add(self._statements.get(body.split(b"\0", 2)[1], ""))
        elif kind == ord("Q") and body.startswith(b"insert into effects"):
            self._running.add("effect")

    def _committing(self, kind: int, body: bytes) -> set[str]:
        """What this turn commits."""
        running, self._running = self._running - {""}, set()
        if kind == ord("Q") and body.upper().startswith(b"COMMIT"):
            block, self._block = self._block, set()
            return {f"block {name}" for name in block}
        if kind == ord("Q") and body.upper().startswith((b"BEGIN", b"ROLLBACK")):
            self._block = set()
        if self._in_block:
            self._block |= running
            return set()
        return running

    async def _back(self) -> None:
        while True:
            kind, message = await self._next(self._server_reader)
            cut = self._pending
            if cut is None or cut.position != "during":
                self._writer.write(message)
            if kind == ord("Z"):
                self._in_block = message[5:6] != b"I"
                if cut is not None:
                    if cut.position == "after":
                        await self._writer.drain()
                    self._sever(cut)
            await self._writer.drain()

    def _sever(self, cut: Cut) -> None:
        if cut.reset and cut.position != "after":
            linger = struct.pack("ii", 1, 0)
            self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        cut.cut()
        raise _Severed


async def _message(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readexactly(5)
    rest = await reader.readexactly(struct.unpack("!I", head[1:])[0] - 4)
    return head[0], head + rest
