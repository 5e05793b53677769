"""Cluster: replicas of an app in one process, a clock that the test moves, and what can go wrong with them.

Every part is the real one (store, scheduler, worker, caretaker); they do their steps when the test says so, until there
is nothing left to do. So a test needs no sleeping, and knows when everything that can have happened has happened.

Death is told by silence, and silence is counted in the cluster's own time: a replica that was killed is noticed `beat`
seconds and a second look later, one that is frozen or cut off after `dead_after`, as the app's settings have it.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from rota.app import Rota
from rota.caretaker import SECOND_LOOK
from rota.errors import BadInput, NotFound, Timeout
from rota.run import Run
from rota.service import Wake
from rota.store import RunFilter, RunRow
from rota.testing.clock import Clock, duration, execute, in_utc
from rota.testing.front import fronted
from rota.testing.gate import Passage
from rota.testing.member import Condition, Member
from rota.testing.ran import Ran, ran
from rota.testing.stepped import Twin

_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
_ROUNDS = 50


class Cluster:
    """Made by `cluster()`. Replicas go by their number, from 0."""

    def __init__(self, url: str, clock: Clock, outside: Twin, members: list[Member]) -> None:
        self.url, self.clock, self._outside, self.replicas = url, clock, outside, members
        self._given_up = outside.gate.given_up
        self._stirred = Wake()
        for member in members:
            member._twin.worker.stirred = self._stirred.set_here

    # -- time --------------------------------------------------------------------------------------

    async def now(self) -> datetime:
        """The cluster's time, in UTC."""
        return await self._outside.store.now()

    async def advance(
        self,
        by: timedelta | None = None,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
    ) -> datetime:
        """Let so much time pass at once, as if everybody had slept: `it.advance(hours=3)`. The new time.

        What falls due is not run by this; and ticks that were leapt over are missed ones. `run_for` goes through them.
        """
        return await self.travel_to(await self.now() + duration(by, days, hours, minutes, seconds))

    async def travel_to(self, moment: datetime) -> datetime:
        """Let time pass until this moment, at once. The new time, in UTC."""
        moment, before = await self._ahead(moment), await self.now()
        await self._plan()
        after = await self.clock.travel_to(moment)
        for member in self._with("paused", "cut off", "killed"):
            await self._be_silent(member, (after - before).total_seconds())
        if await self._unburied():
            await self._notice()
        return after

    async def _ahead(self, moment: datetime) -> datetime:
        moment, now = in_utc(moment), await self.now()
        if moment < now:
            raise BadInput(f"the cluster's time is {now}: it cannot go back to {moment}")
        return moment

    async def _be_silent(self, member: Member, seconds: float) -> None:
        member._silent_for += seconds
        if member.condition != "killed" and member._silent_for >= member._lease:
            member._twin.replica.lose_trust()
        patience = member._beat + SECOND_LOOK if member.condition == "killed" else member._dead_after
        if member._silent_for >= patience and not member.ids <= self._given_up:
            await self._make_stale(member)
            self._given_up |= member.ids

    async def _make_stale(self, member: Member) -> None:
        """Its last beat is as long ago as it would be by now, and a server has ended its silent sessions."""
        if self.url.startswith("sqlite:"):
            sql = "update replicas set beat_at = ? where name = ?"
            await execute(self.url, sql, f"{_LONG_AGO:%Y-%m-%d %H:%M:%S.%f}", member.name)
        else:
            sql = "update rota.replicas set beat_at = $1 where name = $2 returning session"
            for (session,) in await execute(self.url, sql, _LONG_AGO, member.name):
                sql = "select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name = $1"
                await execute(self.url, sql, session)

    async def _notice(self) -> None:
        """Everybody who lives beats; those who were silent too long are buried by one of them."""
        for _ in range(_ROUNDS):
            able = self._able()
            await asyncio.gather(*(member._twin.replica.beat() for member in able))
            if not self._with("alive") or not await self._unburied():
                return
        raise AssertionError(f"nobody buried {await self._unburied()}, which were silent for too long")

    async def _unburied(self) -> list[str]:
        gone = self._given_up
        return [row.name for row in await self._outside.store.list_replicas() if row.id in gone] if gone else []

    def _with(self, *conditions: Condition) -> list[Member]:
        return [member for member in self.replicas if member.condition in conditions]

    def _able(self) -> list[Member]:
        """Those who can take a step, whatever comes of it."""
        return self._with("alive", "cut off")

    # -- running -----------------------------------------------------------------------------------

    async def _plan(self) -> None:
        """All look at once, as they would: what is due becomes ready, and new schedules get their next tick."""
        await asyncio.gather(*(member._twin.replica.schedule() for member in self._able()))

    async def start_due(self) -> int:
        """Start what is due or ready, on whichever replica gets it, and do not wait for it. How many runs."""
        await self._notice()
        await self._plan()
        return sum([await member._twin.worker.claim() for member in self._with("alive")])

    async def run_due(self, *, timeout: float = 30.0) -> list[Ran]:
        """Run what is due or ready now, and what comes of it, until there is nothing left. What ran, in order.

        A job that fails does not raise here; its `error` says why. `timeout`: real seconds, for what hangs.
        """
        while await self.start_due() or not self._at_rest():
            await self._rested(timeout)
        return await self._tell()

    async def _rested(self, timeout: float) -> None:
        """Until nothing runs any more on those who live."""
        try:
            async with asyncio.timeout(timeout):
                while not self._at_rest():
                    await self._stirred.wait()
        except TimeoutError:
            running = {member.name: member.running for member in self._with("alive") if member.running}
            raise Timeout(
                f"after {timeout:g} s these runs have not ended: {running}; "
                "start_due() starts them and does not wait, timeout= waits longer"
            ) from None

    async def run_until(self, moment: datetime, *, timeout: float = 30.0) -> list[Ran]:
        """Go through the time until this moment, stopping at everything that falls due to run it. What ran, in order.

        The way of a cluster that is up all the time: no tick is missed, retries come when their pause is over.
        """
        if moment.tzinfo is None:
            raise BadInput(
                f"{moment} has no time zone; use an aware datetime such as datetime(2027, 3, 28, tzinfo=UTC)"
            )
        done = await self.run_due(timeout=timeout)
        while (soon := await self._next_due()) is not None and soon <= moment:
            await self.travel_to(soon)
            done += await self.run_due(timeout=timeout)
        await self.travel_to(moment)
        return done + await self.run_due(timeout=timeout)

    async def run_for(
        self,
        by: timedelta | None = None,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        timeout: float = 30.0,
    ) -> list[Ran]:
        """`run_until` so much later: `await it.run_for(days=31)`."""
        by = duration(by, days, hours, minutes, seconds)
        return await self.run_until(await self.now() + by, timeout=timeout)

    async def _next_due(self) -> datetime | None:
        jobs = {job for member in self._with("alive") for job in member._twin.jobs}
        agenda = await self._outside.store.agenda(sorted(jobs))
        if agenda.next_in is None or not jobs:
            return None
        # Never nothing: rounding must not keep it before what is due.
        return await self.now() + max(timedelta(seconds=agenda.next_in), timedelta(microseconds=1))

    def _at_rest(self) -> bool:
        return all(member._twin.worker.at_rest for member in self._with("alive"))

    async def _tell(self) -> list[Ran]:
        """What ended since this was last asked."""
        events = [(event, member) for member in self.replicas for event in member._twin.ended()]
        rows = {row.id: row for row in await self._outside.store.get_runs([event.run_id for event, _ in events])}
        told = [ran(e, rows[e.run_id], m._twin.jobs[e.job_id], m.index) for e, m in events if e.run_id in rows]
        return sorted(told, key=lambda one: (rows[one.run_id].started_at or _LONG_AGO, one.run_id, one.attempt))

    # -- what can go wrong -------------------------------------------------------------------------

    async def kill(self, index: int) -> None:
        """As `kill -9`: no good-bye, its session lock is free, its handlers do not take one more step."""
        member = self._member(index, "alive", "paused", "cut off")
        member.condition = "killed"
        await member._twin.die()
        self._stirred.set_here()

    async def pause(self, index: int) -> None:
        """Freeze it, as SIGSTOP: no beat, and its async handlers stop at their next `await`."""
        self._shut(self._member(index, "alive"), "paused", "frozen")

    async def resume(self, index: int) -> None:
        """It wakes up, and does not know yet for how long it was away: its next beat tells."""
        await self._open(self._member(index, "paused"))

    async def partition(self, index: int) -> None:
        """It cannot reach the store, and does not hear from it; its handlers go on."""
        self._shut(self._member(index, "alive"), "cut off", "cut")

    async def heal(self, index: int) -> None:
        """It can reach the store again; its next beat tells whether it was given up."""
        await self._open(self._member(index, "cut off"))

    def _shut(self, member: Member, condition: Condition, passage: Passage) -> None:
        member.condition = condition
        member._twin.gate.set(passage)
        self._stirred.set_here()

    async def _open(self, member: Member) -> None:
        member.condition, member._silent_for = "alive", 0.0
        member._twin.gate.set("open")
        stranded, member._twin.gate.stranded = member._twin.gate.stranded, []
        await member._twin.replica.hang_up(stranded)
        self._stirred.set_here()

    def _member(self, index: int, *conditions: Condition) -> Member:
        if not 0 <= index < len(self.replicas):
            raise BadInput(f"there is no replica {index}: this cluster has {len(self.replicas)}, from 0")
        member = self.replicas[index]
        if member.condition not in conditions:
            raise BadInput(f"replica {index} is {member.condition}, not {' or '.join(conditions)}")
        return member

    # -- looking -----------------------------------------------------------------------------------

    async def who_ran(self, run: Run[Any] | Ran | int) -> int | None:
        """Which replica has the run, or had it last; None when nobody took it yet."""
        run_id = run if isinstance(run, int) else run.run_id if isinstance(run, Ran) else run.id
        rows = await self._outside.store.get_runs([run_id])
        if not rows:
            raise NotFound(f"there is no run {run_id}")
        return next((member.index for member in self.replicas if rows[0].replica_id in member.ids), None)

    async def ledger(self, job: str | None = None) -> list[RunRow]:
        """The rows of `job_runs`, also of ticks that did not run; the oldest first."""
        rows = await self._outside.store.find_runs(RunFilter(job_id=job, limit=100_000))
        return sorted(rows, key=lambda row: (row.due_at or row.created_at, row.id))


