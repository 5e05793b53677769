"""User code as it should be: nothing to say about it."""

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from rota import (
    Breaker,
    Context,
    Leadership,
    LeadershipLost,
    LockNotAcquired,
    Permanent,
    Retry,
    Rota,
    RunFailed,
    Singleton,
    current_context,
)

app = Rota("sqlite:///shop.db", beat=2.0, lease=6.0, dead_after=10.0, elector="file", scheduler="leader")


@dataclass
class Position:
    offset: int = 0
    seen: dict[str, int] = field(default_factory=dict)


@app.job
async def bare(ctx: Context, n: int) -> int:
    return n


@app.job("images.resize", retry=Retry(attempts=5), timeout=timedelta(minutes=1), breaker=Breaker(failures=3))
async def resize(path: str, width: int = 800) -> int:
    return width


@app.job(transactional=True)
async def post(ctx: Context, amount: int) -> None:
    await ctx.connection.execute("insert into entries values ($1)", amount)


@app.job(retry=3)
def shout(ctx: Context, text: str) -> str:
    ctx.progress(1, 2, "half")
    return "" if ctx.stopping else text.upper()


@resize.on_failure
async def tell(run_id: int, error: str) -> None:
    await shout.enqueue(error)


@shout.on_failure
def tell_too(ctx: Context, run_id: int, error: str) -> None:
    ctx.log.error("%s %s", run_id, error)


@app.cron("0 6 * * SAT", name="weekend", parameters={"region": "us"})
@app.every("1h", catch_up="all", overlap="queue", parameters={"region": "eu"}, skip_if_older_than=timedelta(days=2))
@app.job
async def refresh(region: str) -> None:
    context = current_context()
    if context is None or context.tick.schedule_id is None:
        raise Permanent(region)


@app.singleton(state=Position, heartbeat=30, expect_every=timedelta(minutes=1))
async def importer(me: Singleton[Position]) -> None:
    async with me.execution(), me.update() as state:
        state.seen["a"] = state.offset
    me.state.offset += 1


@app.singleton
async def lonely() -> None: ...


@app.singleton(name="lonelier")
async def lonelier(me: Singleton[None]) -> None:
    print(me.name, me.leadership.term)


@app.recovery
def tidy() -> None: ...


@app.leader_only(role="exchange", takeover="strict")
async def poll(me: Leadership) -> None:
    while me.leading:
        await asyncio.sleep(1)


@app.on_lose_leadership(role="exchange")
async def withdraw() -> None: ...


async def main() -> None:
    async with app:
        run = await resize.using(key="a", delay=timedelta(minutes=1), priority=1).enqueue("a.png", width=3)
        await resize.enqueue_many(resize.call(str(n)) for n in range(3))
        await app.enqueue_many([resize.call("a"), shout.using(key="s").call("b")])
        here: int = await resize("a.png")
        loud: str = shout("text")
        try:
            wide: int = await run.result(timeout=1)
        except (RunFailed, TimeoutError):
            wide = 0
        print(here, loud, wide, run.id, run.created)
        schedule = await app.schedule(resize, "0 3 * * *", name="x", parameters={"path": "a"}, timezone="Europe/Paris")
        await schedule.update(cron="every 5m", priority=3, next_run_at=datetime.now(UTC))
        print(schedule.upcoming(datetime.now(UTC))[0].isoformat())
        try:
            async with app.lock("ledger", timeout=3) as lock:
                lock.check()
                print(lock.fence + 1)
        except (LockNotAcquired, LeadershipLost):
            pass
        number: int = await app.serialize("x").run(resize, "a")
        print(number, await app.ids.next())
