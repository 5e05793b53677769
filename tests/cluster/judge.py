"""The verdict on a history: the ledger against an independent enumeration, and the runs against their handlers.

- Every tick from the first frontier to the last is in the ledger exactly once: as a run, skipped, or in a missed range.
- Every run that was made has succeeded, once: as often as completions were counted.
- Whoever completed a run was the holder of its last claim.
- What a transactional job wrote is there exactly once for each of its runs.
- No schedule had more runs at the same time than its limit.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from tests import enumeration
from tests.cluster.service import CHILDREN

Rows = list[dict[str, Any]]
INSTANT = timedelta(microseconds=1)


@dataclass
class Schedule:
    """A row of `scheduler_configs`, and the tick that it began with."""

    job: str
    name: str
    cron: str
    zone: str | None = None
    limit: int = 1
    overlap: str = "skip"
    catch_up: str = "latest"
    first: datetime | None = None

    def ticks(self, first: datetime, last: datetime) -> list[datetime]:
        """From `first` to `last`, both included."""
        return enumeration.ticks(self.cron, self.zone, first - INSTANT, last)


def judge(ledger: dict[str, Rows], schedules: list[Schedule], trace: Rows, *, interrupted: bool) -> list[str]:
    """What is wrong, as sentences."""
    complaints: list[str] = []
    runs = ledger["job_runs"]
    configs = {(row["job_id"], row["name"]): row for row in ledger["scheduler_configs"]}
    counted = {row["config_id"]: row for row in ledger["schedule_stats"]}
    for schedule in schedules:
        config = configs[schedule.job, schedule.name]
        mine = [run for run in runs if run["config_id"] == config["id"]]
        where = f"schedule {schedule.job}/{schedule.name}"
        complaints += [f"{where}: {what}" for what in _ticks(schedule, config, mine)]
        finished = sum(run["state"] != "skipped" for run in mine)
        if (stats := counted[config["id"]])["run_count"] != finished:
            complaints.append(f"{where}: {stats['run_count']} runs counted of {finished}")
        if finished and stats["last_state"] != "succeeded":
            complaints.append(f"{where}: its last run is {stats['last_state']}")
        if schedule.limit:
            complaints += [f"{where}: {what}" for what in _limit(schedule.limit, mine)]
    complaints += _completed_once(runs, ledger["completions"])
    complaints += _completions(runs, trace, "end" if interrupted else "start")
    complaints += _children(runs)
    complaints += _effects(runs, ledger["effects"])
    return complaints


def _ticks(schedule: Schedule, config: dict[str, Any], runs: Rows) -> Iterator[str]:
    first, frontier = schedule.first, moment(config["next_run_at"])
    assert first is not None
    if config["invalid_reason"]:
        yield f"is invalid: {config['invalid_reason']}"
    expected = schedule.ticks(first, frontier - INSTANT)
    if len(expected) < 2:
        yield f"only {len(expected)} ticks from {first} to {frontier}: nothing can be judged by them"
    found: Counter[datetime] = Counter()
    for run in runs:
        due = moment(run["due_at"])
        if run["missed_count"] is None:
            found[due] += 1
            if run["idempotency_key"] != f"schedule:{int(due.timestamp()) * 1_000_000_000}":
                yield f"tick {due} has the key {run['idempotency_key']}"
            continue
        covered = schedule.ticks(moment(run["missed_from"]), moment(run["missed_to"]))
        found.update(covered)
        if len(covered) != run["missed_count"]:
            wrong = f"{run['missed_count']} missed from {run['missed_from']} to {run['missed_to']}"
            yield f"{wrong}: there are {len(covered)}"
    if lost := sorted(set(expected) - set(found)):
        yield f"{len(lost)} ticks lost: {[str(tick) for tick in lost[:5]]}"
    if invented := sorted(set(found) - set(expected)):
        yield f"{len(invented)} ticks invented: {[str(tick) for tick in invented[:5]]}"
    if doubled := sorted(tick for tick, times in found.items() if times > 1):
        yield f"{len(doubled)} ticks twice: {[str(tick) for tick in doubled[:5]]}"
    total = sum(run["missed_count"] or 1 for run in runs)
    if total != len(expected):
        yield f"runs + skipped + missed = {total}, the enumeration has {len(expected)}"
    for run in runs:
        if run["state"] == "skipped" and run["reason"] not in ("overlap", "catch_up"):
            yield f"tick {run['due_at']} was skipped because of {run['reason']}"


def _limit(limit: int, runs: Rows) -> Iterator[str]:
    """By the database's clock: from its last claim to its completion, a run occupies a slot."""
    edges: list[tuple[datetime, int]] = []
    for run in runs:
        if run["started_at"] is not None and run["finished_at"] is not None:
            edges += [(moment(run["started_at"]), 1), (moment(run["finished_at"]), -1)]
    active = 0
    for when, step in sorted(edges):
        active += step
        if active > limit:
            yield f"{active} runs at once at {when}, the limit is {limit}"


def _completed_once(runs: Rows, completions: Rows) -> Iterator[str]:
    times = Counter(row["run_id"] for row in completions)
    for run in runs:
        if run["state"] != "skipped" and times[run["id"]] != 1:
            yield f"run {run['id']} of {run['job_id']}: {times[run['id']]} completions accepted"


def _completions(runs: Rows, trace: Rows, phase: str) -> Iterator[str]:
    ended = {(line["run"], line["nonce"]) for line in trace if line["phase"] == "end"}
    times = Counter(line["run"] for line in trace if line["phase"] == phase)
    for run in runs:
        where = f"run {run['id']} of {run['job_id']}"
        if run["state"] == "skipped":
            if times[run["id"]]:
                yield f"{where} was skipped, and run"
            continue
        if run["state"] != "succeeded":
            yield f"{where} is {run['state']} after {run['attempt']} attempts: {run['error']}"
            continue
        holder = json.loads(run["result"])
        if (holder["replica"], holder["attempt"]) != (run["replica_id"], run["attempt"]):
            yield (
                f"{where} was completed by replica {holder['replica']}, attempt {holder['attempt']}, "
                f"but was last claimed by replica {run['replica_id']}, attempt {run['attempt']}"
            )
        if (run["id"], holder["nonce"]) not in ended:
            yield f"{where} was completed by an attempt that never ended: {holder}"
        if times[run["id"]] > 1 and not run["losses"] and run["attempt"] == 1 and run["job_id"] != "ledger":
            yield f"{where} was run {times[run['id']]} times, though nobody who held it died"


def _children(runs: Rows) -> Iterator[str]:
    made = Counter((run["job_id"], run["parent_id"]) for run in runs if run["parent_id"] is not None)
    for run in runs:
        if run["state"] == "succeeded" and run["job_id"] in ("parent", "ledger"):
            kind, wanted = ("child", CHILDREN) if run["job_id"] == "parent" else ("echo", 1)
            if made[kind, run["id"]] != wanted:
                yield f"run {run['id']} of {run['job_id']} has {made[kind, run['id']]} children, not {wanted}"


def _effects(runs: Rows, effects: Rows) -> Iterator[str]:
    written = Counter(row["run_id"] for row in effects)
    wanted = Counter(run["id"] for run in runs if run["job_id"] == "ledger" and run["state"] == "succeeded")
    if written != wanted:
        yield f"transactional effects lost {dict(wanted - written)} or repeated {dict(written - wanted)}"


def moment(value: Any) -> datetime:
    """A time out of either database."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    return datetime.fromisoformat(value).replace(tzinfo=UTC)
