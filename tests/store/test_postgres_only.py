"""What is particular to Postgres: replies that never come."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from rota.store import Enqueued, NewRun
from rota.stores.postgres import runs
from tests.harness import Databases, execute
from tests.store.steps import JOB, opened


async def test_an_enqueue_whose_reply_is_lost_makes_each_run_once(
    databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, real, calls = databases.new("postgres", tmp_path), runs._enqueue, 0

    async def cut_after_commit(connection: Any, ids: Sequence[int], wanted: Sequence[NewRun]) -> list[Enqueued]:
        nonlocal calls
        calls += 1
        made = await real(connection, ids, wanted)
        if calls == 1:
            raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")
        return made

    async with opened(url) as store:
        monkeypatch.setattr(runs, "_enqueue", cut_after_commit)
        made = await store.enqueue([NewRun(job_id=JOB), NewRun(job_id=JOB, key="k"), NewRun(job_id=JOB)])
        assert (calls, [each.created for each in made]) == (2, [True, True, True])
        assert await execute(url, "select id from job_runs order by id") == [(each.id,) for each in made]
        assert await execute(url, "select count(*) from ready") == [(3,)]
