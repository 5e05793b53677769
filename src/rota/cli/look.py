"""What commands that only look or ask have in common: the store of an address, tables for people, JSON for scripts."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from rota import Settings
from rota.cli.say import plain, say, say_document
from rota.errors import BadInput, NotFound
from rota.schema import check_schema
from rota.store import Store
from rota.stores import open_store

T = TypeVar("T")

Url = Annotated[str | None, typer.Option(help="Database, instead of ROTA_URL.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document, for scripts.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]


@asynccontextmanager
async def opened(url: str | None) -> AsyncIterator[Store]:
    """The store; its tables must be there, and are not touched."""
    store = open_store(Settings.load(url=url))
    if path := missing_file(store):
        raise NotFound(f"there is no file {path}: name another with --url or ROTA_URL, or make it: run `rota migrate`")
    await store.open()
    try:
        await check_schema(store, migrate=False)
        yield store
    finally:
        await store.close()


def missing_file(store: Store) -> str | None:
    """The SQLite file that is not there: to open it would make it, and whoever only looks must not."""
    path = getattr(store, "path", None)
    return path if isinstance(path, str) and not os.path.exists(path) else None


def ask(url: str | None, question: Callable[[Store], Awaitable[T]]) -> T:
    async def go() -> T:
        async with opened(url) as store:
            return await question(store)

    return asyncio.run(go())


def echo_json(value: Any) -> None:
    """One JSON document."""
    say_document(msgspec.json.format(msgspec.json.encode(value)).decode())


def sure(question: str, yes: bool) -> None:
    """Ask, unless `--yes` was given; where nobody can be asked that is needed."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise BadInput(f"{question} Nobody can be asked here: give --yes")
    typer.confirm(plain(question), abort=True, err=True)


def show(rows: Sequence[dict[str, Any]], *, as_json: bool, nothing: str) -> None:
    """As a table, or as JSON. Colours only where there is a terminal, and not with NO_COLOR."""
    if as_json:
        echo_json(list(rows))
        return
    if not rows:
        say(nothing)
        return
    from rota.cli.table import print_rows  # only here: it takes long to import

    print_rows(rows)


def show_one(row: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        echo_json(row)
        return
    from rota.cli.table import print_one

    print_one(row)


def ago(moment: datetime | None, now: datetime | None = None) -> str | None:
    """How long ago, as people say it; by this machine's clock, or from the store's `now`."""
    if moment is None:
        return None
    return f"{spoken(max(0.0, ((now or datetime.now(UTC)) - moment).total_seconds()))} ago"


def spoken(seconds: float) -> str:
    """A time of so many seconds, in the largest unit of which there are two."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"


def when(moment: datetime | None, now: datetime) -> str | None:
    """A moment in UTC; its day only where that is not today."""
    if moment is None:
        return None
    same_day = moment.astimezone(UTC).date() == now.astimezone(UTC).date()
    return f"{moment.astimezone(UTC):{'%H:%M:%S' if same_day else '%Y-%m-%d %H:%M:%S'}}"


def lasted(seconds: float | None) -> str | None:
    """A duration in its two largest units."""
    if seconds is None:
        return None
    if seconds < 10:
        return "0s" if seconds < 0.0005 else f"{seconds * 1000:.0f}ms" if seconds < 0.9995 else f"{seconds:.1f}s"
    whole = round(seconds)
    for unit, length, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= length:
            rest = whole % length // part
            return f"{whole // length}{unit}" + (f" {rest}{smaller}" if rest else "")
    return f"{whole}s"
