"""A service that only its leader runs, as a process: `python -m tests.cluster.leader_service`. Its diary is stdout.

The leader writes all the time, each write in a transaction that holds its term. Beside it a ghost writes with the last
term that this process had, and believes nothing else: only the store can refuse it. ROTA_TEST_ROLES names the roles.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import time
from typing import Any

import apsw
import asyncpg

from rota import Rota, succession
from rota.contract.roles import Fence
from rota.electors.store import StoreElector
from rota.errors import LeadershipLost, RotaError
from rota.events import Event, LeadershipEnded, LeadershipWon, RunFinished, TicksFired
from rota.leader import Leadership
from tests.cluster.replica import say

ROLES = os.environ.get("ROTA_TEST_ROLES", "leader").split(",")
PAUSE = float(os.environ.get("ROTA_TEST_PAUSE", "0.01"))
STUBBORN = bool(os.environ.get("ROTA_TEST_STUBBORN"))
INSERT = "insert into acts (role, term, nonce) values ({}) returning seq"
_TROUBLE = (
    RotaError,
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)

app = Rota()


def note(what: str, fence: Fence, **more: object) -> None:
    at = time.monotonic_ns()
    say(what, pid=os.getpid(), role=fence.role, term=fence.term, nonce=fence.nonce, at=at, **more)


class Ledger:
    """The user's own table, and the user's own connections."""

    def __init__(self) -> None:
        self._lite: apsw.Connection | None = None
        self._pool: Any = None

    async def open(self, url: str) -> None:
        if url.startswith("sqlite"):
            self._lite = apsw.Connection(url.removeprefix("sqlite:///"))
            self._lite.set_busy_timeout(2000)
        else:
            self._pool = await asyncpg.create_pool(url, min_size=0, max_size=8, timeout=2.0, command_timeout=2.0)

    async def write(self, fence: Fence, by: str, me: Leadership | None = None) -> bool:
        """False when it was refused."""
        since = time.monotonic_ns()
        try:
            seq = await (self._write_lite if self._lite else self._write_postgres)(fence, me)
        except LeadershipLost:
            note("write_refused", fence, since=since, by=by)
            return False
        note("write_ok", fence, since=since, by=by, seq=seq)
        return True

    async def _write_postgres(self, fence: Fence, me: Leadership | None) -> Any:
        connection = await self._pool.acquire()
        try:
            async with connection.transaction():
                await (me.hold(connection) if me else app.store.check_fence(fence, connection))
                return await connection.fetchval(INSERT.format("$1, $2, $3"), fence.role, fence.term, fence.nonce)
        except TimeoutError:
            connection.terminate()
            raise
        finally:
            await self._give_back(connection)

    async def _give_back(self, connection: Any) -> None:
        giving = asyncio.ensure_future(self._pool.release(connection, timeout=1.0))
        # Also where nobody waits for it any more, and its connection is silent: nothing is said of it at the end.
        giving.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(giving)

    async def _write_lite(self, fence: Fence, me: Leadership | None) -> Any:
        assert self._lite is not None
        try:
            self._lite.execute("begin immediate")
            await (me.hold(self._lite) if me else app.store.check_fence(fence, self._lite))
            [(seq,)] = self._lite.execute(INSERT.format("?, ?, ?"), (fence.role, fence.term, fence.nonce)).fetchall()
            self._lite.execute("commit")
            return seq
        except apsw.BusyError as error:
            raise TimeoutError from error
        finally:
            if self._lite.in_transaction:
                self._lite.execute("rollback")


ledger = Ledger()


class Ghost:
    """Writes with the last fence of a role, whatever happened to it; rests when it was refused often."""

    def __init__(self) -> None:
        self._fences: dict[str, Fence] = {}

    def remember(self, fence: Fence) -> None:
        self._fences[fence.role] = fence

    async def haunt(self) -> None:
        refused: dict[Fence, int] = {}
        while True:
            for fence in list(self._fences.values()):
                if refused.get(fence, 0) < 20:
                    try:
                        accepted = await ledger.write(fence, "ghost")
                        refused[fence] = 0 if accepted else refused.get(fence, 0) + 1
                    except _TROUBLE:
                        pass
            await asyncio.sleep(2 * PAUSE)


ghost = Ghost()


def watch_elector() -> None:
    """When a term was asked for and won, and when it was let go: nothing else says so to the instant."""
    win, resign = StoreElector.win, StoreElector.resign

    async def winning(self: StoreElector, seat: Any) -> Fence | None:
        since = time.monotonic_ns()
        fence = await win(self, seat)
        if fence is not None and fence.role in ROLES:
            note("won", fence, since=since)
            ghost.remember(fence)
        return fence

    async def resigning(self: StoreElector, fence: Fence, meant_for: int | None = None) -> None:
        since = time.monotonic_ns()
        try:
            await resign(self, fence, meant_for)
        finally:
            if fence.role in ROLES:
                note("released", fence, since=since)

    StoreElector.win, StoreElector.resign = winning, resigning  # type: ignore[method-assign]


def declare(role: str) -> None:
    @app.recovery(role=role)
    async def recover(me: Leadership) -> None:
        note("recover", me.fence)

    @app.on_become_leader(role=role)
    async def become(me: Leadership) -> None:
        note("become", me.fence)

    @app.on_lose_leadership(role=role)
    async def lose(me: Leadership) -> None:
        note("lose_begin", me.fence)
        try:
            await asyncio.sleep(float(os.environ.get("ROTA_TEST_FAREWELL", "0.05")))
        except asyncio.CancelledError:
            note("lose_cut", me.fence)
            raise
        note("lose_end", me.fence)

    @app.leader_only(role=role, takeover="strict" if os.environ.get("ROTA_TEST_STRICT") else None)
    async def serve(me: Leadership) -> None:
        note("serve", me.fence)
        while True:
            try:
                with contextlib.suppress(*_TROUBLE):
                    if not await ledger.write(me.fence, "service", me) and not STUBBORN:
                        return
                await asyncio.sleep(PAUSE)
            except asyncio.CancelledError:
                if not STUBBORN:
                    raise


def report(event: Event) -> None:
    if isinstance(event, LeadershipEnded) and event.role in ROLES:
        at = time.monotonic_ns()
        say("over", pid=os.getpid(), role=event.role, term=event.term, at=at, why=event.why, lost=event.lost)
    elif not isinstance(event, RunFinished | TicksFired | LeadershipWon):
        say(type(event).__name__, **{field.name: getattr(event, field.name) for field in dataclasses.fields(event)})


async def serve() -> None:
    if settled := os.environ.get("ROTA_TEST_SETTLED"):
        succession.SETTLED, succession.NEWCOMER = float(settled), float(settled) / 2
    for role in ROLES:
        declare(role)
    watch_elector()
    app.events.subscribe(Event, report)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await ledger.open(app.settings.url)
    async with app:
        haunting = asyncio.create_task(ghost.haunt())
        say("Ready")
        await stop.wait()
        say("Stopping")
        haunting.cancel()
    say("Stopped")


if __name__ == "__main__":
    asyncio.run(serve())
