"""Outbox: what a replica has to tell the store about its runs. Nothing leaves it before the store has answered.

Outcomes are sent as soon as the last ones are answered for, and go together while they wait. Reports of progress may
be overtaken by later ones, and get lost with the replica.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rota.errors import BadInput
from rota.events import Event, RunTakenOver, ServiceFailed
from rota.service import Wake, end_if_cancelled
from rota.store import Claim, Finished, Outcome, Store

_BATCH, _MOST = 1000, 10_000
_PROGRESS_EVERY = 0.5


class Outbox:
    """On the loop of the handlers, but for `report`, which their threads may call too."""

    def __init__(
        self,
        store: Store,
        emit: Callable[[Event], None],
        *,
        slot_freed: Callable[[], None],
        sent: Callable[[], None],
        looked: Callable[[], None],
        followed: Callable[[int], None],
    ) -> None:
        self._store, self._emit = store, emit
        self._slot_freed, self._sent, self._looked, self._followed = slot_freed, sent, looked, followed
        self._outcomes: list[Outcome] = []
        self._used_up: list[int] = []
        self._progress: dict[int, tuple[int, int, str]] = {}
        self._to_send = Wake()

    def __bool__(self) -> bool:
        return bool(self._outcomes or self._used_up)

    @property
    def full(self) -> bool:
        """The store takes outcomes more slowly than they come, or not at all: no time to begin more."""
        return len(self._outcomes) >= _MOST

    @property
    def runs(self) -> set[int]:
        """Those that ended here, and whose outcomes the store does not have."""
        return {outcome.id for outcome in self._outcomes}

    def put(self, outcome: Outcome | None, used_up: int | None) -> None:
        """How a run ended, if that is for this replica to say, and the token of a claim of which it was the last."""
        if outcome is not None:
            self._outcomes.append(outcome)
        if used_up is not None:
            self._used_up.append(used_up)
        if outcome is None or len(self._outcomes) == 1:  # what comes behind others goes with them
            self._to_send.set_here()

    def clear(self) -> None:
        """Nothing of it is for this replica to say any more."""
        self._outcomes.clear()
        self._used_up.clear()
        self._progress.clear()

    def report(self, claim: Claim, progress: str) -> None:
        self._progress[claim.id] = (claim.id, claim.token, progress)

    async def run(self) -> None:
        pause = 0.05
        while True:
            await self._to_send.wait(1.0 if not self._progress else _PROGRESS_EVERY)
            try:
                await self.empty()
                pause = 0.05
            except Exception as error:  # an outcome is never given up
                end_if_cancelled()
                self._emit(ServiceFailed("flusher", error))
                await asyncio.sleep(pause)
                pause = min(pause * 2, 2.0)
                self._to_send.set_here()
            self._looked()

    async def empty(self) -> None:
        """Send what there is, and what comes meanwhile."""
        while self:
            batch, used_up = self._outcomes[:_BATCH], self._used_up[:]
            if len(self._outcomes) > _BATCH:
                used_up = []
            finished = await self._finish(batch, used_up)
            del self._outcomes[: len(batch)], self._used_up[: len(used_up)]
            for run_id in finished.lost:
                self._emit(RunTakenOver(run_id))
            follow = sum(outcome.then is not None for outcome in batch)
            if finished.freed or follow or any(outcome.state == "queued" for outcome in batch):
                self._slot_freed()
            if follow:
                self._followed(follow)
            self._sent()
        if self._progress:
            reports, self._progress = list(self._progress.values()), {}
            await self._store.report_progress(reports)

    async def _finish(self, batch: list[Outcome], used_up: list[int]) -> Finished:
        try:
            return await self._store.finish_runs(batch, used_up)
        except BadInput as error:
            # One of them cannot be stored. It must not keep the others: it fails, with the reason.
            if len(batch) == 1:
                replaced = Outcome(id=batch[0].id, token=batch[0].token, slot=batch[0].slot, state="failed",
                                   error=f"the outcome could not be stored: {error!a}")  # fmt: skip
                return await self._store.finish_runs([replaced], used_up)
        parts = [await self._finish([outcome], []) for outcome in batch]
        await self._store.finish_runs([], used_up)
        return Finished(
            accepted=frozenset().union(*(part.accepted for part in parts)),
            lost=tuple(run_id for part in parts for run_id in part.lost),
            freed=any(part.freed for part in parts),
        )
