"""What can be said of a schedule, as types: so that an editor knows every option, also where it is passed on."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, TypedDict

from rota.policy import Breaker, CatchUp, Overlap, Retry


class Timing(TypedDict, total=False):
    """What every way of writing down a schedule has."""

    timezone: str | None
    """IANA name; none: UTC."""
    overlap: Overlap
    """What a tick does that comes while `concurrency_limit` runs of the schedule are active."""
    catch_up: CatchUp
    """What runs of the ticks that fell due while nothing ran."""
    catch_up_limit: int
    """How many missed ticks `catch_up="all"` runs at most."""
    skip_if_older_than: float | timedelta
    """Ticks older than this never run."""
    concurrency_limit: int
    """Runs of the schedule at once, in the whole cluster; 0: no limit."""
    lock_timeout_seconds: int
    """After this a slot that its holder no longer renews is free."""
    priority: int
    """From 0, first, to 99."""


class EveryOptions(Timing, total=False):
    """What `app.every` takes besides the interval: the same as `app.cron`."""

    name: str
    """Name of the schedule, where a job has several."""
    job: str | None
    """Name of the job, if not the function's."""
    parameters: dict[str, Any] | None
    """Arguments of its runs, by parameter name."""
    retry: int | Retry
    """Attempts after the first."""
    timeout: float | timedelta | None
    """Seconds per attempt."""
    breaker: int | Breaker | None
    """Hold ticks back after so many failures in a row."""
    transactional: bool
    """The handler's writes and the run's completion commit together."""


class ScheduleOptions(Timing, total=False):
    """What `app.schedule` takes besides the job, the expression and the name."""

    parameters: dict[str, Any] | str | None
    """Arguments of its runs, by parameter name, or the same as JSON."""
    enabled: bool
    """False: paused."""


class ScheduleChanges(ScheduleOptions, total=False):
    """What `Schedule.update` can set."""

    job_id: str
    """Name of the job."""
    name: str
    """Name of the schedule."""
    cron: str
    """The expression."""
    next_run_at: datetime | None
    """The next tick; none: computed from now."""
    skip_if_older_than_seconds: int
    """`skip_if_older_than`, as the table has it."""
