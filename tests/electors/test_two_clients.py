"""Two clients of different make on one Lease, with cut-offs: never do both believe that they lead.

What each believes is noted by the steady clock that both sides and the server share here, and compared; and in the
server's own history nobody takes what another holds before it has been silent for the whole duration.

The other client believes for up to two retry periods longer than its renew deadline, so the Lease is that much longer.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from kubernetes_asyncio.client import ApiClient, Configuration
from kubernetes_asyncio.leaderelection.electionconfig import Config
from kubernetes_asyncio.leaderelection.leaderelection import LeaderElection
from kubernetes_asyncio.leaderelection.resourcelock.leaselock import LeaseLock

from rota.clock import steady
from rota.electors.kubernetes import KubernetesElector
from rota.errors import LeadershipLost
from tests.electors.apiserver import Fault
from tests.electors.cluster import ROLE, Cluster
from tests.electors.steps import try_to_win
from tests.patience import PATIENCE

DURATION, RETRY, DEADLINE = 4, 1, 1.5
OURS = {"kubernetes_lease_duration": DURATION, "kubernetes_renew_deadline": 3.0, "kubernetes_retry_period": 0.5}


class Beliefs:
    """When one side believed that it leads."""

    def __init__(self) -> None:
        self.spans: list[tuple[float, float]] = []
        self.until = self._began = float("-inf")

    @property
    def leads(self) -> bool:
        return steady() < self.until

    def begin(self, until: float = float("inf")) -> None:
        self._began, self.until = steady(), until

    def end(self) -> None:
        if self.until > self._began:
            self.spans.append((self._began, min(steady(), self.until)))
        self.until = self._began = float("-inf")


class Ours:
    """The elector under a small state machine: a term is trusted as long as `trusted_until` says."""

    def __init__(self, elector: KubernetesElector) -> None:
        self.beliefs, self._elector = Beliefs(), elector
        self.give_up = False

    async def run(self) -> None:
        while True:
            if not self.give_up and (fence := await try_to_win(self._elector)):
                self.beliefs.begin(self._elector.trusted_until(fence))
                with suppress(LeadershipLost):
                    while not self.give_up:
                        await self._elector.confirm(fence)
                        self.beliefs.until = self._elector.trusted_until(fence)
                        await asyncio.sleep(0.1)
                self.beliefs.end()
                if self.give_up:
                    await self._elector.resign(fence)
            await asyncio.sleep(0.1)


class Theirs:
    """The leader election of kubernetes_asyncio, begun anew whenever it ends."""

    def __init__(self, client: ApiClient, name: str) -> None:
        self.beliefs = Beliefs()
        self._client, self._name = client, name

    async def run(self) -> None:
        while True:
            lock = LeaseLock(self._name, "default", "theirs", self._client)
            await LeaderElection(Config(lock, DURATION, DEADLINE, RETRY, self._lead, self._stop)).run()

    async def _lead(self) -> None:
        self.beliefs.begin()

    async def _stop(self) -> None:
        self.beliefs.end()


@asynccontextmanager
async def running(*sides: Ours | Theirs) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(side.run()) for side in sides]
    try:
        yield
        for task in tasks:
            assert not task.done(), task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for side in sides:
            side.beliefs.end()


async def until_leads(side: Ours | Theirs, seconds: float = PATIENCE) -> float:
    began = steady()
    async with asyncio.timeout(seconds):
        while not side.beliefs.leads:
            await asyncio.sleep(0.02)
    return steady() - began


async def test_never_do_both_lead(faulty: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "kubernetes_asyncio")  # it complains of every cut-off
    async with faulty:
        faulty.server.users.add("theirs")
        configuration = Configuration(host=faulty.server.url, api_key={"BearerToken": "Bearer theirs"})
        async with ApiClient(configuration) as client:
            ours, theirs = Ours(await faulty.member("ours", **OURS)), Theirs(client, faulty.name)
            faults = faulty.server.faults
            async with running(ours, theirs):
                await until_leads(ours)
                await asyncio.sleep(1)
                await cut_off(faults, "ours", "mute", theirs)
                await asyncio.sleep(1)
                await cut_off(faults, "theirs", "busy", ours)
                await asyncio.sleep(1)
                ours.give_up = True
                assert await until_leads(theirs) < 2 * RETRY, "what was released need not be waited for"
                ours.give_up = False
                await cut_off(faults, "theirs", "busy", ours)
                await cut_off(faults, "ours", "reset", theirs)
        assert len(ours.beliefs.spans) >= 3
        assert len(theirs.beliefs.spans) >= 3
        for mine, other in itertools.product(ours.beliefs.spans, theirs.beliefs.spans):
            assert mine[1] <= other[0] or other[1] <= mine[0], (mine, other)
        check_history(faulty)


async def cut_off(faults: dict[str, Fault], who: str, fault: Fault, successor: Ours | Theirs) -> None:
    faults[who] = fault
    await until_leads(successor)
    del faults[who]


def check_history(cluster: Cluster) -> None:
    """Nobody takes what another holds before it has been silent for the whole duration."""
    taken, holder, at = 0, "", 0.0
    for write in cluster.server.history:
        if write.verb == "get" or write.code not in (200, 201):
            continue
        spec: dict[str, Any] = write.spec
        if holder and spec["holderIdentity"] not in (holder, ""):
            taken += 1
            assert write.at - at >= DURATION - 0.05
        holder, at = spec["holderIdentity"], write.at
    assert taken >= 4
    assert cluster.records.seats[ROLE].term >= 3
