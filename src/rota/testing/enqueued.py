"""What was enqueued: assertions about runs made by hand, with a message that shows what there is.

A run counts whatever became of it since; ticks of schedules do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from rota.app import Rota
from rota.errors import BadParameters
from rota.job import Call, Job
from rota.store import RunFilter, RunRow, State

_MOST = 100_000
_SHOWN = 20


async def all_enqueued(app: Rota, job: Job[..., Any] | None = None) -> list[RunRow]:
    """The runs that were made by hand, of all jobs or of one; the oldest first."""
    return by_hand(await app.store.find_runs(RunFilter(job_id=job.name if job else None, limit=_MOST)))


async def assert_enqueued(
    job: Job[..., Any] | Call[Any],
    /,
    *args: Any,
    times: int = 1,
    key: str | None = None,
    state: State | None = None,
    **kwargs: Any,
) -> list[RunRow]:
    """That the job was enqueued so many times with these arguments: `await assert_enqueued(resize, "a.png", key="a")`.

    Arguments that are left out match anything. A call, such as `resize.call("a.png")`, says all of them. The runs.
    """
    owner = job.job.app if isinstance(job, Call) else job.app
    return check(await all_enqueued(owner), wanted(job, args, kwargs, key, state), times)


async def refute_enqueued(
    job: Job[..., Any] | Call[Any],
    /,
    *args: Any,
    key: str | None = None,
    state: State | None = None,
    **kwargs: Any,
) -> None:
    """That the job was not enqueued with these arguments; without any, that it was not enqueued at all."""
    await assert_enqueued(job, *args, times=0, key=key, state=state, **kwargs)


def by_hand(rows: Sequence[RunRow]) -> list[RunRow]:
    return sorted((row for row in rows if row.config_id is None), key=lambda row: row.id)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which runs are looked for."""

    job: Job[..., Any]
    arguments: dict[str, Any]
    whole: bool
    """These are all of the arguments."""
    key: str | None
    state: State | None

    def matches(self, row: RunRow) -> bool:
        if row.job_id != self.job.name or self.key not in (None, row.idempotency_key):
            return False
        if self.state not in (None, row.state):
            return False
        have = _values(self.job, row.parameters)
        if self.whole:
            return have == self.arguments
        return all(name in have and have[name] == value for name, value in self.arguments.items())

    def __str__(self) -> str:
        told = f" with {_json(self.arguments)}" if self.arguments or self.whole else ""
        return f"{self.job.name!r}{told}{f', key {self.key!r}' if self.key else ''}{_in(self.state)}"


def wanted(
    job: Job[..., Any] | Call[Any], args: tuple[Any, ...], kwargs: dict[str, Any], key: str | None, state: State | None
) -> Wanted:
    if isinstance(job, Call):
        if args or kwargs:
            raise BadParameters(f"{job.job!r}: a call has its arguments already; give the job itself with these")
        values = _values(job.job, job.parameters)
        return Wanted(job.job, values, True, key or job.options.key, state)
    try:
        bound = job.arguments._signature.bind_partial(*args, **kwargs)
    except TypeError as error:
        raise BadParameters(f"job {job.name!r}: {error}") from None
    given = dict(bound.arguments)
    for parameter in job.arguments._signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            given.update(given.pop(parameter.name, {}))
    return Wanted(job, msgspec.json.decode(msgspec.json.encode(given)), False, key, state)


def check(rows: Sequence[RunRow], what: Wanted, times: int) -> list[RunRow]:
    """The runs that match, if there are as many as there should be; else an AssertionError that shows all."""
    found = [row for row in rows if what.matches(row)]
    if len(found) != times:
        raise AssertionError(f"expected {_count(times)} of {what}; there {_are(len(found))}\n{_shown(rows)}")
    return found


def _values(job: Job[..., Any], parameters: str) -> dict[str, Any]:
    """The arguments by name, those that were left out too."""
    try:
        return dict(msgspec.json.decode(msgspec.json.encode(job.arguments.decode(parameters))))
    except (BadParameters, TypeError):
        return dict(msgspec.json.decode(parameters))


def _shown(rows: Sequence[RunRow]) -> str:
    if not rows:
        return "nothing was enqueued"
    lines = [
        f"  run {row.id} of {row.job_id!r} with {row.parameters}"
        f"{f', key {row.idempotency_key!r}' if row.idempotency_key else ''}, {row.state}"
        for row in rows[:_SHOWN]
    ]
    more = [f"  and {len(rows) - _SHOWN} more"] if len(rows) > _SHOWN else []
    return "\n".join(["what was enqueued:", *lines, *more])


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _in(state: str | None) -> str:
    return f", {state}" if state else ""


def _count(times: int) -> str:
    return "no run" if times == 0 else f"{times} run{'' if times == 1 else 's'}"


def _are(found: int) -> str:
    return "is none" if found == 0 else f"{'is' if found == 1 else 'are'} {found}"
