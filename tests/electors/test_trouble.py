"""An API that is denied, mute, or loses replies: nobody leads by guessing, and the sentence says what to do."""

from __future__ import annotations

import asyncio
import socket

import pytest

from rota.contract.roles import Fence
from rota.electors.kubernetes import KubernetesElector
from rota.errors import KubernetesDenied, LeadershipLost
from rota.settings import Settings
from tests.electors.apiserver import Fault
from tests.electors.cluster import Cluster
from tests.electors.conftest import Clock
from tests.electors.records import Records
from tests.electors.steps import look, try_to_win, won
from tests.patience import PATIENCE

SHORT = {"kubernetes_lease_duration": 1, "kubernetes_renew_deadline": 0.6, "kubernetes_retry_period": 0.1}


async def lead(elector: KubernetesElector, fence: Fence) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            await elector.confirm(fence)
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("fault", ["mute", "reset", "busy"])
async def test_a_leader_that_cannot_renew_steps_down_at_the_deadline(faulty: Cluster, fault: Fault) -> None:
    async with faulty:
        a, b = await faulty.member("a", **SHORT), await faulty.member("b", **SHORT)
        fence = await won(a)
        sent = a.trusted_until(fence) - 0.6
        assert (await look(b)).alive
        faulty.server.faults["a"] = fault
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(LeadershipLost, match="kubernetes_renew_deadline"):
            await lead(a, fence)
        assert loop.time() - began < 1, "no call hangs past the deadline"
        assert a.trusted_until(fence) - 0.6 == sent, "nothing was confirmed, so nothing was prolonged"
        assert await try_to_win(b) is None, "the deadline comes before the end of the Lease"
        assert (await look(a)).alive, "who cannot ask does not take"
        async with asyncio.timeout(PATIENCE):
            while not await try_to_win(b):
                await asyncio.sleep(0.05)
        faulty.server.faults.clear()
        await asyncio.sleep(0.15)
        assert (await look(a)).holder == "b"
        assert a.trouble is None


async def test_a_short_outage_is_survived(faulty: Cluster, clock: Clock) -> None:
    async with faulty:
        a = await faulty.member("a")
        fence = await won(a)
        before = a.trusted_until(fence)
        faulty.server.faults["a"] = "reset"
        for _ in range(3):
            clock.skip(2.1)
            await a.confirm(fence)
        assert a.trusted_until(fence) == before
        faulty.server.faults.clear()
        clock.skip(2.1)
        await a.confirm(fence)
        assert a.trusted_until(fence) > before + 8


async def test_a_renewal_whose_reply_was_lost_is_recognised(faulty: Cluster, clock: Clock) -> None:
    async with faulty:
        a = await faulty.member("a", **SHORT)
        fence = await won(a)
        await asyncio.sleep(0.11)
        faulty.server.faults["a"] = "deaf to replies"
        await a.confirm(fence)
        faulty.server.faults.clear()
        await asyncio.sleep(0.11)
        before = a.trusted_until(fence)
        await a.confirm(fence)
        assert a.trusted_until(fence) > before
        assert {request.code for request in faulty.server.history if request.verb == "update"} == {200, 409}


async def test_a_claim_whose_reply_was_lost_is_recognised(faulty: Cluster, clock: Clock) -> None:
    async with faulty:
        a = await faulty.member("a", **SHORT)
        seat = await look(a)
        faulty.server.faults["a"] = "deaf to replies"
        assert await a.win(seat) is None
        assert (await look(a)).alive
        faulty.server.faults.clear()
        clock.skip(0.2)
        before = await faulty.spec()
        assert before.holderIdentity == "a"
        await won(a)
        after = await faulty.spec()
        assert (after.acquireTime, after.leaseTransitions) == (before.acquireTime, 0)


async def test_a_release_that_fails_is_still_one_in_the_store(faulty: Cluster) -> None:
    async with faulty:
        a = await faulty.member("a", **SHORT)
        fence = await won(a)
        faulty.server.faults["a"] = "mute"
        await a.resign(fence)
        assert faulty.records.seats["main"].released
        assert a.trusted_until(fence) == float("-inf")


@pytest.mark.parametrize("verb", ["get", "create", "update"])
async def test_a_denied_verb_is_named_with_the_rule_that_is_missing(faulty: Cluster, clock: Clock, verb: str) -> None:
    async with faulty:
        user = "system:serviceaccount:shop:web"
        a = await faulty.member(user)
        faulty.server.denied.add((user, verb))
        fence = await try_to_win(a)
        if verb == "update":
            assert fence
            clock.skip(2.1)
            await a.confirm(fence)
        else:
            assert fence is None
        [sentence] = faulty.troubles()
        assert isinstance(a.trouble, KubernetesDenied)
        assert f"user {user!r} may not {verb} lease '{faulty.name}' in namespace 'default'" in sentence
        assert faulty.server.url in sentence
        assert (
            "  - apiGroups: [coordination.k8s.io]\n    resources: [leases]\n    verbs: [get, create, update]\n"
            in sentence
        )


async def test_a_trouble_is_said_once_and_again_after_a_while(faulty: Cluster, clock: Clock) -> None:
    async with faulty:
        a = await faulty.member("a")
        faulty.server.denied.add(("a", "get"))
        for _ in range(5):
            assert (await look(a)).alive
            clock.skip(2.1)
        assert len(faulty.troubles()) == 1
        clock.skip(60)
        await look(a)
        assert len(faulty.troubles()) == 2
        faulty.server.denied.clear()
        clock.skip(2.1)
        assert await try_to_win(a)
        assert a.trouble is None


async def test_an_unknown_user_is_told_so(faulty: Cluster) -> None:
    async with faulty:
        a = await faulty.member("a")
        faulty.server.users.remove("a")
        assert await try_to_win(a) is None
        [sentence] = faulty.troubles()
        assert "does not know this user (401" in sentence


async def test_an_unreachable_server_is_named(faulty: Cluster) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        async with faulty:
            faulty.server.url = f"http://127.0.0.1:{closed.getsockname()[1]}"
            a = await faulty.member("a")
            assert await try_to_win(a) is None
            [sentence] = faulty.troubles()
            assert f"the Kubernetes API at {faulty.server.url} cannot be used" in sentence
            assert f"(get lease {faulty.name} in namespace default): " in sentence


async def test_stopping_what_never_started_is_fine() -> None:
    elector = KubernetesElector(Records(), lambda: 1, Settings(), environ={})
    await elector.stop()
