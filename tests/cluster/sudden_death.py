"""A SQLite process that kills itself at a COMMIT: right before it is done, or right after, before anybody heard of it.

SQLite has no connection to cut. What a lost connection is to Postgres, a lost process is here.
"""

from __future__ import annotations

import os
import re
import signal
from typing import Any

import apsw


def arm(kind: str, position: str, nth: str) -> None:
    """Die at the n-th COMMIT of a transaction in which the statement named `kind` was run."""
    from rota.stores.queries import load_queries

    # Some are completed when it is known how many rows they are for: those are known by how they begin.
    beginnings = [
        (_plain(sql).partition("/*")[0], "/*" in sql, name) for name, sql in load_queries("rota.stores.sqlite").items()
    ]
    left = [int(nth)]

    def die() -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(connection: apsw.Connection) -> None:
        seen: set[str] = set()

        def statement(event: dict[str, Any]) -> None:
            # The driver takes a statement that begins with a comment for the report of a trigger, and eats the dashes.
            sql = _plain(f"-- {event['sql']}" if event["trigger"] else event["sql"])
            seen.update(
                name for text, completed, name in beginnings if (sql.startswith(text) if completed else sql == text)
            )
            if sql.startswith("insert into effects"):
                seen.add("effect")

        def committing() -> bool:
            if position == "before" and kind in seen:
                die()
            return False

        def committed(connection: apsw.Connection, _: str, pages: int) -> int:
            if position == "after" and kind in seen:
                die()
            seen.clear()
            if pages > 1000:
                connection.wal_checkpoint()  # the hook is in the place of the automatic one
            return 0

        connection.trace_v2(apsw.SQLITE_TRACE_STMT, statement)
        connection.set_commit_hook(committing)
        connection.set_rollback_hook(seen.clear)
        connection.set_wal_hook(committed)

    apsw.connection_hooks.append(watch)


def _plain(sql: str) -> str:
    """Without comments."""
    return " ".join(re.sub(r"--.*", "", sql).split())
