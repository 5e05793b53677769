"""Snowflake ids: unique and growing, whatever the store's clock, the network and the scheduler of the machine do."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import pairwise
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.contract.nodes import NodeLease, Nodes, all_taken
from rota.errors import BadInput, NotOpen, StoreUnavailable
from rota.snowflake import Snowflakes, parts
from tests.patience import PATIENCE

START = 200_000_000_000


class World(Nodes):
    """A store in memory, and the two clocks: what passes here, and what the store's shows besides."""

    def __init__(self, most: int = 1024) -> None:
        self.passed, self.shift, self.most = 0.0, START, most
        self.nodes: dict[int, tuple[int, int]] = {}
        self.given: list[NodeLease] = []
        self.lose_reply = self.down = False
        self.later = 0
        self.gate: asyncio.Event | None = None

    @property
    def now(self) -> int:
        return self.shift + int(self.passed * 1000)

    async def lease_node(self, token: int, milliseconds: int, node: int | None = None) -> NodeLease:
        if self.gate is not None:
            await self.gate.wait()
        await _turn()
        if self.down:
            raise StoreUnavailable("down")
        if node is None or self.nodes.get(node, (0, 0))[0] != token:
            node = self._free()
        begin = max(self.now, self.nodes.get(node, (0, 0))[1]) + self.later
        self.nodes[node] = (token, begin + milliseconds)
        self.given.append(NodeLease(node=node, now=self.now, begin=begin, until=begin + milliseconds))
        if self.lose_reply:
            self.lose_reply = False
            raise StoreUnavailable("the reply was lost")
        return self.given[-1]

    def _free(self) -> int:
        over = sorted((until, node) for node, (_, until) in self.nodes.items() if until <= self.now)
        if not over and len(self.nodes) == self.most:
            raise all_taken()
        return over[0][1] if over else len(self.nodes)

    def steady(self) -> float:
        return self.passed

    async def sleep(self, seconds: float) -> None:
        self.passed += seconds
        await _turn()

    def lies_in_a_stretch(self, snowflake: int) -> bool:
        ms, node = snowflake >> 22, parts(snowflake).node
        return any(lease.node == node and lease.begin <= ms < lease.until for lease in self.given)


async def _turn() -> None:
    turned = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(turned.set_result, None)
    await turned


@contextmanager
def time_of(world: World) -> Iterator[None]:
    """Nothing takes time but what the world says."""
    with mock.patch("rota.snowflake.steady", world.steady), mock.patch("asyncio.sleep", world.sleep):
        yield


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    with time_of(made):
        yield made


def ids_of(world: World) -> Snowflakes:
    return Snowflakes(lambda: world)


def grows(ids: list[int]) -> bool:
    return all(before < after for before, after in pairwise(ids))


def milliseconds(snowflake: int) -> int:
    return snowflake >> 22


# -- one by one ------------------------------------------------------------------------------------


async def test_an_id_tells_when_and_by_whom_it_was_made(world: World) -> None:
    world.shift = int((datetime(2031, 5, 14, 12, tzinfo=UTC) - datetime(2020, 1, 1, tzinfo=UTC)).total_seconds() * 1000)
    ids = ids_of(world)
    made = [await ids.next(), await ids.next()]
    assert [parts(each) for each in made] == [(datetime(2031, 5, 14, 12, tzinfo=UTC), 0, n) for n in (0, 1)]
    assert 0 < made[0] < 1 << 63


def test_what_is_no_id_has_no_parts() -> None:
    for number in (-1, 1 << 63):
        with pytest.raises(BadInput, match="63 bits"):
            parts(number)
    assert parts((1 << 63) - 1)[1:] == (1023, 4095)


async def test_ids_of_a_stretch_ask_nobody(world: World) -> None:
    ids = ids_of(world)
    for _ in range(100):
        await ids.next()
        world.passed += 0.25
    assert len(world.given) == 1


async def test_many_give_as_many_as_asked_for(world: World) -> None:
    ids = ids_of(world)
    assert await ids.many(0) == []
    made = [*await ids.many(3), *await ids.many(10_000), await ids.next()]
    assert (len(made), grows(made)) == (10_004, True)
    with pytest.raises(BadInput, match="below 0"):
        await ids.many(-1)


