"""Lateness: how long after its due time a tick's handler starts, with two replicas that compete for it.

The replicas and the database share the machine's clock, so the handler's own time can be compared with the due time.
"""

from __future__ import annotations

from tests.harness import execute

from bench.machine import Bench, client, percentile, workers


async def measure(bench: Bench) -> None:
    for store in ("postgres", "sqlite"):
        late = await _every_second(bench, store, bench.many(30, 3))
        bench.keep(f"tick lateness ms, {store}", late)
        bench.add("tick lateness p50", percentile(late, 0.5), "ms", store=store, ticks=len(late))
        bench.add("tick lateness p99", percentile(late, 0.99), "ms", store=store)
        bench.add("tick lateness, the latest", max(late), "ms", store=store)


async def _every_second(bench: Bench, store: str, seconds: int) -> list[float]:
    url = bench.database(store)
    async with client(url) as app, workers(url, 2) as running:
        await app.schedule("late", "every 1s")
        await running.wire.hear("tick")  # the first one opens connections and prepares statements
        ticks = await running.wire.collect("tick", seconds)
    due = [tick[0] for tick in ticks]
    assert len(due) >= seconds - 1, f"{len(due)} ticks in {seconds} s"
    assert len(set(due)) == len(due), "a tick ran twice"
    assert max(due) - min(due) == len(due) - 1, "a tick is missing"
    await no_duplicates(url)
    return [(began - due_at) * 1000 for due_at, began, _ in ticks]


async def no_duplicates(url: str) -> None:
    """By the books, not only by what the handlers said."""
    twice = await execute(
        url, "select 1 from job_runs group by config_id, due_at having count(*) > 1 or sum(attempt) > 1"
    )
    assert not twice, "a tick has two runs, or a run was started twice"