@asynccontextmanager
async def cluster(
    app: Rota | Callable[[], Rota], *, replicas: int = 1, start: datetime | None = None, url: str | None = None
) -> AsyncIterator[Cluster]:
    """Replicas of an app in this process, for the time of the block: `async with cluster(app, replicas=3) as it:`.

    A function instead of an app is called once for each replica, so that they may differ. `start`: the time at which
    the clock stands, else the present. `url`: an empty database to be thrown away afterwards; without one it is an
    SQLite file that is gone in the end. The app's own database is never touched.
    """
    if replicas < 1:
        raise BadInput(f"a cluster has 1 replica or more, not {replicas}")
    async with AsyncExitStack() as stack:
        if url is None:
            folder = tempfile.mkdtemp(prefix="rota-test-")
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            url = f"sqlite:///{folder}/rota.db"
        apps = [app] * replicas if isinstance(app, Rota) else [app() for _ in range(replicas)]
        settings = [its.settings for its in apps]
        given_up: set[int] = set()
        outside = Twin(apps[0], "test", url, given_up)
        await stack.enter_async_context(outside.client())
        if present := await outside.store.list_replicas():
            raise BadInput(f"there are replicas on this database ({present[0].name}): give the cluster an empty one")
        clock = Clock(url, prepared=True)
        await clock.travel_to(start or datetime.now(UTC))
        twins = {f"replica-{n}": Twin(its, f"replica-{n}", url, given_up) for n, its in enumerate(apps)}
        for its in dict.fromkeys(apps):
            await stack.enter_async_context(fronted(its, outside, twins))
        members = []
        for n, (own, twin) in enumerate(zip(settings, twins.values(), strict=True)):
            members.append(Member(n, twin, own))
            await stack.enter_async_context(_alive(members[-1]))
        it = Cluster(url, clock, outside, members)
        await it._plan()
        yield it


@asynccontextmanager
async def _alive(member: Member) -> AsyncIterator[None]:
    twin = member._twin
    await twin.__aenter__()
    try:
        yield
    finally:
        if member.condition in ("paused", "cut off"):
            await twin.die()
        elif member.condition == "alive":
            await twin.__aexit__(None, None, None)
        twin.gate.clear()
