"""What the shell offers at the tab key. It must be quick, must change nothing, and must never complain."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import typer

from rota.cli.look import opened
from rota.contract.roles import Seat
from rota.store import RunFilter, Store

_PATIENCE = 1.0
_Question: TypeAlias = Callable[[Store], Awaitable[set[str]]]


def job_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Those that replicas declare, that schedules name, and of the newest runs."""

    async def names(store: Store) -> set[str]:
        found = {job for replica in await store.list_replicas() for job in replica.jobs}
        found |= {schedule.job_id for schedule in await store.list_schedules()}
        return found | {run.job_id for run in await store.find_runs(RunFilter())}

    return _offered(ctx, incomplete, names)


def schedule_names(ctx: typer.Context, incomplete: str) -> list[str]:
    async def names(store: Store) -> set[str]:
        return {f"{schedule.job_id}/{schedule.name}" for schedule in await store.list_schedules()}

    return _offered(ctx, incomplete, names)


def run_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """The newest runs."""

    async def ids(store: Store) -> set[str]:
        return {str(run.id) for run in await store.find_runs(RunFilter())}

    return sorted(_offered(ctx, incomplete, ids), key=int, reverse=True)


def role_names(ctx: typer.Context, incomplete: str) -> list[str]:
    async def names(store: Store) -> set[str]:
        seats: list[Seat] = (await store.look_roles())[0]
        return {seat.role for seat in seats}

    return _offered(ctx, incomplete, names)


def singleton_names(ctx: typer.Context, incomplete: str) -> list[str]:
    async def names(store: Store) -> set[str]:
        return {row.name for row in await store.list_singletons()}

    return _offered(ctx, incomplete, names)


def lock_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Those that are held."""

    async def names(store: Store) -> set[str]:
        return {holder.name for holder in await store.list_locks()}

    return _offered(ctx, incomplete, names)


def replica_names(ctx: typer.Context, incomplete: str) -> list[str]:
    async def names(store: Store) -> set[str]:
        return {replica.name for replica in await store.list_replicas()}

    return _offered(ctx, incomplete, names)


def _offered(ctx: typer.Context, incomplete: str, question: _Question) -> list[str]:
    """Of the database that the line names so far."""

    async def go() -> set[str]:
        async with asyncio.timeout(_PATIENCE), opened(ctx.params.get("url")) as store:
            return await question(store)

    with contextlib.suppress(Exception):  # whatever it is, the line that is being typed is no place to say so
        return [name for name in sorted(asyncio.run(go())) if name.startswith(incomplete) and name.isprintable()]
    return []
