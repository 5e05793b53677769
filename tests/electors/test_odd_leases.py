"""Leases with odd histories: deleted, edited, of another process of the pod, or without a term in the store."""

from __future__ import annotations

import pytest

from rota.contract.roles import Fence, Seat
from rota.errors import LeadershipLost
from tests.electors.cluster import ROLE, Cluster
from tests.electors.conftest import Clock
from tests.electors.steps import look, try_to_win, won


async def test_somebody_elses_name_in_the_lease_ends_the_term(cluster: Cluster, clock: Clock) -> None:
    async with cluster:
        a = await cluster.member("a")
        fence = await won(a)
        lease = await cluster.read()
        assert lease.spec
        lease.spec.holderIdentity = "intruder"
        await cluster.write(lease)
        clock.skip(2.1)
        with pytest.raises(LeadershipLost, match="intruder"):
            await a.confirm(fence)
        assert a.trusted_until(fence) == float("-inf")
        seat = await look(a)
        assert (seat.alive, seat.holder, seat.replica_id) == (True, "intruder", None)


async def test_two_processes_of_one_pod_do_not_lead_by_each_others_lease(cluster: Cluster, clock: Clock) -> None:
    async with cluster:
        first, second = await cluster.member("pod"), await cluster.member("pod")
        old = await won(first)
        assert await try_to_win(second) is None
        clock.skip(15.1)
        await won(second)
        await first.resign(old)
        assert (await cluster.spec()).holderIdentity == "pod"
        clock.skip(1)
        assert await try_to_win(first) is None


async def test_a_deleted_lease_is_made_anew_by_its_holder(cluster: Cluster, clock: Clock) -> None:
    async with cluster:
        a, b = await cluster.member("a"), await cluster.member("b")
        fence = await won(a)
        await look(b)
        before = await cluster.spec()
        await cluster.delete()
        clock.skip(2.1)
        assert (await look(b)).alive, "its holder still trusts itself"
        await a.confirm(fence)
        after = await cluster.spec()
        assert (after.holderIdentity, after.acquireTime) == ("a", before.acquireTime)


async def test_a_deleted_lease_is_made_anew_where_a_replacement_does_not_create(faulty: Cluster, clock: Clock) -> None:
    async with faulty:
        faulty.server.checks_uid = True
        a = await faulty.member("a")
        fence, before = await won(a), await faulty.spec()
        await faulty.delete()
        clock.skip(2.1)
        await a.confirm(fence)
        assert (await faulty.spec()).acquireTime == before.acquireTime


async def test_a_deleted_lease_of_a_dead_holder_is_taken_when_it_would_have_expired(
    cluster: Cluster, clock: Clock
) -> None:
    async with cluster:
        a, b = await cluster.member("a"), await cluster.member("b")
        old = await won(a)
        await look(b)
        await cluster.delete()
        clock.skip(15.1)
        await won(b)
        with pytest.raises(LeadershipLost):
            await a.confirm(old)


async def test_who_comes_after_a_lease_was_deleted_waits_for_the_holder_that_the_store_names(
    cluster: Cluster, clock: Clock
) -> None:
    async with cluster:
        a, newcomer = await cluster.member("a"), await cluster.member("newcomer")
        await won(a)
        await cluster.delete()
        seat = await look(newcomer)
        assert (seat.alive, seat.replica_id) == (True, 1)
        clock.skip(14.5)
        assert (await look(newcomer)).alive
        clock.skip(0.6)
        await won(newcomer)


async def test_a_lease_of_a_client_that_is_not_rota_is_respected(cluster: Cluster, clock: Clock) -> None:
    async with cluster:
        a = await cluster.member("a")
        await a.resign(await won(a))
        lease = await cluster.read()
        assert lease.spec
        lease.spec.holderIdentity, lease.spec.leaseDurationSeconds = "operator", 5
        await cluster.write(lease)
        clock.skip(2.1)
        seat = await look(a)
        assert (seat.alive, seat.holder, seat.released) == (True, "operator", False)
        clock.skip(5.1)
        assert await try_to_win(a) is not None


async def test_the_lease_decides_whatever_term_the_store_has_by_now(cluster: Cluster) -> None:
    async with cluster:
        a = await cluster.member("a")
        seat = await look(a)
        cluster.records.seats[ROLE] = Seat(role=ROLE, term=7, nonce=1, replica_id=9, alive=True, released=False)
        fence = await a.win(seat)
        assert fence is not None
        assert fence.term == 8


async def test_a_lease_without_a_term_is_let_go(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster:
        a = await cluster.member("a")
        seat = await look(a)

        async def fail(*_: object, **__: object) -> None:
            raise ConnectionError("no store")

        monkeypatch.setattr(cluster.records, "win_role", fail)
        with pytest.raises(ConnectionError):
            await a.win(seat)
        assert not (await cluster.spec()).holderIdentity


async def test_a_term_that_took_too_long_to_store_is_given_back(
    cluster: Cluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster:
        a = await cluster.member("a")
        seat, win = await look(a), cluster.records.win_role

        async def slowly(*given: object, **named: object) -> Fence | None:
            clock.skip(10.1)
            return await win(*given, **named)  # type: ignore[arg-type]

        monkeypatch.setattr(cluster.records, "win_role", slowly)
        assert await a.win(seat) is None
        assert not (await cluster.spec()).holderIdentity
        assert cluster.records.seats[ROLE].released
