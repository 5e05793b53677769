"""Wire: worker processes tell the benchmark what happened, a datagram each.

An instant is taken where the thing happens, and compared on a clock that all processes of one machine share.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any


class Wire:
    """The receiving end. Messages wait, by kind, until somebody asks for them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._heard: defaultdict[str, asyncio.Queue[list[Any]]] = defaultdict(asyncio.Queue)

    async def hear(self, kind: str, within: float = 60.0) -> list[Any]:
        """The next message of this kind."""
        async with asyncio.timeout(within):
            return await self._heard[kind].get()

    async def collect(self, kind: str, seconds: float) -> list[list[Any]]:
        """Every message of this kind that comes in so many seconds."""
        found = []
        try:
            async with asyncio.timeout(seconds):
                while True:
                    found.append(await self._heard[kind].get())
        except TimeoutError:
            return found

    def take(self, datagram: bytes) -> None:
        kind, *values = json.loads(datagram)
        self._heard[kind].put_nowait(values)


class _Receiver(asyncio.DatagramProtocol):
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def datagram_received(self, data: bytes, addr: object) -> None:
        self._wire.take(data)


@asynccontextmanager
async def open_wire(path: Path) -> AsyncIterator[Wire]:
    wire = Wire(path)
    end = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    end.bind(str(path))
    end.setblocking(False)
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(lambda: _Receiver(wire), sock=end)
    try:
        yield wire
    finally:
        transport.close()


def speaker(path: str | None) -> Callable[..., None]:
    """The sending end; without a path nobody listens, and nothing is said."""
    if not path:
        return lambda *_: None
    end = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    end.connect(path)

    def say(kind: str, *values: Any) -> None:
        end.send(json.dumps([kind, *values]).encode())

    return say
