"""`rota locks`: who holds what, and freeing what is stuck."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Annotated, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rota import Settings
from rota.contract.locks import LockHolder
from rota.errors import NotFound
from rota.schema import check_schema
from rota.store import Store
from rota.stores import open_store

T = TypeVar("T")
Url = Annotated[str | None, typer.Option(help="Database, instead of ROTA_URL")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, for scripts")]
Name = Annotated[str, typer.Argument(help="As `rota locks list` spells it, e.g. ledger or rota:key:42")]

locks = typer.Typer(help="Locks and semaphores: who holds what, and freeing what is stuck.", no_args_is_help=True)


@locks.command("list")
def list_locks(url: Url = None, json: Json = False) -> None:
    """All locks that are held, and by whom.

    Example: rota locks list --json
    """
    _show(asyncio.run(_with_store(url, lambda store: store.list_locks())), json, "no lock is held")


@locks.command()
def who(name: Name, url: Url = None, json: Json = False) -> None:
    """Who holds this lock, and since when.

    Example: rota locks who ledger
    """
    _show(asyncio.run(_with_store(url, lambda store: store.list_locks(name))), json, f"nobody holds {name!r}")


@locks.command()
def release(
    name: Name,
    url: Url = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask")] = False,
) -> None:
    """Take a lock away from whoever holds it.

    A holder that lives finds out within a second or three, and what it protects is cancelled; until then it may overlap
    with the next one. A holder that died needs none of this: its locks are free by themselves.

    Example: rota locks release ledger --yes
    """
    holders = asyncio.run(_with_store(url, lambda store: store.list_locks(name)))
    if not holders:
        raise NotFound(f"nobody holds lock {name!r}; `rota locks list` shows those that are held")
    _show(holders, False, "")
    if not yes:
        typer.confirm(f"Take {name!r} away?", abort=True)

    async def go(store: Store) -> None:
        for holder in holders:
            await store.release_lock(holder.token)
        await store.hint("locks")

    asyncio.run(_with_store(url, go))
    typer.echo(f"released {name!r}")


def _show(holders: list[LockHolder], json: bool, nothing: str) -> None:
    if json:
        fields = ("name", "fence", "holder", "replica_id", "acquired_at", "expires_at", "alive")
        typer.echo(msgspec.json.encode([{name: getattr(holder, name) for name in fields} for holder in holders]))
        return
    if not holders:
        typer.echo(nothing)
        return
    table = Table(box=None, pad_edge=False)
    for column in ("LOCK", "HOLDER", "SINCE", "FENCE", ""):
        table.add_column(column, overflow="fold")
    for holder in holders:
        replica = "client" if holder.replica_id is None else f"replica {holder.replica_id}"
        since = f"{holder.acquired_at:%Y-%m-%d %H:%M:%S} UTC ({_age(holder.acquired_at)})"
        alive = "" if holder.alive else "not alive"
        # Names are anybody's: plain text, no markup.
        table.add_row(Text(holder.name), Text(f"{holder.holder} ({replica})"), since, str(holder.fence), alive)
    Console(highlight=False).print(table)


def _age(moment: datetime) -> str:
    seconds = max(0, int((datetime.now(UTC) - moment).total_seconds()))
    hours, minutes = seconds // 3600, seconds % 3600 // 60
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds % 60} s" if minutes else f"{seconds} s"


async def _with_store(url: str | None, look: Callable[[Store], Awaitable[T]]) -> T:
    async with _opened(Settings.load(url=url)) as store:
        return await look(store)


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncIterator[Store]:
    """The store as it is: who looks does not migrate."""
    store = open_store(settings)
    await store.open()
    try:
        await check_schema(store, migrate=False)
        yield store
    finally:
        await store.close()
