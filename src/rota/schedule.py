"""Schedule: when a job runs, and what if."""

from __future__ import annotations

from datetime import datetime, timedelta
from math import isfinite
from typing import TYPE_CHECKING, Any, Unpack, cast

import msgspec

from rota.errors import BadInput, BadParameters, NotFound, StaleWrite
from rota.job import check_priority
from rota.moment import check_instant, show_moment
from rota.options import ScheduleChanges
from rota.policy import CATCH_UPS, OVERLAPS
from rota.run import Run
from rota.store import Declaration, ScheduleRow, Store, tick_key
from rota.timetable import timetable

if TYPE_CHECKING:
    from rota.app import Rota


_TRIES = 20
_LARGEST = 2**31 - 1
_EDITABLE = tuple(field.name for field in msgspec.structs.fields(Declaration))


def declaration(
    job_id: str,
    cron: str,
    *,
    name: str = "default",
    timezone: str | None = None,
    enabled: bool = True,
    priority: int = 5,
    concurrency_limit: int = 1,
    lock_timeout_seconds: int = 300,
    parameters: dict[str, Any] | str | None = None,
    overlap: str = "skip",
    catch_up: str = "latest",
    catch_up_limit: int = 100,
    skip_if_older_than: float | timedelta = timedelta(days=1),
) -> Declaration:
    """A schedule, checked: whatever is wrong with it is said here and nowhere else."""
    timetable(cron, timezone)
    if not name or len(name) > 200:
        raise BadInput(f"schedule name {name[:60]!r} of job {job_id!r} must have 1 to 200 characters")
    if not job_id or "\x00" in job_id + name:
        raise BadInput(f"job {job_id!r}, schedule {name!r}: a name must not be empty or contain the character NUL")
    if overlap not in OVERLAPS:
        raise BadInput(f"overlap {overlap!r} is none of {', '.join(OVERLAPS)}")
    if catch_up not in CATCH_UPS:
        raise BadInput(f"catch_up {catch_up!r} is none of {', '.join(CATCH_UPS)}")
    if not 1 <= catch_up_limit <= 10_000:
        raise BadInput(f"catch_up_limit must be from 1 to 10000, not {catch_up_limit}")
    if not 0 <= concurrency_limit <= _LARGEST:
        raise BadInput(f"concurrency_limit must be 0 (no limit) or more, up to {_LARGEST}, not {concurrency_limit}")
    if not 1 <= lock_timeout_seconds <= _LARGEST:
        raise BadInput(f"lock_timeout_seconds must be from 1 to {_LARGEST}, not {lock_timeout_seconds}")
    older = skip_if_older_than.total_seconds() if isinstance(skip_if_older_than, timedelta) else skip_if_older_than
    if not 1 <= older <= 10 * 366 * 86400:
        raise BadInput(f"skip_if_older_than must be from a second to ten years, not {skip_if_older_than}")
    return Declaration(
        job_id=job_id, name=name, cron=cron, timezone=timezone, enabled=enabled, priority=check_priority(priority),
        concurrency_limit=concurrency_limit, lock_timeout_seconds=lock_timeout_seconds,
        parameters=_json_object(parameters), overlap=overlap, catch_up=catch_up, catch_up_limit=catch_up_limit,
        skip_if_older_than_seconds=int(older),
    )  # fmt: skip


def _json_object(parameters: dict[str, Any] | str | None) -> str:
    try:
        value = msgspec.json.decode(parameters) if isinstance(parameters, str) else (parameters or {})
        if not isinstance(value, dict):
            raise BadParameters(f"parameters must be a JSON object by parameter name, not {value!r}")
        _check_storable(value)
        return msgspec.json.encode(value).decode()
    except (msgspec.DecodeError, TypeError, ValueError) as error:
        if isinstance(error, BadParameters):
            raise
        raise BadParameters(f"parameters must be JSON: {error}") from None


def _check_storable(value: Any) -> None:
    """What JSON has, or a store keeps, no notation for must not become something else silently."""
    if isinstance(value, dict | list | tuple):
        for inner in [*value, *value.values()] if isinstance(value, dict) else value:
            _check_storable(inner)
    elif isinstance(value, float) and not isfinite(value):
        raise BadParameters(f"parameters cannot hold {value}, which JSON does not have")
    elif isinstance(value, str) and "\x00" in value:
        raise BadParameters("parameters cannot hold the character NUL, which Postgres does not store")


def check_tick(row: ScheduleRow, due_at: datetime) -> None:
    """`BadInput` for an instant at which it does not tick: that would be an entry of the ledger that nobody expects."""
    check_instant("due_at", due_at)
    table = timetable(row.cron, row.timezone)
    before = table.latest(due_at)
    if before != due_at:
        near = " and ".join(
            show_moment(tick, row.timezone) for tick in (before, table.next(due_at)) if tick is not None
        )
        shown = show_moment(due_at, row.timezone)
        raise BadInput(f"{row.job_id}/{row.name} does not tick at {shown}; its ticks near it: {near}")