async def test_a_rush_waits_for_the_time(world: World) -> None:
    ids = ids_of(world)
    made = await ids.many(4096 * 100)
    assert grows(made)
    assert milliseconds(made[-1]) - START == 99
    assert milliseconds(made[-1]) - world.now <= 5
    assert world.passed >= 0.09


async def test_a_clock_that_stands_still_gives_no_more_than_a_few_milliseconds_have(world: World) -> None:
    ids = ids_of(world)
    made = await ids.many(4096 * 6)
    assert (milliseconds(made[-1]), world.passed) == (START + 5, 0.0)


# -- stretches -------------------------------------------------------------------------------------


async def test_the_next_stretch_is_leased_before_this_one_ends(world: World) -> None:
    ids = ids_of(world)
    made = [await ids.next()]
    for _ in range(600):
        world.passed += 1
        made.append(await ids.next())
        await _turn()
        await _turn()
        assert milliseconds(made[-1]) == world.now
    assert len({lease.node for lease in world.given}) == 1
    assert len(world.given) <= 11
    for before, after in pairwise(world.given):
        assert after.now < before.until == after.begin


async def test_whoever_was_idle_goes_on_with_the_time_it_is(world: World) -> None:
    ids = ids_of(world)
    first = await ids.next()
    world.passed += 3600
    second = await ids.next()
    assert milliseconds(second) - milliseconds(first) == 3_600_000
    assert parts(second).node == parts(first).node


async def test_an_outage_is_noticed_only_when_the_stretch_is_used_up(world: World) -> None:
    ids = ids_of(world)
    made = [await ids.next()]
    world.down = True
    while world.now < world.given[0].until - 1000:
        world.passed += 0.5
        made.append(await ids.next())
        await _turn()
    world.passed += 1
    with pytest.raises(StoreUnavailable, match="down"):
        await ids.next()
    world.down = False
    made.append(await ids.next())
    assert grows(made)


async def test_many_who_wait_wait_for_one_lease(world: World) -> None:
    ids = ids_of(world)
    made = await asyncio.gather(*(ids.next() for _ in range(100)))
    assert len(set(made)) == 100
    assert len(world.given) == 1


async def test_whoever_stops_waiting_takes_the_lease_from_nobody(world: World) -> None:
    ids, world.gate = ids_of(world), asyncio.Event()
    impatient, patient = asyncio.create_task(ids.next()), asyncio.create_task(ids.next())
    await _turn()
    impatient.cancel()
    world.gate.set()
    assert parts(await patient).sequence == 0
    assert impatient.cancelled()


async def test_one_that_is_closed_while_somebody_waits_says_so(world: World) -> None:
    ids, world.gate = ids_of(world), asyncio.Event()
    waiting = asyncio.create_task(ids.next())
    await _turn()
    await ids.close()
    with pytest.raises(NotOpen):
        await waiting


def test_one_loop_after_another(world: World) -> None:
    ids = ids_of(world)

    async def two() -> list[int]:
        return [await ids.next(), await ids.next()]

    async def left_behind() -> None:
        world.gate = asyncio.Event()
        world.passed += 3600
        waiting = asyncio.create_task(ids.next())
        await _turn()
        waiting.cancel()

    made = asyncio.run(two())
    asyncio.run(left_behind())
    world.gate = None
    made += asyncio.run(two())
    assert grows(made)


def test_two_loops_in_turn(world: World) -> None:
    ids, gate = ids_of(world), asyncio.Event()
    world.gate = gate
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    waiting = first.create_task(ids.next())
    first.run_until_complete(_turn())
    world.gate = None
    made = [second.run_until_complete(asyncio.wait_for(ids.next(), PATIENCE))]
    gate.set()
    made += [first.run_until_complete(waiting), second.run_until_complete(ids.next())]
    assert grows(made)
    first.close()
    second.close()


async def test_a_clock_beyond_all_ids_is_refused(world: World) -> None:
    for shift, year in ((-86_400_000, "2019"), (1 << 41, "2089")):
        world.shift = shift
        with pytest.raises(StoreUnavailable, match=f"clock shows {year}"):
            await ids_of(world).next()


async def test_when_all_nodes_are_taken_it_says_so() -> None:
    world = World(most=1)
    with time_of(world):
        assert await ids_of(world).next()
        with pytest.raises(StoreUnavailable, match="1024"):
            await ids_of(world).next()


# -- clocks that jump ------------------------------------------------------------------------------


