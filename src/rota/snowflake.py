"""Snowflake ids: 64 bits, ordered by time, unique in the cluster, made without asking anybody.

An id is 41 bits of milliseconds since 2020, 10 bits of node, 12 bits of sequence; the sign is never set. Its time lies
in a stretch for which the store gave the node to this process and to nobody else, and each id of a process is larger
than the one before. That alone makes ids unique. The clock (the store's when the stretch was leased, and what has
passed since by the steady clock) only decides how near an id's time is to the real one.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import secrets
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from math import inf
from typing import NamedTuple

from rota.clock import steady
from rota.contract.nodes import EPOCH, NodeLease, Nodes
from rota.errors import BadInput, NotOpen, StoreUnavailable

STRETCH = 60_000
"""Milliseconds that are leased at a time. The next ones are asked for when half of them are left."""
_AHEAD = 5
"""Milliseconds by which a rush may be ahead of the time."""
_SEQUENCES = 1 << 12
_END = 1 << 41
_ORIGIN = datetime.fromtimestamp(EPOCH / 1000, UTC)
_NONE = range(0)


class Parts(NamedTuple):
    """What an id is made of."""

    at: datetime
    node: int
    sequence: int


def parts(snowflake: int) -> Parts:
    """When an id was made, to the millisecond and in UTC; by which node; and which one of that millisecond it is."""
    if not 0 <= snowflake < 1 << 63:
        raise BadInput(f"{snowflake} is no snowflake id: those have 63 bits")
    at = _ORIGIN + timedelta(milliseconds=snowflake >> 22)
    return Parts(at, snowflake >> 12 & 0x3FF, snowflake & 0xFFF)


class Snowflakes:
    """The ids of one process: `app.ids`. Used from one event loop at a time."""

    def __init__(self, nodes: Callable[[], Nodes]) -> None:
        self._nodes = nodes
        """Where node numbers are leased; raises `NotOpen` when that cannot be."""
        self._node: int | None = None
        self._token = self._until = 0
        self._ms = self._sequence = 0
        """The id that comes next."""
        self._base, self._at = 0, 0.0
        """What the store's clock showed, and the steady one at that moment."""
        self._renew_at: float = 0
        self._leasing: asyncio.Task[None] | None = None
        self._pid = os.getpid()

    async def next(self) -> int:
        """A new id: larger than all before it in this process, different from all others in the cluster."""
        self._nodes()
        if taken := self._take(1):
            return taken[0]
        return (await self.many(1))[0]

    async def many(self, count: int) -> list[int]:
        """So many new ids, growing. Up to 4096 in a millisecond; for more it waits."""
        if count < 0:
            raise BadInput(f"many({count}): a number of ids is not below 0")
        self._nodes()
        ids: list[int] = []
        while len(ids) < count:
            taken = self._take(count - len(ids))
            ids += taken
            if not taken:
                await self._more()
        return ids

    async def close(self) -> None:
        """The store is about to close. What is left of the stretch is kept for when it opens again."""
        leasing, self._leasing = self._leasing, None
        if leasing is not None and leasing.get_loop() is asyncio.get_running_loop():
            leasing.cancel()
            await asyncio.wait([leasing])

    # -- making ------------------------------------------------------------------------------------

    def _take(self, count: int) -> range:
        """The next ids of one millisecond, at most `count`; none when `_more` has to come first."""
        if self._pid != os.getpid():
            self._forked()
        if self._node is None:
            return _NONE
        now = self._base + int((steady() - self._at) * 1000)
        if now > self._ms:
            self._ms, self._sequence = now, 0
        elif self._sequence == _SEQUENCES:
            if self._ms >= now + _AHEAD:
                return _NONE
            self._ms, self._sequence = self._ms + 1, 0
        if self._ms >= self._until:
            return _NONE
        if now >= self._renew_at:
            self._lease_soon()
        first = self._ms << 22 | self._node << 12 | self._sequence
        taken = range(first, first + min(count, _SEQUENCES - self._sequence))
        self._sequence += len(taken)
        return taken

    async def _more(self) -> None:
        """Wait for what `_take` lacks: another stretch, or the time."""
        if self._ms < self._until:
            await asyncio.sleep(0.001)
            return
        leasing = self._lease_soon()
        await asyncio.wait([leasing])
        if leasing.cancelled():
            raise NotOpen
        leasing.result()

    def _forked(self) -> None:
        """The node is the parent's."""
        self._pid, self._node, self._until, self._leasing = os.getpid(), None, 0, None

    # -- leasing -----------------------------------------------------------------------------------

    def _lease_soon(self) -> asyncio.Task[None]:
        """One lease at a time; whoever waits waits for the same."""
        loop, leasing = asyncio.get_running_loop(), self._leasing
        if leasing is None or leasing.done() or leasing.get_loop() is not loop:
            self._renew_at = inf
            # Not in the context of the handler that happened to need it.
            leasing = loop.create_task(self._lease(), name="rota-ids", context=contextvars.Context())
            leasing.add_done_callback(self._leased)
            self._leasing = leasing
        return leasing

    def _leased(self, leasing: asyncio.Task[None]) -> None:
        if leasing.cancelled() or leasing.exception() is not None:
            # There may be time left to try again before somebody has to be told.
            self._renew_at = self._base + (steady() - self._at) * 1000 + 1000

    async def _lease(self) -> None:
        nodes, node, token = self._nodes(), self._node, self._token
        if node is None:
            token = secrets.randbits(63)
        lease = await nodes.lease_node(token, STRETCH, node)
        if lease.node == node and lease.begin > max(lease.now, self._until):
            # An earlier reply was lost, and a stretch with it. Skipping that would put all ids from now on ahead of
            # the time by as much; another node begins now.
            lease = await nodes.lease_node(token, STRETCH)
        while lease.until <= self._ms:
            # The store's clock went back, and the node is a new one. Ids go on growing all the same.
            lease = await nodes.lease_node(token, self._ms - lease.until + STRETCH, lease.node)
        if lease.now < 0 or lease.until > _END:
            shows = _ORIGIN + timedelta(milliseconds=lease.now)
            raise StoreUnavailable(f"the database's clock shows {shows:%Y-%m-%d}, and ids have times from 2020 to 2089")
        self._enter(lease, token)

    def _enter(self, lease: NodeLease, token: int) -> None:
        if lease.node != self._node and self._sequence:
            # Of two nodes the ids of one millisecond are in the order of the nodes.
            self._ms, self._sequence = self._ms + 1, 0
        if lease.begin > self._ms and (lease.node, lease.begin) != (self._node, self._until):
            self._ms, self._sequence = lease.begin, 0
        self._node, self._token, self._until = lease.node, token, lease.until
        self._base, self._at = max(lease.now, self._ms), steady()
        self._renew_at = self._until - STRETCH / 2
