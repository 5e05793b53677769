"""Node numbers on Postgres: one statement, so that whoever comes at the same time waits for nobody."""

from __future__ import annotations

from rota.contract.nodes import NodeLease, all_taken
from rota.stores.postgres.base import PostgresBase


class PostgresNodes(PostgresBase):
    async def lease_node(self, token: int, milliseconds: int, node: int | None = None) -> NodeLease:
        while True:
            [row] = await self.fetch("lease_node", token, milliseconds, node)
            if row["node"] is not None:
                return NodeLease(node=row["node"], now=row["now"], begin=row["begin"], until=row["until"])
            if not row["more"]:
                raise all_taken()
