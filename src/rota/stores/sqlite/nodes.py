"""Node numbers on SQLite."""

from __future__ import annotations

from rota.contract.nodes import EPOCH, NodeLease, all_taken
from rota.stores.sqlite.base import SQLiteBase
from rota.stores.sqlite.session import Session
from rota.stores.sqlite.times import microseconds


class SQLiteNodes(SQLiteBase):
    async def lease_node(self, token: int, milliseconds: int, node: int | None = None) -> NodeLease:
        def lease(db: Session) -> NodeLease:
            now = microseconds(db.now()) // 1000 - EPOCH
            found = (
                db.all("lease_node", (node, token, now, milliseconds))
                or db.all("lease_node.expired", (token, now, milliseconds))
                or db.all("lease_node.unused", (token, now, milliseconds))
            )
            if not found:
                raise all_taken()
            [(leased, until)] = found
            return NodeLease(node=leased, now=now, begin=until - milliseconds, until=until)

        return await self.write(lease)
