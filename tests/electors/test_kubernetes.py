"""Leases are won, kept, lost and released as every other client of Leases expects it."""

from __future__ import annotations

import re

import msgspec
import pytest

from rota.contract.roles import Fence
from rota.errors import LeadershipLost
from tests.electors.cluster import ROLE, Cluster
from tests.electors.conftest import Clock
from tests.electors.steps import look, won


async def test_the_first_one_wins_and_the_store_has_its_term(cluster: Cluster) -> None:
    async with cluster:
        a, b = await cluster.member("a"), await cluster.member("b")
        seat = await look(a)
        assert (seat.alive, seat.released, seat.term) == (False, True, 0)
        fence = await a.win(seat)
        assert fence == Fence(role=ROLE, term=1, nonce=cluster.records.seats[ROLE].nonce)
        assert cluster.records.seats[ROLE].elector == "kubernetes"
        spec = await cluster.spec()
        assert (spec.holderIdentity, spec.leaseDurationSeconds, spec.leaseTransitions) == ("a", 15, 0)
        assert spec.acquireTime == spec.renewTime
        seat = await look(b)
        assert (seat.alive, seat.holder, seat.term, seat.nonce) == (True, "a", 1, fence.nonce)
        assert await b.win(seat) is None


async def test_a_renewal_keeps_the_moment_of_acquiring(cluster: Cluster, clock: Clock) -> None:
    async with cluster:
        a = await cluster.member("a")
        fence = await won(a)
        before, trusted = await cluster.spec(), a.trusted_until(fence)
        clock.skip(2.1)
        await a.confirm(fence)
        after = await cluster.spec()
        assert after.renewTime > before.renewTime
        assert (after.acquireTime, after.leaseTransitions) == (before.acquireTime, before.leaseTransitions)
        assert 2.1 <= a.trusted_until(fence) - trusted < 4


async def test_a_confirmation_within_the_retry_period_costs_nothing(faulty: Cluster) -> None:
    async with faulty:
        a = await faulty.member("a")
        fence = await won(a)
        asked = len(faulty.server.history)
        for _ in range(5):
            await a.confirm(fence)
            await look(a)
        assert len(faulty.server.history) == asked


async def test_a_lease_is_asked_for_once_per_retry_period(faulty: Cluster, clock: Clock) -> None:
    async with faulty:
        a, b = await faulty.member("a"), await faulty.member("b")
        await won(a)

        def asked() -> int:
            return sum(request.user == "b" for request in faulty.server.history)

        for _ in range(5):
            await look(b)
        assert asked() == 1
        clock.skip(2.1)
        await look(b)
        assert asked() == 2


async def test_a_follower_waits_by_its_own_clock_from_when_it_saw_the_record(cluster: Cluster, clock: Clock) -> None:
    async with cluster:
        a, b = await cluster.member("a"), await cluster.member("b")
        await won(a)
        lease = await cluster.read()
        assert lease.spec
        lease.spec.renewTime = lease.spec.renewTime.replace(year=2020)  # type: ignore[union-attr]
        await cluster.write(lease)
        clock.skip(60)
        assert (await look(b)).alive
        clock.skip(14.5)
        assert (await look(b)).alive
        clock.skip(0.6)
        seat = await look(b)
        assert (seat.alive, seat.released) == (False, False)
        assert seat.ended == pytest.approx(15.1, abs=0.5)
        assert await b.win(seat) is not None


async def test_a_record_that_changes_is_waited_for_anew(cluster: Cluster, clock: Clock) -> None:
    async with cluster:
        a, b = await cluster.member("a"), await cluster.member("b")
        fence = await won(a)
        for _ in range(4):
            assert (await look(b)).alive
            clock.skip(8)
            await a.confirm(fence)
        assert (await look(b)).alive


async def test_the_duration_that_counts_is_the_one_in_the_record(cluster: Cluster, clock: Clock) -> None:
    async with cluster:
        a, b = await cluster.member("a", kubernetes_lease_duration=40), await cluster.member("b")
        await won(a)
        assert (await look(b)).alive
        clock.skip(30)
        assert (await look(b)).alive
        clock.skip(10.1)
        assert not (await look(b)).alive


async def test_an_expired_lease_is_taken_over_and_the_old_leader_loses(cluster: Cluster, clock: Clock) -> None:
    async with cluster:
        a, b = await cluster.member("a"), await cluster.member("b")
        old, before = await won(a), await cluster.spec()
        await look(b)
        clock.skip(15.1)
        assert a.trusted_until(old) < clock.now()
        new, after = await won(b), await cluster.spec()
        assert new.term == old.term + 1
        assert (after.holderIdentity, after.leaseTransitions) == ("b", before.leaseTransitions + 1)
        assert after.acquireTime > before.acquireTime
        with pytest.raises(LeadershipLost):
            await a.confirm(old)
        assert (await look(a)).holder == "b"
        await a.resign(old)
        assert (await cluster.spec()).holderIdentity == "b"
        assert not cluster.records.seats[ROLE].released
        await b.confirm(new)


