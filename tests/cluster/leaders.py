"""A cluster of leader services, what can be done to whoever leads, and the verdict on its history."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import apsw

from rota import Rota
from tests.cluster.cluster import Cluster, Process, until
from tests.cluster.history import Act, Happened, Stored, complaints, read
from tests.cluster.proxy import Proxy
from tests.harness import Server
from tests.patience import PATIENCE

# Each term leaves a row, so that one that nobody lived to tell of is known too.
POSTGRES = """
create table public.acts (seq bigserial primary key, role text not null, term bigint not null, nonce bigint not null);
create table public.terms (n bigserial primary key, role text, term bigint, nonce bigint, replica_id integer);
create function public.keep_term() returns trigger language plpgsql as $$ begin
    insert into public.terms (role, term, nonce, replica_id) values (new.role, new.term, new.nonce, new.replica_id);
    return null;
end $$;
create trigger keep_term after update on rota.roles for each row when (new.term <> old.term)
    execute function public.keep_term()
"""
SQLITE = """
create table acts (seq integer primary key autoincrement, role text not null, term integer, nonce integer);
create table terms (n integer primary key autoincrement, role text, term integer, nonce integer, replica_id integer);
create trigger keep_term after update on roles when new.term <> old.term begin
    insert into terms (role, term, nonce, replica_id) values (new.role, new.term, new.nonce, new.replica_id);
end
"""
ROLES = "select r::text, clock_timestamp()::text from rota.roles r union all select p::text, '' from rota.replicas p"
SESSIONS = """
select pid, application_name, state, wait_event, pg_blocking_pids(pid)::text, (clock_timestamp() - state_change)::text,
       left(query, 60)
