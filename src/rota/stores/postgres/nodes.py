"""Nodes on Postgres."""

from __future__ import annotations

from rota.contract.nodes import NodeLease
from rota.stores.postgres.base import PostgresBase


class PostgresNodes(PostgresBase):
    async def lease_node(self, token: int, milliseconds: int, node: int | None = None) -> NodeLease:
        raise NotImplementedError
