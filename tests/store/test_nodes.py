"""Node numbers: no two stretches of one node overlap, whoever asks, whenever, and whatever the clock says."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from datetime import UTC, datetime

import pytest

from rota.contract.nodes import EPOCH, NodeLease
from rota.errors import StoreUnavailable
from tests.harness import execute, move_clock
from tests.store.steps import new_token, opened, several

MINUTE = 60_000
DAY = 86_400_000


def assert_apart(leases: Iterable[NodeLease]) -> None:
    of_node: dict[int, list[NodeLease]] = {}
    for lease in leases:
        of_node.setdefault(lease.node, []).append(lease)
    for stretches in of_node.values():
        stretches.sort(key=lambda lease: lease.begin)
        for before, after in itertools.pairwise(stretches):
            assert before.until <= after.begin, (before, after)


async def fill(url: str, count: int, until: str) -> None:
    await execute(
        url,
        "insert into nodes (node, token, until) with recursive n (x) as (select 0 union all select x + 1 from n "
        f"where x < {count - 1}) select x, 1, {until} from n",
    )


async def test_a_stretch_begins_now_and_is_as_long_as_asked_for(url: str) -> None:
    async with opened(url) as store:
        lease = await store.lease_node(new_token(), MINUTE)
        real = int(datetime.now(UTC).timestamp() * 1000) - EPOCH
        assert abs(lease.now - real) < 30_000
        assert (lease.begin, lease.until) == (lease.now, lease.now + MINUTE)
        assert 0 <= lease.node <= 1023


async def test_whoever_has_a_node_goes_on_where_its_stretch_ended(url: str) -> None:
    async with opened(url) as store:
        token = new_token()
        first = await store.lease_node(token, MINUTE)
        second = await store.lease_node(token, MINUTE, first.node)
        assert (second.node, second.begin, second.until) == (first.node, first.until, first.until + MINUTE)


async def test_whoever_comes_late_begins_now(url: str) -> None:
    async with opened(url) as store:
        token = new_token()
        first = await store.lease_node(token, MINUTE)
        await move_clock(url, 3600)
        second = await store.lease_node(token, MINUTE, first.node)
        assert second.node == first.node
        assert second.begin == second.now >= first.until


async def test_a_node_of_somebody_else_is_not_continued(url: str) -> None:
    async with opened(url) as store:
        first = await store.lease_node(new_token(), MINUTE)
        second = await store.lease_node(new_token(), MINUTE, first.node)
        assert second.node != first.node


async def test_a_node_that_was_given_away_is_lost_to_the_one_before(url: str) -> None:
    async with opened(url) as store:
        early, late = new_token(), new_token()
        first = await store.lease_node(early, MINUTE)
        await move_clock(url, 3600)
        second = await store.lease_node(late, MINUTE)
        third = await store.lease_node(early, MINUTE, first.node)
        assert second.node == first.node
        assert third.node != first.node


async def test_a_node_is_used_again_when_its_stretch_is_over_the_longest_unused_first(url: str) -> None:
    async with opened(url) as store:
        taken = [await store.lease_node(new_token(), (3 - n) * MINUTE) for n in range(3)]
        assert len({lease.node for lease in taken}) == 3
        await move_clock(url, 3600)
        again = [await store.lease_node(new_token(), MINUTE) for _ in range(3)]
        assert [lease.node for lease in again] == [lease.node for lease in reversed(taken)]
        assert_apart([*taken, *again])


async def test_twenty_at_once_get_twenty_nodes(url: str) -> None:
    async with several(url, 4) as stores:
        leases = await asyncio.gather(*(stores[n % 4].lease_node(new_token(), MINUTE) for n in range(20)))
        assert len({lease.node for lease in leases}) == 20


async def test_twenty_at_once_share_out_the_expired_ones(url: str) -> None:
    async with several(url, 4) as stores:
        await fill(url, 10, "1000")
        leases = await asyncio.gather(*(stores[n % 4].lease_node(new_token(), MINUTE) for n in range(20)))
        assert len({lease.node for lease in leases}) == 20
        assert set(range(10)) <= {lease.node for lease in leases}


async def test_the_last_ones_are_given_out_to_as_many(url: str) -> None:
    async with several(url, 4) as stores:
        await fill(url, 1014, str(1 << 40))
        answers = await asyncio.gather(
            *(stores[n % 4].lease_node(new_token(), MINUTE) for n in range(20)), return_exceptions=True
        )
        leased = [answer.node for answer in answers if isinstance(answer, NodeLease)]
        assert sorted(leased) == list(range(1014, 1024))
        assert sum(isinstance(answer, StoreUnavailable) for answer in answers) == 10


async def test_when_all_are_taken_it_says_so(url: str) -> None:
    async with opened(url) as store:
        token = new_token()
        mine = await store.lease_node(token, 10 * DAY)
        await execute(url, f"update nodes set node = 1023 where node = {mine.node}")
        await fill(url, 1023, str(mine.now + DAY))
        with pytest.raises(StoreUnavailable, match=r"all 1024 .* fewer processes"):
            await store.lease_node(new_token(), MINUTE)
        assert (await store.lease_node(token, MINUTE, 1023)).begin == mine.until
        await move_clock(url, 2 * DAY / 1000)
        assert (await store.lease_node(new_token(), MINUTE)).node < 1023


async def test_a_clock_that_goes_back_makes_nothing_overlap(url: str) -> None:
    async with opened(url) as store:
        tokens = [new_token() for _ in range(3)]
        leases: list[NodeLease] = []
        mine: dict[int, int] = {}
        for offset in (0, -3600, 7200, -86400, 30, -30, 0):
            await move_clock(url, offset)
            for token in (*tokens, new_token()):
                lease = await store.lease_node(token, MINUTE, mine.get(token))
                assert lease.begin >= lease.now
                mine[token] = lease.node
                leases.append(lease)
        assert_apart(leases)


async def test_a_node_whose_end_lies_ahead_goes_on_from_there(url: str) -> None:
    async with opened(url) as store:
        token = new_token()
        first = await store.lease_node(token, MINUTE)
        await move_clock(url, -3600)
        second = await store.lease_node(token, MINUTE, first.node)
        assert second.now < first.begin
        assert (second.node, second.begin) == (first.node, first.until)
        other = await store.lease_node(new_token(), MINUTE)
        assert other.node != first.node
        assert other.begin == other.now


async def test_a_call_repeated_after_a_lost_reply_wastes_a_stretch_and_no_more(url: str) -> None:
    async with opened(url) as store:
        token = new_token()
        leases = [await store.lease_node(token, MINUTE)]
        leases += [await store.lease_node(token, MINUTE, leases[0].node) for _ in range(3)]
        leases.append(await store.lease_node(token, MINUTE))
        assert_apart(leases)
        assert len({lease.node for lease in leases}) == 2


async def test_stretches_that_end_while_others_ask_do_not_overlap(url: str) -> None:
    async with several(url, 4) as stores:

        async def ask(n: int) -> list[NodeLease]:
            token, node, had = new_token(), None, []
            for turn in range(30):
                lease = await stores[n % 4].lease_node(token, 1 + turn % 3, node)
                node = lease.node if turn % 4 else None
                had.append(lease)
            return had

        leases = [lease for had in await asyncio.gather(*(ask(n) for n in range(20))) for lease in had]
        assert_apart(leases)
        assert len({lease.node for lease in leases}) < 200
