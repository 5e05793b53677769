"""Caretaker: the dead are noticed, what they held is freed, history is pruned.

One replica does it, the one whose beat says so. A replica is given up when its session lock was free at two looks in a
row (a lost connection is taken up again faster than that), or when its beat is stale; the store looks once more, in the
transaction that removes its row, and whoever removes the row frees what it held.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from rota.events import Event, ReplicasBuried, ScheduleInvalid
from rota.service import Service
from rota.store import Buried, Pulse, Store

SECOND_LOOK = 0.5
_SWEEP_EVERY = 5.0
_TIDY_EVERY = 30.0
_PRUNE_EVERY = 60.0
_PRUNE_BATCH = 5000


class Caretaker(Service):
    name = "caretaker"

    def __init__(
        self,
        store: Store,
        *,
        keep_days: float,
        freed: Callable[[Buried], None],
        emit: Callable[[Event], None],
    ) -> None:
        super().__init__(emit)
        self._store, self._keep_days, self._freed = store, keep_days, freed
        self._on_duty = self._overdue = False
        self._seen_free: dict[int, float] = {}
        self._dead: set[int] = set()
        self._swept = self._tidied = self._pruned = 0.0

    def observe(self, pulse: Pulse) -> None:
        """Take in what the latest beat saw of the others."""
        now = time.monotonic()
        started = pulse.caretaker and not self._on_duty
        self._on_duty = pulse.caretaker
        self._overdue = pulse.due_in is not None and pulse.due_in <= 0
        self._seen_free = {s: self._seen_free.get(s, now) for s in pulse.suspects}
        self._dead = {s for s, seen in self._seen_free.items() if now - seen >= SECOND_LOOK * 0.96} | set(pulse.stale)
        if self._dead or started:
            self.wake()

    async def step(self) -> float | None:
        if not self._on_duty:
            return None
        dead, self._dead = self._dead, set()
        now = time.monotonic()
        if dead or now - self._swept >= _SWEEP_EVERY:
            self._swept = now
            buried = await self._store.bury(sorted(dead))
            if buried.replicas or buried.requeued or buried.cancelled:
                self.emit(ReplicasBuried(buried.replicas, buried.requeued, buried.cancelled))
                self._freed(buried)
            if self._overdue:  # what nobody knows is never fired
                for schedule_id, reason in await self._store.mark_unknown():
                    self.emit(ScheduleInvalid(schedule_id, reason))
        if dead or now - self._tidied >= _TIDY_EVERY:
            # What has expired counts for nothing already; what the dead left behind goes with them, all but always.
            self._tidied = now
            await self._store.expire_states()
            await self._store.sweep_locks()
        if self._keep_days and now - self._pruned >= _PRUNE_EVERY:
            if await self._store.prune(self._keep_days, _PRUNE_BATCH) < _PRUNE_BATCH:
                self._pruned = now
            return 0.1
        return _SWEEP_EVERY
