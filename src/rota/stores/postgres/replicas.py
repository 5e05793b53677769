"""Replicas on Postgres: a session lock on a connection of its own, a beat, and what is done about the dead.

Where a pooler keeps no session there is no such lock; the beat alone tells who lives.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

import asyncpg
import msgspec

from rota.errors import CannotListen, Misconfigured, PooledConnection, StoreUnavailable
from rota.settings import Settings
from rota.store import HINTS, Buried, Hint, Lifeline, Pulse, ReplicaRow
from rota.stores.postgres import connection as pg
from rota.stores.postgres.base import PostgresBase
from rota.stores.postgres.route import Line, Route, find_route

_PROBE_EVERY, _PROBE_WITHIN, _JOIN_WITHIN = 30.0, 2.0, 10.0


class PostgresReplicas(PostgresBase):
    _control_route: Route | None = None

    async def join(self, name: str, host: str, pid: int, jobs: Sequence[str], resume: int | None = None) -> Lifeline:
        # The server ends a silent session, and with it the session lock, when the others would give the replica up.
        # Its sockets too: not sooner, or it would be free while the replica still trusts itself.
        patience = max(int(self.settings.dead_after * 1000), 1000)
        silence = {
            "idle_session_timeout": f"{patience}ms", "tcp_user_timeout": str(patience),
            "tcp_keepalives_count": str(max(3, math.ceil(self.settings.dead_after) - 2)),
        }  # fmt: skip
        route = await self._find_control()
        if route is Route.TRANSACTION and self.settings.elector in ("", "advisory"):
            raise PooledConnection("transaction", "control_url" if self.settings.control_url else "url")
        # The other electors need no session, but where there is one its end tells of a death at once.
        locked = self.settings.elector != "lease" and route is not Route.TRANSACTION
        line = await pg.line(route, self._control_url, self.tag, pg.CONTROL | silence, timeout=3.0)
        try:
            with pg.translated(self._control_url):
                async with asyncio.timeout(_JOIN_WITHIN):
                    if self.settings.control_url:
                        await self._check_same_database(line)
                    identity = str(await line.value(pg.QUERIES["join.identity"]))
                    if resume is not None and await _resume(line, resume, locked):
                        return PostgresLifeline(line, resume, identity, self._control_url, self.settings, locked)
                    replica_id = await line.value(pg.QUERIES["join.id"])
                    # Locked before the row can be seen: nobody may find the row and the lock free.
                    if locked and not await line.value(pg.QUERIES["join.lock"], pg.REPLICAS, replica_id):
                        raise StoreUnavailable(f"somebody holds the advisory lock ({pg.REPLICAS}, {replica_id})")
                    encoded = msgspec.json.encode(list(jobs)).decode()
                    await line.fetch(pg.QUERIES["join"], replica_id, name, host, pid, encoded, self.tag, locked)
                    # Now that somebody knows these jobs, their schedules are looked at again.
                    await line.fetch(pg.QUERIES["declare.revalidate"], list(jobs))
        except BaseException:
            line.connection.terminate()
            raise
        return PostgresLifeline(line, replica_id, identity, self._control_url, self.settings, locked)

    @property
    def _control_url(self) -> str:
        return self.settings.control_url or self.settings.url

    async def _find_control(self) -> Route:
        """The way of the connections that would keep a session; found once."""
        if not self.settings.control_url:
            return self.route
        if self._control_route is None:
            with pg.translated(self._control_url):
                self._control_route = await find_route(self._control_url, self.tag, timeout=3.0)
        return self._control_route

    async def _check_same_database(self, line: Line) -> None:
        """Before every join: a failover may move one address and not the other."""
        here, there = await self.fetch_value("join.database"), await line.value(pg.QUERIES["join.database"])
        if here != there:
            raise Misconfigured(
                f"control_url leads to another database ({there}) than url ({here}): "
                "it must be a direct address of the same one"
            )

    async def leave(self, replica_id: int) -> Buried:
        async def transition(connection: pg.Connection) -> Buried:
            await connection.execute("delete from rota.replicas where id = $1", replica_id)
            return await self._free(connection, [replica_id], losses=0)

        return await self.whole(transition)

    async def bury(self, dead: Sequence[int]) -> Buried:
        if not dead:
            return await self._free(None, [], losses=1)

        judged = (pg.REPLICAS, list(dead), self.settings.dead_after)
        # A frozen one may hold row locks, and be in the middle of burying others itself: its sessions end before its
        # row is locked, and those that it has by then before its runs are touched.
        await self._end_sessions(await self.fetch("bury.dead", *judged))

        async def transition(connection: pg.Connection) -> Buried:
            gone = await connection.fetch(pg.QUERIES["bury.replicas"], *judged)
            await self._end_sessions(gone, on=connection)
            return await self._free(connection, [row["id"] for row in gone], losses=1)

        return await self.past_the_silent(self.whole(transition))

    async def _end_sessions(self, dead: list[asyncpg.Record], on: pg.Connection | None = None) -> None:
        if dead:
            await self.fetch("bury.end_sessions", [row["session"] for row in dead], self.tag, on=on)

    async def _free(self, connection: pg.Connection | None, ids: list[int], losses: int) -> Buried:
        rows = await self.fetch("bury.runs", ids, losses, self.settings.dead_after, on=connection)
        return Buried(
            replicas=tuple(ids),
            requeued=tuple(row["id"] for row in rows if row["state"] == "queued"),
            cancelled=tuple(row["id"] for row in rows if row["state"] == "cancelled"),
        )

    async def list_replicas(self) -> list[ReplicaRow]:
        rows = [dict(row.items()) for row in await self.fetch("list_replicas")]
        return [ReplicaRow(**row | {"jobs": tuple(msgspec.json.decode(row["jobs"]))}) for row in rows]

    async def hint(self, kind: Hint) -> None:
        with pg.translated(self.settings.url):
            await self.pool.fetch(pg.QUERIES["hint"], kind)

    async def listen(self, heard: Callable[[Hint], None]) -> None:
        route = await self._find_control()
        if route is Route.TRANSACTION:
            raise CannotListen(
                "LISTEN does not work through a pooler in transaction mode; "
                "with control_url= (ROTA_CONTROL_URL), a direct address, it does"
            )
        connection = (await pg.line(route, self._control_url, self.tag, pg.POOLED, timeout=3.0)).connection
        lost, probed = asyncio.Event(), asyncio.Event()

        def received(_: object, __: int, ___: str, payload: object) -> None:
            if payload == f"probe {self.tag}":
                probed.set()
            elif payload in HINTS:
                heard(payload)

        try:
            with pg.translated(self._control_url):
                connection.add_termination_listener(lambda _: lost.set())
                await connection.add_listener("rota", received)
                for kind in HINTS:
                    heard(kind)
                while True:
                    # The loss of a listener is silent: it proves itself by hearing its own voice.
                    probed.clear()
                    async with asyncio.timeout(_PROBE_WITHIN):
                        await connection.fetch(pg.QUERIES["hint"], f"probe {self.tag}")
                        await probed.wait()
                    try:
                        async with asyncio.timeout(_PROBE_EVERY):
                            await lost.wait()
                        raise StoreUnavailable("the listening connection was lost")
                    except TimeoutError:
                        continue
        finally:
            connection.terminate()


class PostgresLifeline(Lifeline):
    def __init__(self, line: Line, replica_id: int, identity: str, url: str, settings: Settings, locked: bool) -> None:
        super().__init__(settings)
        self.replica_id, self.identity = replica_id, identity
        self._line, self._url, self._locked = line, url, locked
        self._caretaker = False
        line.connection.add_termination_listener(lambda _: self.lost and self.lost())

    async def beat(self, *, holding: bool) -> Pulse:
        try:
            with pg.translated(self._url):
                async with asyncio.timeout(self._settings.lease):
                    [row] = await self._line.fetch(
                        pg.QUERIES["beat"], self.replica_id, holding, self._caretaker, pg.CARETAKER, pg.REPLICAS,
                        self._settings.dead_after, self._locked,
                    )  # fmt: skip
                    self._caretaker = row["caretaker"]
                    may_judge = self._may_judge(row["age"] or 0.0)
        except BaseException:
            # Cancelled or failed, the state of the session is unknown: it must not live on.
            await self.close()
            raise
        return Pulse(
            alive=row["alive"],
            cancelled=tuple(row["cancelled"]),
            ready=row["ready"],
            due_in=row["due_in"],
            caretaker=self._caretaker,
            suspects=tuple(row["suspects"]) if may_judge else (),
            stale=tuple(row["stale"]) if may_judge else (),
            replicas=row["replicas"],
        )

    async def close(self) -> None:
        self.lost = None
        self._line.connection.terminate()


async def _resume(line: Line, replica_id: int, locked: bool) -> bool:
    """Take the lock of this process's own incarnation again, if its row is still there."""
    if not locked:
        return await line.value(pg.QUERIES["join.resume"], replica_id) is not None
    await line.fetch(pg.QUERIES["join.oust"], pg.REPLICAS, replica_id)
    for _ in range(20):
        if await line.value(pg.QUERIES["join.lock"], pg.REPLICAS, replica_id):
            if await line.value(pg.QUERIES["join.resume"], replica_id) is not None:
                return True
            await line.fetch("select pg_advisory_unlock($1, $2)", pg.REPLICAS, replica_id)
            return False
        # The ended session, or a look at it, still has the lock for a moment.
        await asyncio.sleep(0.05)
    return False
