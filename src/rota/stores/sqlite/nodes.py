"""Nodes on SQLite."""

from __future__ import annotations

from rota.contract.nodes import NodeLease
from rota.stores.sqlite.base import SQLiteBase


class SQLiteNodes(SQLiteBase):
    async def lease_node(self, token: int, milliseconds: int, node: int | None = None) -> NodeLease:
        raise NotImplementedError