from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
"""
DEFAULTS = {"ROTA_BEAT": "1.0", "ROTA_LEASE": "3.5", "ROTA_DEAD_AFTER": "5.0"}


class Leaders(Cluster):
    program = "tests.cluster.leader_service"

    def __init__(self, url: str, folder: Path, **environment: str) -> None:
        super().__init__(url, folder, **environment)
        self.proxies: dict[int, Proxy] = {}

    async def prepare(self) -> None:
        async with Rota(self.url).client():
            pass
        for statement in SQLITE.split(";\n", 2) if self.url.startswith("sqlite") else [POSTGRES]:
            await self.script(statement)

    async def script(self, text: str) -> None:
        """Several statements at once."""
        if self.url.startswith("sqlite"):
            await self.sql(text)
            return
        import asyncpg

        connection = await asyncpg.connect(self.url)
        try:
            await connection.execute(text)
        finally:
            await connection.close()

    # -- looking -----------------------------------------------------------------------------------

    def seen(self, kind: str, role: str = "leader", *, after: int = 0) -> list[tuple[Process, dict[str, Any]]]:
        """The events of a kind in terms after this one, the earliest first."""
        found = [
            (process, event)
            for process in self.all
            for event in process.saw(kind)
            if event["role"] == role and event["term"] > after
        ]
        return sorted(found, key=lambda pair: pair[1]["at"])

    async def saw(
        self, kind: str, role: str = "leader", *, after: int = 0, seconds: float = PATIENCE
    ) -> tuple[Process, dict[str, Any]]:
        """Wait for it."""

        async def look() -> list[tuple[Process, dict[str, Any]]]:
            return self.seen(kind, role, after=after)

        found = await self._until(f"{kind} of {role} after term {after}", look, seconds)
        first: tuple[Process, dict[str, Any]] = found[0]
        return first

    async def leader(self, role: str = "leader", *, after: int = 0) -> tuple[Process, int]:
        """Who leads, and in which term: the newest who has written something and is alive."""

        async def look() -> tuple[Process, int] | None:
            found = [pair for pair in self.seen("write_ok", role, after=after) if pair[1]["by"] == "service"]
            if not found:
                return None
            process, event = max(found, key=lambda pair: pair[1]["term"])
            over = any(e["role"] == role and e["term"] == event["term"] for e in process.saw("over"))
            return (process, event["term"]) if not over and process in self.replicas else None

        found: tuple[Process, int] = await self._until(f"somebody leads {role} after term {after}", look)
        return found

    async def steps_down(self, term: int, role: str = "leader") -> None:
        """Wait until whoever led in this term knows that it is over."""

        async def over() -> bool:
            return any(event["term"] == term for _, event in self.seen("over", role))

        await self._until(f"term {term} of {role} is over where it was led", over)

    async def _until(self, what: str, check: Callable[[], Awaitable[Any]], seconds: float = PATIENCE) -> Any:
        """In vain, it tells how things stand: who said what last, and what each session of the server is at."""
        try:
            return await until(what, check, seconds)
        except AssertionError as error:
            for replica in self.all:
                last = [event for event in replica.events if not event["event"].startswith("write")][-12:]
                error.add_note(f"{replica.pid} (replica {replica.replica_id}): " + "\n    ".join(map(str, last)))
            if not self.url.startswith("sqlite"):
                for table, rows in [("roles", await self.sql(ROLES)), ("sessions", await self.sql(SESSIONS))]:
                    error.add_note(f"{table}:\n    " + "\n    ".join(map(str, rows)))
            raise

    def history(self) -> list[Happened]:
        return [event for process in self.all for event in read(process.events)]

    # -- doing -------------------------------------------------------------------------------------

    async def freeze(self, victim: Process) -> int:
        """SIGSTOP; the instant. On SQLite not inside of a write transaction, which would keep the file from all."""
        while True:
            at = time.monotonic_ns()
            victim.send(signal.SIGSTOP)
            if not self.url.startswith("sqlite") or await asyncio.to_thread(_writable, self.url):
                return at
            victim.send(signal.SIGCONT)
            await asyncio.sleep(0.01)

    async def verdict(self, *, interrupted: bool = False) -> None:
        history = self.history()  # before the store is read: those who live go on writing
        stored = [Stored(*row) for row in await self.sql("select role, term, nonce, replica_id from terms order by n")]
        acts = [Act(*row) for row in await self.sql("select seq, role, term, nonce from acts order by seq")]
        found = complaints(history, stored, acts)
        for replica in self.all:
            text = replica.stderr.read_text()
            if "Traceback" in text:
                found.append(f"stderr of {replica.pid}: {text[-3000:]}")
        assert not found, f"{len(found)} complaints:\n" + "\n".join(found[:20])


def _writable(url: str) -> bool:
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    try:
        connection.set_busy_timeout(300)
        connection.execute("begin immediate")
        connection.execute("rollback")
        return True
    except apsw.BusyError:
        return False
    finally:
        connection.close()


def through(proxy: Proxy, url: str) -> str:
    database = url.removeprefix("postgresql://postgres@/").partition("?")[0]
    return f"postgresql://postgres@127.0.0.1:{proxy.port}/{database}"


@asynccontextmanager
async def leaders(url: str, folder: Path, *, count: int = 3, **environment: str) -> AsyncIterator[Leaders]:
    """At work, and judged at the end."""
    it = Leaders(url, folder, **environment)
    try:
        await it.prepare()
        await it.start(count)
        yield it
        await it.verdict()
    finally:
        await it.close()


@asynccontextmanager
async def apart(server: Server, folder: Path, *, count: int = 3, **environment: str) -> AsyncIterator[Leaders]:
    """The same on Postgres, each replica behind a proxy of its own."""
    it = Leaders(server.new_database(), folder, **environment)
    async with AsyncExitStack() as stack:
        try:
            await it.prepare()
            for _ in range(count):
                proxy = await stack.enter_async_context(Proxy(server.socket))
                replica = await it.spawn(ROTA_URL=through(proxy, it.url))
                it.proxies[replica.pid] = proxy
            for replica in it.replicas:
                await replica.said("Ready")
            yield it
            await it.verdict()
        finally:
            await it.close()
