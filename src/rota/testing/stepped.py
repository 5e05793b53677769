"""A replica whose parts are the real ones, but do their steps when they are told to.

Beat, caretaker and scheduler stay on a thread of their own, as in production; the worker and its handlers are in the
test's loop. Nothing looks at the store between two steps.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from rota.app import Rota
from rota.attempt import Attempt
from rota.errors import RotaError, StoreUnavailable
from rota.events import Event, ReplicaJoined, RunFinished, RunTakenOver, ServiceFailed
from rota.offer import Offer
from rota.replica import Replica
from rota.service import Service
from rota.settings import Settings
from rota.store import Lifeline, Outcome, Store
from rota.stores import open_store
from rota.testing.gate import Gate, GatedStore, Stepping
from rota.worker import Worker

# A test that is stopped at a breakpoint must not kill its replicas: silence is what the test says it is.
_BEAT, _LEASE, _DEAD_AFTER = 60.0, 600.0, 900.0
_ROUNDS = 100


class SteppedWorker(Worker):
    """Claims when told to; executes, times out and records by itself."""

    def __init__(self, store: GatedStore, *args: Any, **kwargs: Any) -> None:
        super().__init__(cast(Store, store), *args, **kwargs)
        self.stirred: Callable[[], None] = lambda: None
        """Called when something ended or was recorded."""
        invoke, gate = self._execution.invoke, store.gate
        self._execution.invoke = lambda a: Stepping(invoke(a), gate) if a.job.is_async else invoke(a)

    def _claiming(self) -> list[asyncio.Task[None]]:
        return []

    def offer(self, most: int) -> Offer:
        return Offer(most)  # without a place: what is due becomes ready first, and starts when the test says so

    async def claim(self) -> int:
        """Take what is ready and start it; how many runs."""
        claimed = 0
        for claimer in self._claimers:
            while (room := claimer.lane.room()) and (replica_id := self._standing.number()):
                taken = await claimer.claim(replica_id, room)
                claimed += len(taken.claims)
                if not taken.more:
                    break
        return claimed

    @property
    def at_rest(self) -> bool:
        """Nothing runs, and everything is recorded."""
        return not (self._attempts or self._outbox)

    @property
    def unrecorded(self) -> set[int]:
        return self._outbox.runs

    def _settle(self, attempt: Attempt, outcome: Outcome | None) -> None:
        super()._settle(attempt, outcome)
        self.stirred()

    def learn(self) -> None:
        super().learn()
        self.stirred()

    def die(self) -> None:
        """Nothing that it held is its business any more."""
        for attempt in list(self._attempts.values()):
            attempt.stop("lost")
            if not attempt.job.is_async or attempt.task is None:
                self._settle(attempt, None)
        for lane in self.lanes:
            lane.take_queued()
        self._outbox.clear()


class SteppedReplica(Replica):
    """Its services do not run by themselves."""

    def _set_going(self, services: list[Service]) -> list[asyncio.Task[None]]:
        return []

    async def beat(self) -> None:
        """Two beats, since what the first one learns the second one acts on; then the dead are looked after."""

        async def steps() -> None:
            for service in (self.heart, self.heart, self.caretaker):
                await self._step(service)

        await self.do(steps())

    async def schedule(self) -> None:
        """Everything that is due becomes ready."""

        async def steps() -> None:
            for _ in range(_ROUNDS):
                if await self._step(self.scheduler) != 0:
                    return

        await self.do(steps())

    async def _step(self, service: Service) -> float | None:
        try:
            return await service.step()
        except RotaError as error:
            self.emit(ServiceFailed(service.name, error))
            return None

    def lose_trust(self) -> None:
        """So long without a confirmed beat that it knows itself that the others may have given it up."""
        self.trusted_until = 0.0
        self.trust.end()

    async def hang_up(self, lifelines: list[Lifeline]) -> None:
        async def close() -> None:
            for lifeline in lifelines:
                await lifeline.close()

        with contextlib.suppress(StoreUnavailable):
            await self.do(close())


class Twin(Rota):
    """A replica of an app, in the same process as its others: the same jobs and schedules, stores of its own."""

    def __init__(self, app: Rota, name: str, url: str, given_up: set[int]) -> None:
        super().__init__()
        self.settings = replace(alike(app.settings, url), replica=name)
        self.jobs, self._schedules = app.jobs, app._schedules
        self._logging = app._logging  # which hears everything that happens here
        self.gate = Gate(given_up)
        self.incarnations: set[int] = set()
        self._ended: list[RunFinished] = []
        self.events.subscribe(ReplicaJoined, lambda event: self.incarnations.add(event.replica_id))
        self.events.subscribe(RunFinished, self._ended.append)
        self.events.subscribe(RunTakenOver, lambda event: self._forget({event.run_id}))
        self.events.subscribe(Event, app.events.emit)

    def _new_store(self, settings: Settings, tag: str | None = None) -> Store:
        return cast(Store, GatedStore(open_store(settings, tag=tag), self.gate))

    _new_worker = SteppedWorker
    _new_replica = SteppedReplica

    @property
    def worker(self) -> SteppedWorker:
        assert isinstance(self._worker, SteppedWorker)
        return self._worker

    @property
    def replica(self) -> SteppedReplica:
        assert isinstance(self._replica, SteppedReplica)
        return self._replica

    def ended(self) -> list[RunFinished]:
        """What was recorded since this was last asked; an outcome that the store has not taken down is none yet."""
        unrecorded = self._worker.unrecorded if isinstance(self._worker, SteppedWorker) else set()
        found = [event for event in self._ended if event.run_id not in unrecorded]
        self._ended[:] = [event for event in self._ended if event.run_id in unrecorded]
        return [event for event in found if event.state != "lost"]

    def _forget(self, run_ids: set[int]) -> None:
        self._ended[:] = [event for event in self._ended if event.run_id not in run_ids]

    async def die(self) -> None:
        """As `kill -9` looks to the others: no good-bye, and the session lock is free."""
        self.gate.set("dead")
        self._forget(self.worker.unrecorded)
        self.worker.die()
        if self._keeper is not None:
            self._keeper._holds.clear()
        await self.replica.hang_up(self.gate.stranded)
        await self.__aexit__(None, None, None)


def alike(settings: Settings, url: str) -> Settings:
    """The app's settings, less what reaches out of the test, or would take its time."""
    return replace(
        settings, url=url, control_url="", elector="", scheduler="shared", probes="", hints=False, migrate=True,
        exit_on_lost_leadership=False, keep_days=0.0, shutdown_timeout=0.0, beat=_BEAT, lease=_LEASE,
        dead_after=_DEAD_AFTER,
    )  # fmt: skip