class Schedule:
    """A handle on a row of `scheduler_configs`. Every change goes by the version that was read."""

    def __init__(self, app: Rota, row: ScheduleRow) -> None:
        self._app = app
        self.row = row
        """What was read last; `refresh` reads it again."""

    def __repr__(self) -> str:
        return f"<Schedule {self.row.id} {self.row.job_id}/{self.row.name} {self.row.cron!r}>"

    @property
    def id(self) -> int:
        """The number of its row."""
        return self.row.id

    async def refresh(self) -> ScheduleRow:
        """Read the row again. `NotFound` when it is gone."""
        rows = await self._app.store.list_schedules(schedule_id=self.row.id)
        if not rows:
            raise NotFound(f"there is no schedule {self.row.id} any more")
        self.row = rows[0]
        return self.row

    async def update(self, **fields: Unpack[ScheduleChanges]) -> None:
        """Set fields. `StaleWrite` when somebody else changed the row since it was read: `refresh`, then decide."""
        checked = checked_changes(self.row, cast(dict[str, Any], fields))
        if "parameters" in checked:
            self._app.check_parameters(self.row.job_id, checked["parameters"])
        self.row = await write_changes(self._app.store, self.row, checked)

    async def pause(self) -> None:
        """No more ticks; those of the pause are recorded as skipped when it is resumed."""
        await self.refresh()
        await self.update(enabled=False)

    async def resume(self) -> None:
        """Ticks again, from now on."""
        await self.refresh()
        await self.update(enabled=True)

    async def trigger(self, due_at: datetime | None = None) -> Run[Any]:
        """A run now, besides the schedule's own; with `due_at` the run of that tick, which exists once only."""
        if due_at is not None:
            check_tick(await self.refresh(), due_at)
        made = await self._app.store.trigger(self.row.id, due_at)
        self._app.hint("schedules")
        return Run(self._app, made.id, self.row.job_id, created=made.created)

    async def delete(self) -> None:
        """Remove it. Its runs stay in the table."""
        await self._app.store.delete_schedule(self.row.id)

    def upcoming(self, after: datetime, count: int = 10) -> list[datetime]:
        """The next ticks after an instant, by its expression and zone."""
        table, ticks = timetable(self.row.cron, self.row.timezone), [after]
        for _ in range(count):
            ticks.append(table.next(ticks[-1]))
        return ticks[1:]

    def key(self, due_at: datetime) -> str:
        """The idempotency key of the tick at that instant."""
        return tick_key(due_at)


def checked_changes(row: ScheduleRow, changes: dict[str, Any]) -> dict[str, Any]:
    """What to write for these changes of a schedule, or `BadInput`."""
    known = {*_EDITABLE, "skip_if_older_than", "next_run_at"}
    if unknown := sorted(changes.keys() - known):
        raise BadInput(f"a schedule has no field {unknown[0]!r}; there are: {', '.join(sorted(known))}")
    if changes.get("next_run_at") is not None:
        check_instant("next_run_at", changes["next_run_at"])
    basis: dict[str, Any] = {"cron": "every 1s"}
    if changes.keys() & {"cron", "timezone"}:
        basis = {"cron": row.cron, "timezone": row.timezone}
    checked = declaration(row.job_id, **(basis | _declared(changes)))
    if "parameters" in changes:
        changes = changes | {"parameters": checked.parameters}
    if "skip_if_older_than" in changes:
        changes = {k: v for k, v in changes.items() if k != "skip_if_older_than"}
        changes["skip_if_older_than_seconds"] = checked.skip_if_older_than_seconds
    return changes


async def write_changes(store: Store, read: ScheduleRow, changes: dict[str, Any]) -> ScheduleRow:
    """Write checked changes of a schedule as it was read; `StaleWrite` when somebody edited it since."""
    for _ in range(_TRIES):
        try:
            return await store.update_schedule(read.id, read.version, changes)
        except StaleWrite:
            # The scheduler moves the version on with every tick; only another editor's change is a conflict.
            now = await store.list_schedules(schedule_id=read.id)
            if not now:
                raise NotFound(f"there is no schedule {read.id} any more") from None
            if edited(read) != edited(now[0]):
                raise
            read = now[0]
    raise StaleWrite(f"schedule {read.id} changes faster than it can be edited; nothing was written")


def edited(row: ScheduleRow) -> tuple[Any, ...]:
    """What an editor may have changed, and the scheduler never does."""
    return tuple(getattr(row, name) for name in _EDITABLE)


def _declared(changes: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in changes.items()
        if name not in ("job_id", "next_run_at", "skip_if_older_than_seconds")
    }
