"""Which ticks run: the ledger's invariant over any history of decisions, and each policy by example."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.errors import BadInput
from rota.policy import CATCH_UPS, OVERLAPS, Breaker, Decider, Retry
from rota.store import Decision, DueSchedule, Tick, tick_key
from tests.enumeration import ticks as enumerate_ticks

START = datetime(2026, 3, 28, 22, 0, tzinfo=UTC)  # the night in which Europe's clocks go forward
DECIDE = Decider(late_after=60, check=lambda job, parameters: None)


def due(**fields: object) -> DueSchedule:
    basis: dict[str, object] = {
        "id": 1, "version": 0, "job_id": "job", "cron": "*/5 * * * *", "next_run_at": START, "paused_at": None,
        "resumed_at": None, "timezone": None, "parameters": "{}", "held": 0, "waiting": 0, "as_declared": False,
        "job_limited": False, "breaker": "closed", "breaker_retry_at": None,
    }  # fmt: skip
    return DueSchedule(**(basis | fields))  # type: ignore[arg-type]


def decide(now: datetime, **fields: object) -> Decision:
    [decision] = DECIDE(now, [due(**fields)])
    return decision


def summary(decision: Decision) -> list[tuple[str, str | None, int]]:
    return [(tick.place, tick.reason, tick.missed_count or 1) for tick in decision.ticks]


def minutes(count: float) -> datetime:
    return START + timedelta(minutes=count)


@dataclass
class Ledger:
    covered: list[datetime] = field(default_factory=list)
    counted: int = 0

    def add(self, tick: Tick, cron: str, zone: str | None) -> None:
        if tick.missed_from is None or tick.missed_to is None:
            self.covered.append(tick.due_at)
            self.counted += 1
        else:
            self.covered += enumerate_ticks(cron, zone, tick.missed_from - timedelta(seconds=1), tick.missed_to)
            assert tick.missed_count is not None
            self.counted += tick.missed_count


@settings(max_examples=150, deadline=None)
@given(
    cron=st.sampled_from(["*/5 * * * *", "30 2 * * *", "0 * * * *", "*/20 1-4 * * *", "every 7m"]),
    zone=st.sampled_from([None, "Europe/Paris", "Australia/Lord_Howe", "America/Havana"]),
    catch_up=st.sampled_from(CATCH_UPS),
    overlap=st.sampled_from(OVERLAPS),
    limit=st.integers(0, 2),
    horizon=st.sampled_from([3600, 86400]),
    steps=st.lists(
        st.tuples(
            st.sampled_from([1, 3, 61, 200, 1500]), st.integers(0, 3), st.integers(0, 2), st.booleans(), st.booleans()
        ),
        min_size=1, max_size=6,
    ),
)  # fmt: skip
def test_runs_skips_and_summaries_add_up_to_the_enumeration(
    cron: str, zone: str | None, catch_up: str, overlap: str, limit: int, horizon: int,
    steps: list[tuple[int, int, int, bool, bool]],
) -> None:  # fmt: skip
    schedule = due(
        cron=cron, timezone=zone, catch_up=catch_up, overlap=overlap, concurrency_limit=limit, catch_up_limit=5,
        skip_if_older_than_seconds=horizon, next_run_at=None,
    )  # fmt: skip
    [decision] = DECIDE(START, [schedule])
    assert decision.ticks == ()
    ledger, now, frontier = Ledger(), START, decision.next_run_at
    for passed, held, waiting, paused, tripped in steps:
        before, now = now, now + timedelta(minutes=passed)
        assert frontier is not None
        if frontier > now:
            continue
        pause = {"paused_at": before, "resumed_at": before + timedelta(minutes=passed / 2)} if paused else {}
        breaker = {"breaker": "open", "breaker_retry_at": now + timedelta(seconds=1)} if tripped else {}
        changed = {"next_run_at": frontier, "held": held, "waiting": waiting} | pause | breaker
        [decision] = DECIDE(now, [msgspec.structs.replace(schedule, **changed)])
        for tick in decision.ticks:
            ledger.add(tick, cron, zone)
        assert decision.next_run_at is not None
        assert decision.next_run_at > now
        frontier = decision.next_run_at
    expected = enumerate_ticks(cron, zone, START, frontier - timedelta(seconds=1)) if frontier else []
    assert sorted(ledger.covered) == expected
    assert ledger.counted == len(expected)


def test_a_new_schedule_never_back_fills() -> None:
    decision = decide(minutes(12), next_run_at=None)
    assert decision.ticks == ()
    assert decision.next_run_at == minutes(15)


def test_latest_runs_the_newest_missed_tick_and_accounts_for_the_others() -> None:
    decision = decide(minutes(12))
    assert summary(decision) == [("none", "catch_up", 2), ("ready", None, 1)]
    assert decision.ticks[-1].due_at == minutes(10)


def test_all_runs_each_in_turn_and_no_more_than_the_cap() -> None:
    decision = decide(minutes(22), catch_up="all", catch_up_limit=3)
    assert summary(decision) == [
        ("none", "catch_up", 2), ("ready", None, 1), ("waiting", None, 1), ("waiting", None, 1),
    ]  # fmt: skip
    assert [tick.due_at for tick in decision.ticks[1:]] == [minutes(10), minutes(15), minutes(20)]


def test_skip_runs_a_tick_that_is_on_time_and_none_that_was_missed() -> None:
    assert summary(decide(minutes(0.5), catch_up="skip")) == [("ready", None, 1)]
    assert summary(decide(minutes(2), catch_up="skip")) == [("none", "catch_up", 1)]


def test_what_is_older_than_the_horizon_never_runs() -> None:
    decision = decide(minutes(26 * 60 + 1), catch_up="all", catch_up_limit=10_000)
    assert decision.ticks[0].reason == "stale"
    assert decision.ticks[0].missed_count == 25  # two hours of five minutes, and the one on the edge
    assert all(tick.reason is None for tick in decision.ticks[1:])


@pytest.mark.parametrize(
    ("overlap", "waiting", "expected", "stops"),
    [
        ("skip", 0, ("none", "overlap", 1), False),
        ("queue", 3, ("waiting", None, 1), False),
        ("queue_one", 0, ("waiting", None, 1), False),
        ("queue_one", 1, ("none", "overlap", 1), False),
        ("cancel", 0, ("waiting", None, 1), True),
        ("cancel", 1, ("none", "overlap", 1), False),
    ],
)
def test_what_happens_when_the_hands_are_full(
    overlap: str, waiting: int, expected: tuple[str, str | None, int], stops: bool
) -> None:
    decision = decide(START, overlap=overlap, held=1, waiting=waiting)
    assert summary(decision) == [expected]
    assert decision.cancel_running is stops


def test_no_limit_means_no_overlap() -> None:
    assert summary(decide(START, concurrency_limit=0, held=50)) == [("ready", None, 1)]


def test_a_run_of_a_limited_job_waits_for_the_jobs_slot() -> None:
    assert summary(decide(START, job_limited=True)) == [("waiting", None, 1)]


def test_an_open_breaker_skips_and_after_the_pause_lets_one_probe_through() -> None:
    later, earlier = START + timedelta(seconds=1), START - timedelta(seconds=1)
    assert summary(decide(START, breaker="open", breaker_retry_at=later)) == [("none", "circuit_open", 1)]
    probing, other = DECIDE(START, [due(breaker="open", breaker_retry_at=earlier, id=n) for n in (1, 2)])
    assert (summary(probing), probing.probe) == ([("ready", None, 1)], True)
    assert (summary(other), other.probe) == ([("none", "circuit_open", 1)], False)


def test_ticks_of_a_pause_are_recorded_as_such() -> None:
    decision = decide(minutes(21), paused_at=minutes(-1), resumed_at=minutes(16))
    assert summary(decision) == [("none", "paused", 4), ("ready", None, 1)]


def test_a_bad_row_is_marked_with_the_reason() -> None:
    decision = decide(START, cron="61 * * * *")
    assert decision.invalid_reason is not None
    assert "'minute'" in decision.invalid_reason
    refusing = Decider(late_after=60, check=lambda job, parameters: f"{job}: no")
    [decision] = refusing(START, [due()])
    assert decision.invalid_reason == "job: no"
    assert decision.next_run_at == START


def test_what_code_of_another_version_declared_is_left_to_it() -> None:
    refusing = Decider(late_after=60, check=lambda job, parameters: f"{job}: no")
    assert refusing(START, [due(as_declared=True)]) == []


def test_an_operator_may_set_the_next_run_off_the_timetable() -> None:
    decision = decide(minutes(3), next_run_at=minutes(2.5))
    assert summary(decision) == [("ready", None, 1)]
    assert decision.ticks[0].due_at == minutes(2.5)


def test_the_key_of_a_tick_is_its_nanoseconds() -> None:
    assert tick_key(datetime(2026, 11, 15, 3, 0, tzinfo=UTC)) == "schedule:1794711600000000000"


def test_retries_pause_longer_each_time_up_to_a_ceiling() -> None:
    plain = Retry(attempts=20, base=1, longest=60, jitter=False)
    assert [plain.pause(n, ValueError()) for n in (1, 2, 3, 10)] == [1, 2, 4, 60]
    jittered = Retry(attempts=20, base=1, longest=60)
    drawn = [jittered.pause(4, ValueError()) for _ in range(200)]
    assert all(pause is not None and 0 <= pause <= 8 for pause in drawn)
    assert len(set(drawn)) > 100
    assert plain.pause(21, ValueError()) is None
    assert Retry(attempts=3, give_up_on=(KeyError,)).pause(1, KeyError()) is None
    assert Retry(attempts=3, on=(OSError,)).pause(1, KeyError()) is None


def test_policies_that_cannot_work_are_refused() -> None:
    for make in (lambda: Retry(attempts=-1), lambda: Breaker(failures=0), lambda: Breaker(pause=0)):
        with pytest.raises(BadInput):
            make()


def test_a_pause_between_attempts_is_one_that_a_store_can_keep() -> None:
    endless = Retry(attempts=100, base=1e300, longest=math.inf, jitter=False)
    assert endless.pause(100, ValueError()) == 366 * 86400
    with pytest.raises(BadInput):
        Retry(base=math.nan)
    with pytest.raises(BadInput):
        Retry(longest=math.nan)
