"""Roles and their terms, the same on every store."""

from __future__ import annotations

import asyncio

import pytest

from rota.contract.roles import Fence, Seat
from rota.errors import LeadershipLost, NotFound, WrongState
from tests.harness import execute, move_clock
from tests.store.leading import ROLE, dies, seat, silent, standing, transaction, win, won
from tests.store.steps import eventually, opened

# -- standing and looking --------------------------------------------------------------------------


async def test_a_role_that_nobody_ever_held_is_there_and_vacant(url: str) -> None:
    async with standing(url, 1) as (store, _):
        assert await seat(store) == Seat(role=ROLE)


async def test_candidates_are_the_living_and_what_they_would_take(url: str) -> None:
    async with standing(url, 3) as (store, [first, second, third]):
        await store.stand(second.replica_id, ["b", "a"])
        await store.stand(third.replica_id, [])
        candidates = (await store.look_roles())[1]
        assert [(c.replica_id, c.name, set(c.roles)) for c in candidates] == [
            (first.replica_id, "r0", {ROLE}),
            (second.replica_id, "r1", {"a", "b"}),
        ]
        assert all(0 <= c.age < 60 for c in candidates)
        assert [s.role for s in (await store.look_roles())[0]] == ["a", "b", ROLE]
        await silent(url, first, 6)
        assert [c.replica_id for c in (await store.look_roles())[1]] == [second.replica_id]


async def test_the_dead_stand_in_nobodys_way_before_they_are_buried(url: str) -> None:
    async with standing(url, 3) as (store, [first, second, third]):
        await second.close()

        async def candidates() -> list[int]:
            return [c.replica_id for c in (await store.look_roles())[1]]

        async def without_it() -> bool:
            return second.replica_id not in await candidates()

        await eventually(without_it)
        assert await candidates() == [first.replica_id, third.replica_id]


async def test_without_roles_there_is_nothing_to_see(url: str) -> None:
    async with opened(url) as store:
        assert await store.look_roles() == ([], [])


# -- winning ---------------------------------------------------------------------------------------


async def test_winning_begins_a_term(url: str) -> None:
    async with standing(url) as (store, [first, _]):
        assert await won(store, first) == Fence(role=ROLE, term=1, nonce=7)
        now = await seat(store)
        assert (now.term, now.nonce, now.replica_id, now.holder) == (1, 7, first.replica_id, "r0")
        assert (now.elector, now.alive, now.released, now.step_down) == ("test", True, False, False)
        assert now.won_at is not None
        assert now.ended is not None
        assert now.ended < 5


async def test_a_role_that_is_led_cannot_be_won(url: str) -> None:
    async with standing(url) as (store, [first, second]):
        await won(store, first)
        assert await win(store, second, seen=1, nonce=8) is None
        assert (await seat(store)).replica_id == first.replica_id


async def test_of_many_who_see_a_vacancy_one_wins(url: str) -> None:
    async with standing(url, 5) as (store, lines):
        found = await asyncio.gather(*(win(store, line, nonce=n + 1) for n, line in enumerate(lines)))
        assert sum(fence is not None for fence in found) == 1


async def test_whoever_saw_an_older_term_does_not_win(url: str) -> None:
    async with standing(url) as (store, [first, second]):
        await store.release_role(await won(store, first))
        assert await win(store, second, seen=0, nonce=8) is None
        assert (await won(store, second, seen=1, nonce=8)).term == 2


async def test_a_second_call_with_the_same_nonce_finds_the_term(url: str) -> None:
    async with standing(url) as (store, [first, second]):
        fence = await won(store, first)
        assert await win(store, first) == fence
        assert await win(store, first, seen=1) == fence
        assert await win(store, second, seen=1) is None, "it is another one's"
        assert (await seat(store)).term == 1


async def test_ones_own_role_is_won_anew_with_another_nonce(url: str) -> None:
    async with standing(url) as (store, [first, _]):
        await won(store, first)
        assert (await won(store, first, seen=1, nonce=8)).term == 2


async def test_force_deposes_whoever_leads_whatever_was_seen(url: str) -> None:
    async with standing(url) as (store, [first, second]):
        fence = await won(store, first)
        assert (await won(store, second, nonce=8, force=True)).term == 2
        assert (await won(store, second, nonce=8, force=True)).term == 2, "the same call again"
        async with transaction(url) as connection:
            with pytest.raises(LeadershipLost):
                await store.check_fence(fence, connection)


async def test_a_replica_that_is_not_there_wins_nothing(url: str) -> None:
    async with standing(url, 1) as (store, [first]):
        await store.leave(first.replica_id)
        assert await win(store, first) is None
        assert await win(store, first, force=True) is None


async def test_a_role_that_is_not_there_cannot_be_won(url: str) -> None:
    async with standing(url, 1) as (store, [first]):
        assert await store.win_role("unheard", first.replica_id, seen=0, nonce=1, elector="test") is None


# -- death -----------------------------------------------------------------------------------------