async def test_a_clock_that_went_back_takes_no_id_back(world: World) -> None:
    ids = ids_of(world)
    made = [await ids.next()]
    world.shift -= 3_600_000
    for _ in range(300):
        world.passed += 1
        made.append(await ids.next())
        await _turn()
    assert grows(made)
    assert parts(made[-1]).node == parts(made[0]).node
    # The time goes on as here, from where it was.
    assert milliseconds(made[-1]) - milliseconds(made[0]) == pytest.approx(300_000, abs=1000)


async def test_also_when_the_node_is_lost_ids_grow(world: World) -> None:
    ids, other = ids_of(world), ids_of(world)
    first = await ids.next()
    world.passed += 61
    assert parts(await other.next()).node == parts(first).node
    world.shift -= 3_600_000
    second = await ids.next()
    assert first < second
    assert parts(second).node != parts(first).node
    assert world.lies_in_a_stretch(second)
    assert len(world.given) == 4


async def test_a_stretch_that_begins_later_is_not_used_before(world: World) -> None:
    ids, world.later = ids_of(world), 10_000
    made = [await ids.next()]
    world.passed += 1
    made.append(await ids.next())
    assert [milliseconds(each) - START for each in made] == [10_000, 11_000]


async def test_ids_grow_also_from_one_node_to_a_smaller_one(world: World) -> None:
    ended, ids = ids_of(world), ids_of(world)
    await ended.next()
    await ids.next()
    world.passed += 40
    await ids.next()
    await _turn()
    await _turn()
    world.passed += 30
    before = await ids.next()
    ids._pid = -1
    after = await ids.next()
    assert (parts(before).node, parts(after).node) == (1, 0)
    assert before < after


async def test_a_lost_reply_does_not_put_ids_ahead_of_the_time(world: World) -> None:
    ids = ids_of(world)
    made = [await ids.next()]
    world.passed += 45
    world.lose_reply = True
    made.append(await ids.next())  # asks for the next stretch, and does not hear
    for _ in range(100):
        world.passed += 1
        made.append(await ids.next())
        await _turn()
        await _turn()
        await _turn()
        assert milliseconds(made[-1]) - world.now <= 5
    assert grows(made)


async def test_a_child_leaves_its_parents_node_alone(world: World) -> None:
    ids = ids_of(world)
    before = await ids.next()
    with mock.patch("os.getpid", return_value=os.getpid() + 1):
        child = await ids.next()
    assert parts(child).node != parts(before).node
    assert child > before


# -- all of it together ----------------------------------------------------------------------------

STEPS = st.one_of(
    st.tuples(st.just("take"), st.integers(0, 2), st.sampled_from([1, 2, 100, 4095, 4096, 4097, 30_000])),
    st.tuples(st.just("pass"), st.just(0), st.sampled_from([1, 3, 500, 29_999, 30_001, 60_000, 61_000, 200_000])),
    st.tuples(st.just("shift"), st.just(0), st.sampled_from([-3_600_000, -90_000, -1000, -1, 1, 1000, 3_600_000])),
    st.tuples(st.just("lose"), st.just(0), st.just(0)),
    st.tuples(st.just("down"), st.just(0), st.integers(0, 1)),
    st.tuples(st.just("fork"), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("turn"), st.just(0), st.just(0)),
)  # fmt: skip


@settings(max_examples=300)
@given(st.lists(STEPS, max_size=40))
def test_ids_are_unique_and_grow_whatever_happens(steps: list[tuple[str, int, int]]) -> None:
    world = World()
    with time_of(world):
        asyncio.run(_live(world, steps))


async def _live(world: World, steps: list[tuple[str, int, int]]) -> None:
    processes = [ids_of(world) for _ in range(3)]
    made: list[list[int]] = [[], [], []]
    for what, which, amount in steps:
        match what:
            case "take":
                with suppress(StoreUnavailable):
                    made[which] += await processes[which].many(amount)
            case "pass":
                world.passed += amount / 1000
            case "shift":
                world.shift += amount
            case "lose":
                world.lose_reply = True
            case "down":
                world.down = bool(amount)
            case "fork":
                processes[which]._pid = -1
            case "turn":
                await _turn()
                await _turn()
    assert all(grows(each) for each in made)
    every = [each for of_process in made for each in of_process]
    assert len(set(every)) == len(every)
    assert all(world.lies_in_a_stretch(each) for each in every[:: max(1, len(every) // 500)])
    for process in processes:
        await process.close()
