"""How much a replica takes for itself."""

from __future__ import annotations

from rota import Rota
from tests.app.waiting import until


async def test_a_replica_that_was_fast_takes_nothing_ahead_when_it_has_been_idle(url: str) -> None:
    """What it would have done in a moment an hour ago, another could do now."""
    app = Rota(url)

    @app.job
    async def quick(n: int) -> None: ...

    async with app:
        worker = app._worker
        assert worker is not None
        seen = 0
        for _ in range(200):
            runs = await app.enqueue_many([quick.call(n) for n in range(500)])
            await runs[-1].result()
            seen = max(seen, *(lane._ahead for lane in worker.lanes))
            if seen:
                break
        assert seen, "it never claimed ahead"

        async def forgotten() -> bool:
            return all(lane._ahead == 0 for lane in worker.lanes)

        await until(forgotten)
