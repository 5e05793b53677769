"""Idle: the statements that one worker sends while nothing happens, counted in the server's log as rota's are.

Idle workers do not disturb one another and counting takes long, so all of them wait at once, on a server of their own
and each in its own database, by whose name the log tells them apart.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

from tests.harness import Server

from bench.peers.conversation import FAILURES, Asked, answer, left_out, workers

_STATEMENT = re.compile(rb"^(\S+) LOG:  (?:statement|execute [^:]*): ", re.MULTILINE)


async def statements(server: Server, peers: Sequence[Asked], settle: float, seconds: float) -> dict[str, int]:
    """How many each peer's worker sent in so many seconds, by the peer's name."""
    databases = {}
    async with AsyncExitStack() as stack:
        for peer in peers:
            url = server.new_database()
            try:
                await answer(peer, url, "setup")
                await stack.enter_async_context(workers(peer, url, 1))
                databases[peer.name] = urlsplit(url).path[1:].encode()
            except FAILURES as error:
                left_out(peer, error)
        await asyncio.sleep(settle)  # what follows the start is no idle cost
        sent = Counter(await _logged(server, seconds))
    return {name: sent[database] for name, database in databases.items()}


async def _logged(server: Server, seconds: float) -> list[bytes]:
    """For every statement of these seconds, the database it was sent to."""
    log = server.data.parent / "log"
    server.psql("alter system set log_line_prefix = '%d '")
    server.psql("alter system set log_statement = 'all'")
    before = log.stat().st_size
    server.psql("select pg_reload_conf()")
    await asyncio.sleep(seconds)
    seen = log.read_bytes()[before:]
    server.psql("alter system set log_statement = 'none'")
    server.psql("select pg_reload_conf()")
    return _STATEMENT.findall(seen)