async def test_of_two_who_see_a_vacancy_one_wins(cluster: Cluster) -> None:
    async with cluster:
        members = [await cluster.member(name) for name in "abc"]
        seats = [await look(member) for member in members]
        fences = [await member.win(seat) for member, seat in zip(members, seats, strict=True)]
        assert [fence is not None for fence in fences] == [True, False, False]
        assert (await look(members[1])).holder == "a"


async def test_of_two_who_see_an_expired_lease_one_wins(cluster: Cluster, clock: Clock) -> None:
    async with cluster:
        a, b, c = [await cluster.member(name) for name in "abc"]
        await won(a)
        await look(b)
        await look(c)
        clock.skip(15.1)
        seats = [await look(b), await look(c)]
        assert [seat.alive for seat in seats] == [False, False]
        assert await b.win(seats[0]) is not None
        assert await c.win(seats[1]) is None


async def test_a_released_lease_is_taken_at_once(cluster: Cluster) -> None:
    async with cluster:
        a, b = await cluster.member("a"), await cluster.member("b")
        fence = await won(a)
        assert (await look(b)).alive
        before = await cluster.spec()
        await a.resign(fence, meant_for=2)
        after = await cluster.spec()
        assert (after.holderIdentity or "", after.leaseDurationSeconds) == ("", 1)
        assert after.leaseTransitions == before.leaseTransitions
        assert after.acquireTime == after.renewTime > before.renewTime
        assert a.trusted_until(fence) == float("-inf")
        seat = await look(b)
        assert (seat.alive, seat.released, seat.meant_for) == (False, True, 2)
        assert await b.win(seat) is not None
        assert (await cluster.spec()).leaseTransitions == before.leaseTransitions + 1
        with pytest.raises(LeadershipLost):
            await a.confirm(fence)


async def test_what_others_keep_in_the_lease_stays(cluster: Cluster, clock: Clock) -> None:
    async with cluster:
        a, b = await cluster.member("a"), await cluster.member("b")
        fence = await won(a)
        lease = await cluster.read()
        assert lease.metadata
        lease.metadata.labels, lease.metadata.annotations = {"team": "shop"}, {"why": "because"}
        await cluster.write(lease)
        clock.skip(2.1)
        await a.confirm(fence)  # also: a change by somebody else is no loss of leadership
        await a.resign(fence)
        await won(b)
        lease = await cluster.read()
        assert lease.metadata
        assert lease.spec
        assert lease.metadata.labels == {"team": "shop"}
        assert lease.metadata.annotations == {"why": "because"}
        assert lease.spec.holderIdentity == "b"


async def test_fields_that_nobody_here_knows_stay(faulty: Cluster, clock: Clock) -> None:
    async with faulty:
        a = await faulty.member("a")
        fence = await won(a)
        [lease] = faulty.server.leases.values()
        lease["spec"]["fromTheFuture"], lease["metadata"]["resourceVersion"] = {"x": 1}, "9999"
        clock.skip(2.1)
        await a.confirm(fence)
        clock.skip(2.1)
        await a.confirm(fence)
        [lease] = faulty.server.leases.values()
        assert lease["spec"]["fromTheFuture"] == {"x": 1}
        written = [request.spec for request in faulty.server.history if request.verb != "get" and request.spec]
        for moment in [spec[field] for spec in written for field in ("acquireTime", "renewTime")]:
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", moment)


async def test_roles_have_leases_of_their_own(cluster: Cluster) -> None:
    async with cluster:
        a, b = await cluster.member("a"), await cluster.member("b")
        await won(a, "reports")
        await won(b, "Reports")
        seats, _ = await a.look(["reports", "Reports", "other"])
        assert [(seat.role, seat.holder, seat.alive) for seat in seats] == [
            ("reports", "a", True),
            ("Reports", "b", True),
            ("other", None, False),
        ]


async def test_a_seat_shows_what_the_store_asks_of_the_term(cluster: Cluster) -> None:
    async with cluster:
        a = await cluster.member("a")
        await won(a)
        row = cluster.records.seats[ROLE]
        cluster.records.seats[ROLE] = msgspec.structs.replace(row, step_down=True, meant_for=5)
        seat = await look(a)
        assert (seat.alive, seat.step_down, seat.meant_for) == (True, True, 5)
