"""Results: those who wait for a run to finish share one query."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rota.errors import NotFound, NotOpen, StoreUnavailable, Timeout
from rota.service import Wake
from rota.store import FINISHED, RunRow, Store

_SOONEST, _LATEST = 0.005, 0.25


class Results:
    """Asks for all awaited runs at once: soon at first, less often later, at once when told that something finished."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._waiters: dict[int, list[asyncio.Future[RunRow]]] = {}
        self._wake = Wake()
        self._task: asyncio.Task[None] | None = None

    def hint(self) -> None:
        """Something finished, here or elsewhere. On the loop."""
        if self._waiters:
            self._wake.set_here()

    async def wait(self, run_id: int, timeout: float | None) -> RunRow:
        self._store()  # closed, or open in another loop: said before anything is begun here
        future: asyncio.Future[RunRow] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(run_id, []).append(future)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._ask(), name="rota-results")
        self._wake.set_here()
        try:
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError:
            raise Timeout(f"run {run_id} has not finished within {timeout} s; it goes on") from None
        finally:
            waiting = self._waiters.get(run_id, [])
            if future in waiting:
                waiting.remove(future)
            if not waiting:
                self._waiters.pop(run_id, None)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        self._give_up(NotOpen())

    def _give_up(self, why: Exception) -> None:
        for future in [future for waiting in self._waiters.values() for future in waiting]:
            if not future.done():
                future.set_exception(why)

    async def _ask(self) -> None:
        pause = _SOONEST
        while self._waiters:
            wanted = list(self._waiters)
            try:
                rows = {row.id: row for row in await self._store().get_runs(wanted)}
            except StoreUnavailable:
                await self._wake.wait(_LATEST)
                continue
            except Exception as error:
                self._give_up(error)
                return
            found = 0
            for run_id in wanted:
                row = rows.get(run_id)
                for future in self._waiters.get(run_id, []) if row is None or row.state in FINISHED else []:
                    found += 1
                    if future.done():
                        continue
                    if row is None:
                        future.set_exception(NotFound(f"there is no run {run_id}"))
                    else:
                        future.set_result(row)
            pause = _SOONEST if found else min(pause * 1.5, _LATEST)
            await self._wake.wait(pause)
