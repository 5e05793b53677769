"""Plan: what would make the table say what a file says. Pure; the store carries it out in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rota.baseline import Entry
from rota.contract.row import Row
from rota.errors import BadInput, StaleWrite
from rota.store import Declaration, Revise, Revision, ScheduleRow


class Difference(Row, frozen=True, kw_only=True):
    """A field of a schedule that is to change."""

    field: str
    before: Any
    after: Any


class Plan(Row, frozen=True, kw_only=True):
    """Schedules to add, to change, to remove."""

    add: tuple[Declaration, ...] = ()
    change: tuple[tuple[str, int, tuple[Difference, ...]], ...] = ()
    """Job and name, id, and the fields."""
    remove: tuple[tuple[str, int], ...] = ()
    left: tuple[str, ...] = ()
    """Not in the file, and not to be removed: code declares them, and would bring them back."""

    @property
    def empty(self) -> bool:
        return not (self.add or self.change or self.remove)

    def revision(self) -> Revision:
        return Revision(
            add=self.add,
            change=tuple((number, {d.field: d.after for d in fields}) for _, number, fields in self.change),
            remove=tuple(number for _, number in self.remove),
        )


def make_plan(entries: Sequence[Entry], rows: Sequence[ScheduleRow], *, prune: bool) -> Plan:
    """From these rows to those entries. `prune`: rows that no entry names are removed, unless code declares them."""
    known = {(row.job_id, row.name): row for row in rows}
    add, change = [], []
    for entry in entries:
        row = known.pop((entry.job_id, entry.name), None)
        if row is None:
            if "cron" not in entry.fields:
                raise BadInput(f"{entry.where}: {entry.label} is not in the table yet, so it needs a cron")
            add.append(Declaration(job_id=entry.job_id, name=entry.name, **entry.fields))
        elif fields := differences(row, entry.fields):
            change.append((entry.label, row.id, fields))
    others = [row for row in rows if (row.job_id, row.name) in known] if prune else []
    return Plan(
        add=tuple(add),
        change=tuple(change),
        remove=tuple((f"{row.job_id}/{row.name}", row.id) for row in others if row.declared is None),
        left=tuple(f"{row.job_id}/{row.name}" for row in others if row.declared is not None),
    )


def carry_out(shown: Plan, entries: Sequence[Entry], *, prune: bool) -> Revise:
    """What a store does when a plan was agreed to: that and nothing else, or nothing."""

    def revise(rows: Sequence[ScheduleRow]) -> Revision:
        if make_plan(entries, rows, prune=prune) != shown:
            raise StaleWrite(
                "somebody changed schedules since the difference was shown; nothing was written: look again"
            )
        return shown.revision()

    return revise


def differences(row: ScheduleRow, fields: dict[str, Any]) -> tuple[Difference, ...]:
    """Which of these fields the row has otherwise."""
    return tuple(
        Difference(field=field, before=getattr(row, field), after=value)
        for field, value in fields.items()
        if _same(field, getattr(row, field)) != _same(field, value)
    )


def drift(row: ScheduleRow) -> tuple[Difference, ...]:
    """Where a row is not as code declared it last: `before` is what code says. `enabled` is the operator's alone."""
    declared = msgspec.json.decode(row.declared) if row.declared else {}
    return tuple(
        Difference(field=field, before=value, after=getattr(row, field))
        for field, value in declared.items()
        if field not in ("job_id", "name", "enabled") and hasattr(row, field)
        if _same(field, getattr(row, field)) != _same(field, value)
    )


def _same(field: str, value: Any) -> Any:
    """Two values of a field that mean the same are equal as this."""
    if field == "parameters":
        return msgspec.json.decode(value)
    return value or "UTC" if field == "timezone" else value
