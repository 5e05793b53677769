"""Runs as they change. Hints say when to look; where there are none, a look every half second finds the same."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from typing import Any

import msgspec
import typer

from rota.cli.look import lasted, when
from rota.cli.say import complain, on_one_line, say, say_document
from rota.cli.story import Names, as_data, headline, progress_of, state_of, took
from rota.cli.which import matches, unbound
from rota.clock import steady
from rota.errors import CannotListen, NotFound, StoreUnavailable
from rota.service import Wake
from rota.store import FINISHED, RunFilter, RunRow, Store

_OFTEN, _SELDOM, _SOONEST = 0.5, 1.0, 0.05
_BACK = 10_000
"""Replicas take ids in blocks, so a run may be made that is this much lower than the newest. One that is lower still is
seen as soon as a replica has it."""
_MARGIN = timedelta(seconds=10)
"""A run is seen when its transaction commits, which is later than the time in its row."""
_TRACKED = 1000
_NOT_YET = 3


class Following:
    """A store that is watched, and how it is told."""

    def __init__(self, store: Store, *, as_json: bool, seconds: float | None, hints: bool = True) -> None:
        self.store, self.as_json, self._hints = store, as_json, hints
        self._deadline = None if seconds is None else steady() + seconds
        self._wake = Wake()
        self._seen: dict[int, tuple[Any, ...]] = {}
        self._names = Names([], [])
        self._known: set[int] = set()
        self.now: datetime

    @asynccontextmanager
    async def hints(self) -> AsyncIterator[None]:
        listening = asyncio.create_task(self._listen())
        try:
            yield
        finally:
            listening.cancel()
            await asyncio.wait([listening])

    async def _listen(self) -> None:
        while self._hints:
            try:
                await self.store.listen(lambda _: self._wake.set_here())
            except CannotListen:
                return
            except StoreUnavailable:
                await asyncio.sleep(_SELDOM)

    async def wait(self, *, busy: bool) -> bool:
        """Until it is time to look again; false when the time that was given is over."""
        pause = _OFTEN if busy else _SELDOM
        if self._deadline is not None:
            pause = min(pause, self._deadline - steady())
            if pause <= 0:
                return False
        await asyncio.sleep(min(_SOONEST, pause))
        await self._wake.wait(pause)
        return True

    async def changed(self, rows: Iterable[RunRow]) -> list[RunRow]:
        """Those that are not as they were at the last look."""
        found = []
        for row in rows:
            mark = (row.state, row.attempt, row.losses, row.progress, row.started_at, row.finished_at)
            if self._seen.get(row.id) != mark:
                self._seen[row.id] = mark
                found.append(row)
        if any(row.replica_id is not None and row.replica_id not in self._known for row in found):
            replicas = await self.store.list_replicas()
            self._names = Names(await self.store.list_schedules(), replicas)
            self._known |= {row.replica_id for row in found if row.replica_id is not None}
        return found

    def forget(self, keep: set[int]) -> None:
        self._seen = {run_id: mark for run_id, mark in self._seen.items() if run_id in keep}

    def tell(self, row: RunRow) -> None:
        if self.as_json:
            say_document(msgspec.json.encode(as_data(row, self._names, self.now)).decode())
        else:
            at = when(_moment(row, self.now), self.now)
            say(on_one_line(f"{at}  run {row.id} {row.job_id}: {self._said(row)}"))

    def _said(self, row: RunRow) -> str:
        if row.state == "running":
            attempt = f", attempt {row.attempt}" if row.attempt > 1 else ""
            return progress_of(row) or f"running on {self._names.replica(row)}{attempt}"
        if row.state == "queued":
            again = f" again: {headline(row)}" if row.attempt else ""
            wait = (row.run_at - self.now).total_seconds()
            return f"queued{again}" + (f", due in {lasted(wait)}" if wait > 0 else "")
        time = took(row, self.now)
        after = "" if time is None else f" after {lasted(time)}"
        return f"{state_of(row)}{after}" + (f": {headline(row)}" if row.state == "failed" and row.error else "")


def _moment(row: RunRow, now: datetime) -> datetime:
    """When it came to be as it is, as far as the row tells."""
    if row.state in FINISHED:
        return row.finished_at or row.created_at
    if row.state == "running" and row.progress is None:
        return row.started_at or now
    return now


async def follow_one(following: Following, run_id: int) -> int:
    """Until it has finished. The exit code tells how."""
    async with following.hints():
        with _bar(following, run_id) as bar:
            while True:
                row = await _patiently(_one(following, run_id))
                for changed in [] if row is None else await following.changed([row]):
                    bar(changed)
                if row is not None and row.state in FINISHED:
                    break
                if not await following.wait(busy=True):
                    complain(f"run {run_id} is not over; it goes on")
                    return _NOT_YET
        return 0 if row.state == "succeeded" else 1


async def _one(following: Following, run_id: int) -> RunRow:
    rows = await following.store.get_runs([run_id])
    if not rows:
        raise NotFound(f"there is no run {run_id}; it may have been pruned")
    following.now = await following.store.now()
    return rows[0]


async def _patiently(look: Any) -> Any:
    """None when the database does not answer; it is asked again."""
    try:
        return await look
    except StoreUnavailable as error:
        complain(f"{error}; still trying")
        return None


async def follow_all(following: Following, which: RunFilter, *, until_idle: bool) -> int:
    """All that match, as they change."""
    store = following.store
    async with following.hints():
        following.now = await store.now()
        unfinished = unbound(which, states=("queued", "running"), limit=_TRACKED)
        rows = {row.id: row for row in await store.find_runs(unfinished)}
        rows = await _look(following, which, set(rows))  # what is over by now is no news
        for row in sorted(await following.changed(rows.values()), key=lambda row: row.id):
            if row.state == "running" and _wanted(row, which):
                following.tell(row)
        while True:
            tracked = {run_id for run_id, row in rows.items() if row.state not in FINISHED}
            due = [rows[run_id] for run_id in tracked if rows[run_id].run_at <= following.now]
            if (until_idle and not due) or not await following.wait(busy=bool(tracked)):
                return 0
            rows = await _patiently(_look(following, which, tracked)) or rows
            for row in sorted(await following.changed(rows.values()), key=lambda row: _moment(row, following.now)):
                if _wanted(row, which):
                    following.tell(row)
            following.forget(set(rows))


def _wanted(row: RunRow, which: RunFilter) -> bool:
    return which.states is None or row.state in which.states


async def _look(following: Following, which: RunFilter, tracked: set[int]) -> dict[int, RunRow]:
    """What is new, what runs, and what was not finished at the last look; however long the history is."""
    store, before = following.store, following.now
    following.now = await store.now()
    newest = await store.find_runs(RunFilter(limit=1))
    lowest = max(0, newest[0].id - _BACK) if newest else 0
    found = await store.find_runs(
        unbound(which, states=None, after_id=lowest, touched_since=before - _MARGIN, limit=_BACK)
    )
    running = [row for row in await store.running_runs() if matches(row, which)]
    rows = {row.id: row for row in (*found, *running)}
    rest = [run_id for run_id in tracked if run_id not in rows]
    return rows | {row.id: row for row in await store.get_runs(rest)}


# -- on a terminal ---------------------------------------------------------------------------------


@contextmanager
def _bar(following: Following, run_id: int) -> Iterator[Any]:
    """What to do with a change: a line each, or where somebody looks on, a bar that moves."""
    if following.as_json or not sys.stdout.isatty():
        yield following.tell
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # only here: it takes long to import

    console = Console(highlight=False)
    what, said = (TextColumn(field, markup=False) for field in ("{task.description}", "{task.fields[said]}"))
    last: list[RunRow] = []
    with Progress(what, BarColumn(), said, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task(f"run {run_id}", total=None, said="")

        def move(row: RunRow) -> None:
            last[:] = [row]
            known = msgspec.json.decode(row.progress) if row.progress else {}
            progress.update(
                task, description=on_one_line(f"run {run_id} {row.job_id}"), completed=known.get("done") or 0,
                total=known.get("total"), said=on_one_line(progress_of(row) or state_of(row)),
            )  # fmt: skip

        yield move
    if last:
        following.tell(last[0])


@contextmanager
def quietly() -> Iterator[None]:
    """Whoever read along, `head` for one, may stop reading: that is no error."""
    try:
        yield
    except BrokenPipeError:
        # What is still in the buffer must not complain when the process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
