"""What a Postgres server is like, seen from a plain session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from rota.clock import steady
from rota.contract.findings import Finding, ok, problem, warning
from rota.errors import Misconfigured, PooledConnection, RotaError
from rota.store import HINTS, Hint
from rota.stores.postgres import connection as pg
from rota.stores.postgres.base import PostgresBase
from rota.stores.postgres.route import Route, find_route

_PATIENCE = 5.0
_PER_REPLICA = 18
_FAR = 1.0
_LOOKS = 5
_POOLER = (
    "give ROTA_CONTROL_URL a direct address of the same database, or choose ROTA_ELECTOR=lease; "
    "`app.client()` needs neither"
)


class PostgresDiagnosis(PostgresBase):
    async def diagnose(self) -> list[Finding]:
        found: list[Finding] = []
        try:
            with pg.translated(self.settings.url):
                async with asyncio.timeout(6 * _PATIENCE):
                    found += await self._look_at_route()
                    async with self._plain() as connection:
                        found += await _look_at_server(connection)
                        found.append(await _look_at_clock(connection))
                        found += await _look_at_rights(connection)
                        found += await _look_at_tables(connection)
                        found.append(await self._look_at_listening(connection))
        except PooledConnection as error:
            found.append(problem("pooler", str(error), "connect to the server itself, or change its pool_mode"))
        except Misconfigured as error:
            found.append(problem("settings", str(error), "change the setting"))
        except RotaError as error:
            check = "database" if found else "reachable"
            found.append(problem(check, str(error), "see that the server runs, and that ROTA_URL is right"))
        return found

    @asynccontextmanager
    async def _plain(self) -> AsyncIterator[pg.Connection]:
        """As anybody would connect, without rota's settings; nothing is prepared, a pooler may lie in between."""
        connection: pg.Connection = await asyncpg.connect(self.settings.url, timeout=_PATIENCE, statement_cache_size=0)
        try:
            yield connection
        finally:
            connection.terminate()

    async def _look_at_route(self) -> list[Finding]:
        route = self.route = await find_route(self.settings.url, self.tag, timeout=_PATIENCE)
        found = [ok("reachable", "the server answers")]
        if route is Route.DIRECT:
            return [*found, ok("pooler", "none in between")]
        if route is Route.SESSION:
            return [*found, ok("pooler", "in session mode: its pool must be as large as the sum of all replicas'")]
        if self.settings.control_url:
            control = await find_route(self.settings.control_url, self.tag, timeout=_PATIENCE)
            if control is not Route.TRANSACTION:
                return [*found, ok("pooler", "in transaction mode; control_url goes past it")]
            return [*found, problem("pooler", "control_url too leads through a pooler in transaction mode", _POOLER)]
        if self.settings.elector in ("", "advisory"):
            return [*found, problem("pooler", "in transaction mode: a replica would refuse to start", _POOLER)]
        return [*found, ok("pooler", f"in transaction mode, with the elector {self.settings.elector}")]

    async def _look_at_listening(self, connection: pg.Connection) -> Finding:
        """A hint that was sent must be heard. The first of each kind are the listener's own, to say that it began."""
        calls, began, heard = 0, asyncio.Event(), asyncio.Event()

        def hear(_: Hint) -> None:
            nonlocal calls
            calls += 1
            (began if calls <= len(HINTS) else heard).set()

        async def send() -> None:
            await began.wait()
            async with connection.transaction():
                await connection.fetch(pg.QUERIES["hint"], "finished")
            await heard.wait()

        without = "without it, work of other replicas is found within a beat or two"
        tasks = [asyncio.create_task(self.listen(hear)), asyncio.create_task(send())]
        try:
            done, _ = await asyncio.wait(tasks, timeout=_PATIENCE, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if done:
                return ok("LISTEN", "wake-ups between replicas work")
            return warning("LISTEN", f"nothing was heard within {_PATIENCE:g} s", without)
        except (RotaError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            return warning("LISTEN", str(error), without)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


async def _row(connection: pg.Connection, name: str) -> Any:
    # In a transaction: else the driver's two messages may reach two servers.
    async with connection.transaction(readonly=True):
        return await connection.fetchrow(pg.QUERIES[name])


async def _look_at_server(connection: pg.Connection) -> list[Finding]:
    row = await _row(connection, "diagnose.server")
    found = [
        ok("version", f"Postgres {row['version']}")
        if row["number"] >= 140000
        else problem("version", f"Postgres {row['version']} is too old", "rota needs 14 or later")
    ]
    if row["standby"] or row["read_only"]:
        found.append(problem("writable", "the server is read-only, or a standby", "point ROTA_URL at the primary"))
    free = row["places"] - row["taken"]
    said = f"{row['taken']} of {row['places']} taken; a replica uses up to {_PER_REPLICA}"
    if free >= _PER_REPLICA:
        found.append(ok("connections", said))
    else:
        found.append(warning("connections", said, "raise max_connections, or run fewer replicas"))
    return found + _look_at_settings(row)


def _look_at_settings(row: Any) -> list[Finding]:
    found = []
    if not row["fsync"]:
        found.append(warning("durability", "fsync is off: a power cut may damage the database", "set fsync = on"))
    elif row["synchronous_commit"] in ("off", "local"):
        said = f"synchronous_commit is {row['synchronous_commit']} for plain sessions"
        found.append(warning("durability", said, "rota sets it on for its own; your own commits may be lost"))
    else:
        found.append(ok("durability", f"fsync on, synchronous_commit {row['synchronous_commit']}"))
    names = ("statement_timeout", "idle_session_timeout", "idle_in_transaction_session_timeout")
    limits = ", ".join(f"{name} {row[name]}" for name in names if row[name] != "0")
    found.append(ok("timeouts", f"for plain sessions: {limits or 'none'}; rota sets its own"))
    if not row["autovacuum"]:
        found.append(warning("autovacuum", "it is off: rota's tables grow without end", "set autovacuum = on"))
    return found


async def _look_at_clock(connection: pg.Connection) -> Finding:
    """Of a few round trips the shortest says most: the server looked at its clock somewhere between."""
    best: tuple[float, float] | None = None
    for _ in range(_LOOKS):
        sent, here = steady(), datetime.now(UTC)
        [there] = await _row(connection, "diagnose.clock")
        trip = steady() - sent
        offset = (there - here - timedelta(seconds=trip / 2)).total_seconds()
        if best is None or trip < best[0]:
            best = trip, offset
    assert best is not None
    trip, offset = best
    said = f"the database's is {abs(offset):.3f} s {'ahead' if offset > 0 else 'behind'} (±{trip / 2:.3f} s)"
    if abs(offset) - trip / 2 <= _FAR:
        return ok("clock", said)
    return warning("clock", said, "ticks go by the database's clock; set this machine's, or logs will mislead")


async def _look_at_rights(connection: pg.Connection) -> list[Finding]:
    row = await _row(connection, "diagnose.rights")
    grants = "see the grants in docs/operations.md, or run `rota migrate` as their owner"
    if not row["there"]:
        if row["may_create"]:
            return [ok("rights", "this role may create the schema rota")]
        advice = "let the owner run `rota migrate` or what `rota sql` prints, then grant this role its use"
        return [problem("rights", "there is no schema rota, and this role may not create it", advice)]
    if not row["may_use"]:
        return [problem("rights", "this role may not use the schema rota", grants)]
    if row["refused"]:
        return [problem("rights", f"this role may not read and write {', '.join(row['refused'])}", grants)]
    return [ok("rights", "this role may read and write rota's tables")]


async def _look_at_tables(connection: pg.Connection) -> list[Finding]:
    found = []
    try:
        [moved] = await _row(connection, "diagnose.moved")
        if abs(moved) > _FAR:
            found.append(_moved_clock(moved))
    except asyncpg.PostgresError:
        pass  # no tables, or no right to use them: that was said
    bloated = await _row(connection, "diagnose.bloat")
    if bloated is not None:
        said = f"{bloated['name']} has {bloated['dead']} dead rows beside {bloated['live']} live ones"
        found.append(warning("vacuum", said, f"run VACUUM rota.{bloated['name']}, and see why autovacuum does not"))
    oldest = await _row(connection, "diagnose.oldest")
    if oldest is not None:
        said = f"session {oldest['pid']} ({oldest['name']}) has a transaction open for {oldest['age'] / 3600:.1f} h"
        found.append(warning("vacuum", said, "end it: what became dead since then cannot be cleaned up"))
    return found or [ok("vacuum", "nothing is left lying about")]


def _moved_clock(seconds: float) -> Finding:
    return warning("clock", f"rota_now() is {seconds:+.0f} s off the server's clock", "was a test's clock left moved?")
