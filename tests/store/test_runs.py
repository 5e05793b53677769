"""Runs: made once per key, started in order, each by one replica."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import pytest

from rota.errors import BadInput
from rota.store import NewRun
from tests.harness import execute
from tests.store.steps import (
    JOB,
    START,
    claim,
    claim_one,
    enqueue,
    finish,
    get,
    hour,
    ledger,
    new_token,
    opened,
    outcome,
    set_clock,
    several,
)


def new(**fields: object) -> NewRun:
    return NewRun(**{"job_id": JOB} | fields)  # type: ignore[arg-type]


async def test_runs_are_made_and_started_in_order(url: str) -> None:
    async with opened(url) as store:
        made = await store.enqueue([new(parameters=f'{{"n": {n}}}') for n in range(5)])
        assert [each.created for each in made] == [True] * 5
        claimed = await claim(store)
        assert [each.id for each in claimed] == [each.id for each in made]
        assert [each.parameters for each in claimed] == [f'{{"n": {n}}}' for n in range(5)]


async def test_a_run_says_what_it_is(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        parent = await enqueue(store)
        run_id = await enqueue(store, key="k", priority=3, correlation_id="trace", parent_id=parent)
        row = await get(store, run_id)
        assert (row.job_id, row.state, row.idempotency_key, row.priority) == (JOB, "queued", "k", 3)
        assert (row.correlation_id, row.parent_id, row.config_id, row.attempt) == ("trace", parent, None, 0)
        assert (row.started_at, row.finished_at, row.due_at, row.replica_id) == (None, None, None, None)
        assert abs((row.created_at - START).total_seconds()) < 60
        assert (await get(store, parent)).correlation_id == str(parent)


async def test_no_runs_are_no_runs(url: str) -> None:
    async with opened(url) as store:
        assert await store.enqueue([]) == []
        assert await store.get_runs([]) == []
        assert await store.get_runs([12345]) == []
        assert await claim(store) == []
        assert (await store.finish_runs([], [])).accepted == frozenset()


async def test_the_second_caller_gets_the_first_run(url: str) -> None:
    async with opened(url) as store:
        first = await enqueue(store, key="k")
        [again] = await store.enqueue([new(key="k", parameters='{"other": 1}')])
        assert (again.id, again.created) == (first, False)
        await finish(store, await claim_one(store))
        [after] = await store.enqueue([new(key="k")])
        assert (after.id, after.created) == (first, False)
        assert len(await ledger(store)) == 1


async def test_a_key_belongs_to_its_job(url: str) -> None:
    async with opened(url) as store:
        made = await store.enqueue([new(key="k"), new(key="k", job_id="other"), new(), new()])
        assert [each.created for each in made] == [True] * 4
        assert len({each.id for each in made}) == 4


async def test_duplicates_within_one_batch_are_one_run(url: str) -> None:
    async with opened(url) as store:
        old = await enqueue(store, key="old")
        made = await store.enqueue([new(key="a"), new(key="old"), new(key="b"), new(key="a"), new()])
        assert [each.created for each in made] == [True, False, True, False, True]
        assert made[3].id == made[0].id
        assert made[1].id == old
        assert len(await ledger(store)) == 4


async def test_of_many_callers_with_one_key_one_makes_the_run(url: str) -> None:
    async with several(url, 4) as stores:
        calls = [
            store.enqueue([new(key=f"k{n % 3}"), new(key=f"k{(n + 1) % 3}")]) for store in stores for n in range(6)
        ]
        made = [each for answer in await asyncio.gather(*calls) for each in answer]
        assert sum(each.created for each in made) == 3
        assert len({each.id for each in made}) == 3
        assert {row.id for row in await ledger(stores[0])} == {each.id for each in made}


async def test_a_batch_is_made_entirely_or_not_at_all(url: str) -> None:
    async with opened(url) as store:
        with pytest.raises(BadInput):
            await store.enqueue([new(key="good"), new(parameters="not json")])
        assert await ledger(store) == []
        assert await claim(store) == []
        assert (await store.enqueue([new(key="good")]))[0].created


async def test_a_delayed_run_starts_when_its_time_has_come(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        later = await enqueue(store, delay=600)
        latest = await enqueue(store, delay=1, run_at=START + timedelta(minutes=20))
        past = await enqueue(store, run_at=START - timedelta(minutes=1))
        assert [each.id for each in await claim(store)] == [past]
        assert await store.promote_due(100) == 0
        await set_clock(url, START + timedelta(minutes=12))
        assert await store.promote_due(100) == 1
        assert [each.id for each in await claim(store)] == [later]
        await set_clock(url, START + timedelta(minutes=22))
        assert await store.promote_due(100) == 1
        assert [each.id for each in await claim(store)] == [latest]


async def test_no_more_delayed_runs_are_moved_than_asked_for(url: str) -> None:
    async with several(url, 3) as stores:
        await hour(url, 0)
        await stores[0].enqueue([new(delay=60) for _ in range(30)])
        await hour(url, 1)
        assert await stores[0].promote_due(3) == 3
        moved = await asyncio.gather(*(store.promote_due(20) for store in stores))
        assert sum(moved) + await stores[0].promote_due(100) == 27
        assert len(await claim(stores[0])) == 30


async def test_better_priorities_start_first(url: str) -> None:
    async with opened(url) as store:
        order = [await enqueue(store, priority=priority) for priority in (5, 9, 0, 5)]
        claimed = [each.id for each in await claim(store, 3)] + [each.id for each in await claim(store, 3)]
        assert claimed == [order[2], order[0], order[3], order[1]]


async def test_a_better_priority_is_worth_thirty_seconds_a_step_and_no_more(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        old = await enqueue(store, priority=9)
        await set_clock(url, START + timedelta(seconds=100))
        early = await enqueue(store, priority=5)
        await set_clock(url, START + timedelta(seconds=160))
        late = await enqueue(store, priority=5)
        assert [each.id for each in await claim(store)] == [early, old, late]


async def test_only_runs_of_the_jobs_asked_for_are_taken(url: str) -> None:
    async with opened(url) as store:
        await enqueue(store, job_id="other")
        mine = await enqueue(store)
        assert [each.id for each in await claim(store)] == [mine]
        assert await claim(store) == []
        assert len(await claim(store, jobs=["nobodys", "other"])) == 1


async def test_a_claimed_run_is_running(url: str) -> None:
    async with opened(url) as store:
        await hour(url, 0)
        run_id = await enqueue(store)
        token = new_token()
        claimed = await claim_one(store, replica=7, token=token)
        assert (claimed.id, claimed.token, claimed.slot) == (run_id, token, False)
        assert (claimed.attempt, claimed.losses) == (1, 0)
        row = await get(store, run_id)
        assert (row.state, row.replica_id, row.attempt) == ("running", 7, 1)
        assert row.started_at is not None
        assert abs((row.started_at - START).total_seconds()) < 60


async def test_each_run_is_taken_once_by_any_number_of_replicas(url: str) -> None:
    async with several(url, 4) as stores:
        made = await stores[0].enqueue([new() for _ in range(200)])
        batches = await asyncio.gather(
            *(claim(store, 9, replica=n) for n, store in enumerate(stores) for _ in range(8))
        )
        taken = [each.id for batch in batches for each in batch]
        assert sorted(taken) == sorted(set(taken))
        rest = await claim(stores[0], 500)
        assert sorted(taken + [each.id for each in rest]) == [each.id for each in made]
        assert {row.attempt for row in await ledger(stores[0])} == {1}


async def test_what_an_operator_cancels_by_sql_is_not_started(url: str) -> None:
    async with opened(url) as store:
        made = await store.enqueue([new(), new()])
        await execute(url, f"update job_runs set state = 'cancelled' where id = {made[0].id}")
        assert [held.id for held in await claim(store)] == [made[1].id]
        assert (await get(store, made[0].id)).state == "cancelled"
        assert await execute(url, "select 1 from ready") == []


ODD = [
    "x",
    '"',
    "\\",
    '\\"',
    "\\n",
    "a,b",
    "{}",
    "{a}",
    "null",
    "NULL",
    " ",
    " a ",
    "'",
    "$1",
    "%",
    "\t",
    "(",
    "ü",
    "\U0001f600",
]


@pytest.mark.parametrize("more", [[], ["a\nb", "\n"]], ids=["in lines of their own", "over several lines"])
async def test_texts_come_back_as_they_went(url: str, more: list[str]) -> None:
    odd = [*ODD, *more]
    async with opened(url) as store:
        runs = [new(parameters=json.dumps({"of": text}), key=text, correlation_id=f"c{text}") for text in odd]
        # The second time they are there already, and one has no correlation.
        for wanted in (runs, [*runs, new(key="of its own")]):
            *rows, last = await store.get_runs([made.id for made in await store.enqueue([*wanted, new()])])
            found = rows[: len(odd)]
            assert [row.idempotency_key for row in found] == odd
            assert [row.correlation_id for row in found] == [f"c{text}" for text in odd]
            assert [json.loads(row.parameters) for row in found] == [{"of": text} for text in odd]
            assert (last.idempotency_key, last.correlation_id) == (None, str(last.id))
        held = {claimed.key: claimed for claimed in await claim(store)}
        ends = [outcome(held[text], result=json.dumps(text)) for text in odd]
        failed = outcome(held["of its own"], "failed", error="\n".join(odd))
        assert len((await store.finish_runs([*ends, failed], closed=[])).accepted) == len(odd) + 1
        rows = await store.get_runs([end.id for end in ends])
        assert [(row.result, row.error) for row in rows] == [(json.dumps(text), None) for text in odd]
        assert (await get(store, failed.id)).error == "\n".join(odd)
