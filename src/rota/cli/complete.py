"""What the shell offers at the tab key. It must be quick, must change nothing, and must never complain."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from rota.cli.look import opened
from rota.errors import RotaError
from rota.store import RunFilter, Store

_PATIENCE = 2.0
_Question: TypeAlias = Callable[[Store], Awaitable[set[str]]]


def job_names(incomplete: str) -> list[str]:
    """Those that replicas declare, that schedules name, and of the newest runs."""

    async def names(store: Store) -> set[str]:
        found = {job for replica in await store.list_replicas() for job in replica.jobs}
        found |= {schedule.job_id for schedule in await store.list_schedules()}
        return found | {run.job_id for run in await store.find_runs(RunFilter())}

    return [name for name in sorted(_asked(names)) if name.startswith(incomplete)]


def schedule_names(incomplete: str) -> list[str]:
    async def names(store: Store) -> set[str]:
        return {f"{schedule.job_id}/{schedule.name}" for schedule in await store.list_schedules()}

    return [name for name in sorted(_asked(names)) if name.startswith(incomplete)]


def run_ids(incomplete: str) -> list[str]:
    """The newest runs."""

    async def ids(store: Store) -> set[str]:
        return {str(run.id) for run in await store.find_runs(RunFilter())}

    return [run_id for run_id in sorted(_asked(ids), key=int, reverse=True) if run_id.startswith(incomplete)]


def _asked(question: _Question) -> set[str]:
    async def go() -> set[str]:
        async with asyncio.timeout(_PATIENCE), opened(None) as store:
            return await question(store)

    try:
        return asyncio.run(go())
    except (RotaError, OSError, TimeoutError):
        return set()
