"""The recipes for moving: from SQLite to Postgres, and in from another scheduler."""

from __future__ import annotations

import ast
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rota import Rota
from rota.store import ScheduleRow
from tests.app.waiting import until
from tests.docs.test_snippets import _FENCE, ROOT, under
from tests.harness import Databases, execute

KEPT = (
    "cron", "timezone", "enabled", "priority", "concurrency_limit", "lock_timeout_seconds", "overlap",
    "catch_up", "catch_up_limit", "skip_if_older_than_seconds", "next_run_at",
)  # fmt: skip


def service(url: str) -> Rota:
    app = Rota(url)

    @app.cron("0 3 * * *", timezone="Europe/Paris")
    async def close_books(branch: str = "north") -> None: ...

    @app.every("1h")
    async def collect() -> None: ...

    @app.job()
    async def report(day: str) -> None: ...

    return app


async def schedules(app: Rota) -> dict[tuple[str, str], dict[str, Any]]:
    rows: list[ScheduleRow] = [schedule.row for schedule in await app.schedules()]
    return {
        (row.job_id, row.name): {name: getattr(row, name) for name in KEPT} | {"parameters": json.loads(row.parameters)}
        for row in rows
    }


async def test_what_operators_set_and_what_is_due_next_is_the_same_after_the_move(
    databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save, load = [
        compile(match[3], "recipes.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        for match in _FENCE.finditer(under(ROOT / "docs" / "recipes.md", "Move from SQLite to Postgres"))
        if match[1] == "python"
    ]
    old = service(databases.new("sqlite", tmp_path))

    async def computed() -> bool:
        return all(schedule.row.next_run_at for schedule in await old.schedules())

    async with old:
        await old.schedule("close_books", "0 6 * * MON", name="typed", parameters={"branch": "south"}, priority=2)
        await old.schedule("report", "0 6 * * MON", name="weekly", parameters={"day": "today"})
        await until(computed)
        [nightly] = await old.schedules("close_books", "default")
        await nightly.update(cron="0 4 * * *", overlap="queue")
        await until(computed)
        [hourly] = await old.schedules("collect")
        await hourly.pause()
        before = await schedules(old)
    await execute(old.settings.url, "insert into scheduler_configs (job_id, name, cron) values ('gone', 'x', '@daily')")
    printed: list[tuple[object, ...]] = []
    names: dict[str, Any] = {"app": old, "print": lambda *what: printed.append(what)}
    await eval(save, names)
    assert printed == [("left behind:", [("gone", "x")])]
    names["app"] = new = service(databases.new("postgres", tmp_path))
    await eval(load, names)
    async with new:  # declares once more, as every later start does
        assert await schedules(new) == before


async def test_a_schedule_that_is_handed_over_begins_with_the_next_tick(url: str) -> None:
    insert, update = [
        match[3].strip().removesuffix(";")
        for match in _FENCE.finditer(
            under(ROOT / "docs" / "recipes.md", "Move a schedule in without a gap or a doubled night")
        )
        if match[1] == "sql"
    ]
    async with Rota(url).client():
        await execute(url, insert)
    app = Rota(url)

    @app.cron("0 3 * * *", name="handed over")
    async def report() -> None: ...

    async def enabled() -> ScheduleRow | None:
        [schedule] = await app.schedules("report")
        return schedule.row if schedule.row.next_run_at else None

    async with app:
        [schedule] = await app.schedules("report")
        assert not schedule.row.enabled
        await execute(url, update)
        before = datetime.now(UTC)
        row = await until(enabled)
        assert row.next_run_at in schedule.upcoming(before, 2)
        assert await execute(url, "select count(*) from job_runs") == [(0,)]