async def test_the_role_of_one_whose_lock_is_free_is_vacant_at_once(url: str) -> None:
    async with standing(url) as (store, [first, second]):
        await won(store, first)
        await dies(store, first)
        now = await seat(store)
        assert (now.alive, now.released, now.replica_id) == (False, False, first.replica_id)
        assert (await won(store, second, seen=1, nonce=8)).term == 2


async def test_the_role_of_one_whose_beat_is_stale_is_vacant(url: str) -> None:
    async with standing(url) as (store, [first, second]):
        await won(store, first)
        await silent(url, first, 4.5)
        assert await win(store, second, seen=1, nonce=8) is None
        await silent(url, first, 5.5)
        now = await seat(store)
        assert not now.alive
        assert now.ended is not None
        assert 5.5 <= now.ended < 30
        assert (await won(store, second, seen=1, nonce=8)).term == 2


async def test_one_without_a_session_lock_lives_by_its_beat(url: str) -> None:
    async with standing(url) as (store, [first, second]):
        await won(store, first)
        await execute(url, f"update replicas set locked = {'0' if url.startswith('sqlite') else 'false'}")
        await first.close()
        for _ in range(5):
            assert (await seat(store)).alive
            assert await win(store, second, seen=1, nonce=8) is None
            await asyncio.sleep(0.02)
        await silent(url, first, 6)
        assert (await won(store, second, seen=1, nonce=8)).term == 2


async def test_moving_the_stores_clock_ends_no_term(url: str) -> None:
    async with standing(url) as (store, [first, second]):
        await won(store, first)
        await move_clock(url, 3600)
        assert (await seat(store)).alive
        assert await win(store, second, seen=1, nonce=8) is None


async def test_how_long_ago_a_buried_leader_was_heard_of_is_remembered(url: str) -> None:
    async with standing(url) as (store, [first, _]):
        await won(store, first)
        await silent(url, first, 20)
        assert (await store.bury([first.replica_id])).replicas == (first.replica_id,)
        now = await seat(store)
        assert (now.alive, now.released, now.replica_id, now.nonce, now.term) == (False, False, None, 0, 1)
        assert now.ended is not None
        assert 20 <= now.ended < 60


async def test_the_fence_of_one_that_was_struck_off_is_refused(url: str) -> None:
    async with standing(url) as (store, [first, _]):
        fence = await won(store, first)
        await silent(url, first, 20)
        await store.bury([first.replica_id])
        async with transaction(url) as connection:
            with pytest.raises(LeadershipLost, match="term 1 of 'leader' is over"):
                await store.check_fence(fence, connection)


# -- the end of a term -----------------------------------------------------------------------------


async def test_a_released_role_is_vacant_and_says_so(url: str) -> None:
    async with standing(url) as (store, [first, second]):
        fence = await won(store, first)
        assert await store.release_role(fence)
        now = await seat(store)
        assert (now.replica_id, now.holder, now.alive, now.released, now.term) == (None, None, False, True, 1)
        assert not await store.release_role(fence), "it had ended already"
        await won(store, second, seen=1, nonce=8)
        assert not await store.release_role(fence)
        assert (await seat(store)).alive


async def test_a_released_role_can_be_meant_for_somebody_for_a_while(url: str) -> None:
    async with standing(url) as (store, [first, second]):
        await store.release_role(await won(store, first), meant_for=second.replica_id)
        assert (await seat(store)).meant_for == second.replica_id
        past = "'2020-01-01 00:00:00.000000'"
        await execute(url, f"update roles set meant_until = {past}")
        assert (await seat(store)).meant_for is None


async def test_a_term_can_be_asked_to_end(url: str) -> None:
    async with standing(url) as (store, [first, second]):
        await won(store, first)
        asked = await store.ask_step_down(ROLE, meant_for=second.replica_id)
        assert (asked.step_down, asked.meant_for, asked.alive) == (True, second.replica_id, True)
        assert (await won(store, first, seen=1, nonce=8)).term == 2
        now = await seat(store)
        assert (now.step_down, now.meant_for) == (False, None), "the next term was not asked"


async def test_what_cannot_be_asked_is_an_error(url: str) -> None:
    async with standing(url) as (store, _):
        with pytest.raises(WrongState, match="nobody leads 'leader'"):
            await store.ask_step_down(ROLE)
        with pytest.raises(NotFound, match="unheard"):
            await store.ask_step_down("unheard")


async def test_a_release_and_a_request_are_heard(url: str) -> None:
    async with standing(url) as (store, [first, _]), opened(url) as other:
        heard: list[str] = []
        listening = asyncio.create_task(other.listen(heard.append))

        async def roles() -> bool:
            return "roles" in heard

        try:
            fence = await won(store, first)
            await eventually(roles)
            await asyncio.sleep(0.1)  # what the listener says at its start
            for change in (store.ask_step_down(ROLE), store.release_role(fence)):
                heard.clear()
                await change
                await eventually(roles)
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
