"""Node numbers in the store: each is somebody's for a stretch of time.

A stretch is [begin, until) in milliseconds since 2020 by the store's clock. Stretches of one node never overlap,
whatever the clocks do, so neither do the ids made in them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from rota.contract.row import Row
from rota.errors import StoreUnavailable

EPOCH = 1_577_836_800_000
"""2020-01-01 in UTC, in milliseconds since 1970."""


class NodeLease(Row, frozen=True, kw_only=True):
    node: int
    now: int
    """The store's clock when it was given."""
    begin: int
    until: int


class Nodes(ABC):
    @abstractmethod
    async def lease_node(self, token: int, milliseconds: int, node: int | None = None) -> NodeLease:
        """A stretch of this length: with `node`, the next one of a node that still is the caller's, if it is; else of
        the node that has not been used for longest. `StoreUnavailable` when all 1024 are in use.

        A second call after a lost reply is harmless: it gives another stretch, and the first one is wasted.
        """


def all_taken() -> StoreUnavailable:
    return StoreUnavailable(
        "all 1024 node numbers of snowflake ids are in use: make ids in fewer processes, or wait; a number that nobody "
        "uses is free a minute or two later, or when the database's clock is again where it was if it was set back"
    )
