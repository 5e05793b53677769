"""The shape of everything that goes on in the background."""

from __future__ import annotations

import asyncio

from rota.errors import StoreUnavailable
from rota.service import Service
from tests.patience import PATIENCE


class Rollback(Service):
    """A transaction that cannot be rolled back when it is cancelled, the first time."""

    name = "rollback"

    def __init__(self) -> None:
        super().__init__(lambda event: None)
        self.begun, self.cancelled = asyncio.Event(), 0

    async def step(self) -> float | None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            if self.cancelled > 1:
                raise
            raise StoreUnavailable("the connection is gone") from None
        return None


async def test_one_that_is_cancelled_ends_whatever_its_step_makes_of_that() -> None:
    service = Rollback()
    task = asyncio.create_task(service.run())
    await asyncio.wait_for(service.begun.wait(), PATIENCE)
    task.cancel()
    await asyncio.wait({task}, timeout=PATIENCE)
    assert task.cancelled()
    assert service.cancelled == 1
