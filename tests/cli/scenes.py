"""What the commands of the transcript meet: a store whose clock stands still, and later a replica that lives."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rota import Rota, Singleton
from rota.store import NewRun, Store
from tests.app.waiting import until
from tests.harness import freeze_clock
from tests.store.steps import claim_one, enqueue, finish, fire, opened, scheduled

URL = "sqlite:///rota.db"
NOW = datetime(2031, 5, 14, 12, 0, 0, tzinfo=UTC)
SERVICE = """\
from rota import Rota

app = Rota()


@app.every("1h")
async def collect() -> None: ...


@app.job()
async def close_books(year: int) -> None: ...
"""
SCHEDULES = """\
[[schedule]]
job = "collect"
cron = "*/10 * * * *"
timezone = "Europe/Paris"
overlap = "queue"

[[schedule]]
job = "close_books"
cron = "0 3 L * *"
timezone = "Europe/Paris"
parameters = { year = 2031 }
"""
CRONTAB = "30 2 * * *  backup.sh --full\n"
ERROR = """\
ConnectionRefusedError: the mail server does not answer

  File "shop/mail.py", line 12, in mail
    server.connect()
"""


async def a_service(_: AsyncExitStack) -> None:
    """A module to run, and a clock that stands still at noon."""
    for name, text in (("service.py", SERVICE), ("schedules.toml", SCHEDULES), ("old.crontab", CRONTAB)):
        await asyncio.to_thread(Path(name).write_text, text)
    await freeze_clock(URL, NOW)


async def a_history(_: AsyncExitStack) -> None:
    """Runs of every kind, until shortly after two in the afternoon."""
    async with opened(URL) as store:
        await _books(store)
        await _mail(store)
        await freeze_clock(URL, NOW + timedelta(minutes=5))
        await scheduled(store, job_id="collect", cron="every 5m", name="default")
        for minutes in (10, 120):
            await freeze_clock(URL, NOW + timedelta(minutes=minutes, seconds=1))
            await fire(store, jobs=["collect"])
            if minutes == 10:
                await finish(store, await claim_one(store, jobs=["collect"]))
        await claim_one(store, jobs=["collect"])
        await store.enqueue([NewRun(job_id="report", delay=3600.0)])
        await freeze_clock(URL, NOW + timedelta(minutes=121))


async def _books(store: Store) -> None:
    await enqueue(
        store, job_id="close_books", key="books-2030", parameters='{"year":2030}', correlation_id="books-2030"
    )
    claimed = await claim_one(store, jobs=["close_books"])
    await store.report_progress([(claimed.id, claimed.token, '{"done":12,"total":12,"note":"december"}')])
    await freeze_clock(URL, NOW + timedelta(seconds=192))
    await finish(store, claimed, result='{"pages":31}')


async def _mail(store: Store) -> None:
    await enqueue(store, job_id="mail", parent_id=1, correlation_id="books-2030")
    await finish(store, await claim_one(store, jobs=["mail"]), "queued", error=ERROR, delay=2.0)
    await freeze_clock(URL, NOW + timedelta(seconds=195))
    await store.promote_due(10)
    claimed = await claim_one(store, jobs=["mail"])
    await freeze_clock(URL, NOW + timedelta(seconds=200))
    await finish(store, claimed, "failed", error=ERROR)


@dataclass
class Position:
    offset: int = 0


async def a_replica(stack: AsyncExitStack) -> None:
    """web-1 leads a role, has a singleton, holds a lock and is in the middle of a run."""
    app = Rota(URL, replica="web-1")
    at_work, goes_on = asyncio.Event(), asyncio.Event()
    stack.callback(goes_on.set)

    @app.job()
    async def resize() -> None:
        try:
            async with app.lock("ledger"):
                at_work.set()
                await goes_on.wait()
        finally:
            at_work.set()

    @app.leader_only(role="exchange")
    async def poll() -> None:
        await asyncio.Event().wait()

    @app.singleton(state=Position)
    async def importer(me: Singleton[Position]) -> None:
        me.state.offset = 42
        await asyncio.Event().wait()

    await stack.enter_async_context(app)
    await resize.enqueue()
    await at_work.wait()

    async def settled() -> bool:
        seats, _ = await app.store.look_roles()
        states = [row.state for row in await app.store.list_singletons()]
        return len(seats) == 2 and all(seat.alive for seat in seats) and states == ['{"offset":42}']

    await until(settled)
