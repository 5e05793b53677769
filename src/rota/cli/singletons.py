"""`rota singletons`: where they run, how they do, what they remember."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import typer

from rota.cli.complete import replica_names, singleton_names
from rota.cli.leader import choose
from rota.cli.look import AsJson, Url, Yes, ago, ask, lasted, show, show_one, sure
from rota.cli.near import unknown
from rota.cli.say import say
from rota.contract.roles import Seat
from rota.contract.singletons import LostState, SingletonRow, role_of
from rota.store import Store

app = typer.Typer(help="Where singletons run, how they do, what they remember.", no_args_is_help=True)

Name = Annotated[
    str, typer.Argument(help="The singleton, as `rota singletons list` shows it.", autocompletion=singleton_names)
]


@app.command("list")
def list_(url: Url = None, as_json: AsJson = False) -> None:
    """All singletons."""

    async def go(store: Store) -> list[dict[str, Any]]:
        seats = {seat.role: seat for seat in (await store.look_roles())[0]}
        told = _data if as_json else _row
        return [told(row, seats.get(role_of(row.name))) for row in await store.list_singletons()]

    show(ask(url, go), as_json=as_json, nothing="no singleton ever ran here")


@app.command("show")
def show_(name: Name, url: Url = None, as_json: AsJson = False) -> None:
    """One singleton: its state, its last error, and state that could not be read. Exits with 3 when it is unhealthy."""

    async def go(store: Store) -> tuple[SingletonRow, dict[str, Any]]:
        row = await _find(store, name)
        seats = {seat.role: seat for seat in (await store.look_roles())[0]}
        seat, lost = seats.get(role_of(name)), await store.lost_states(name)
        return row, _document(row, seat, lost) if as_json else _page(row, seat, lost)

    row, shown = ask(url, go)
    show_one(shown, as_json=as_json)
    raise typer.Exit(0 if row.healthy else 3)


@app.command()
def reset(name: Name, yes: Yes = False, url: Url = None) -> None:
    """Forget its state, and start its body anew. What it remembered is kept aside (`rota singletons show`)."""
    ask(url, lambda store: _find(store, name))
    sure(f"Forget the state of {name!r} and start it anew?", yes)

    async def go(store: Store) -> bool:
        return await store.reset_singleton(name)

    say(f"{name!r} begins anew" + ("" if ask(url, go) else "; it had no state"))


@app.command()
def move(
    name: Name,
    to: Annotated[
        str | None,
        typer.Option(help="The replica to run it next: its name or its number.", autocompletion=replica_names),
    ] = None,
    url: Url = None,
) -> None:
    """Ask the replica where it runs to hand it on, with its state. Returns when it was asked, not when it is done."""

    async def go(store: Store) -> str:
        await _find(store, name)
        seats, candidates = await store.look_roles()
        [seat] = [seat for seat in seats if seat.role == role_of(name)]
        target = choose(candidates, seat, to)
        seat = await store.ask_step_down(seat.role, meant_for=target.replica_id if target else None)
        where = target.name if target else "nobody else would take it, so it comes back"
        return f"{name!r} leaves {seat.holder} (replica {seat.replica_id}); next: {where}"

    say(ask(url, go))


async def _find(store: Store, name: str) -> SingletonRow:
    rows = await store.list_singletons()
    for row in rows:
        if row.name == name:
            return row
    raise unknown("singleton", name, [row.name for row in rows])


def _data(row: SingletonRow, seat: Seat | None) -> dict[str, Any]:
    where = seat if seat is not None and seat.alive else None
    return {
        "name": row.name,
        "replica": where.holder if where else None,
        "replica_id": where.replica_id if where else None,
        "term": seat.term if seat is not None else None,
        "healthy": row.healthy,
        "started_at": row.started_at,
        "beat_at": row.beat_at,
        "executed_at": row.executed_at,
        "run_count": row.run_count,
        "failure_count": row.failure_count,
    }


def _document(row: SingletonRow, seat: Seat | None, lost: list[LostState]) -> dict[str, Any]:
    return _data(row, seat) | {
        "state": None if row.state is None else msgspec.Raw(row.state.encode()),
        "saved_at": row.saved_at,
        "expires_at": row.expires_at,
        "heartbeat": row.heartbeat,
        "expect_every": row.expect_every,
        "last_error": row.last_error,
        "kept_aside": [msgspec.structs.asdict(kept) for kept in lost],
    }


def _page(row: SingletonRow, seat: Seat | None, lost: list[LostState]) -> dict[str, Any]:
    return _row(row, seat) | {
        "state": row.state,
        "saved": ago(row.saved_at),
        "expires": row.expires_at and _at(row.expires_at),
        "heartbeat": lasted(row.heartbeat),
        "expected every": lasted(row.expect_every),
        "last error": row.last_error,
        "kept aside": "\n".join(f"{_at(kept.at)} {kept.reason}: {kept.state}" for kept in lost) or None,
    }


def _row(row: SingletonRow, seat: Seat | None) -> dict[str, Any]:
    where = seat.holder if seat is not None and seat.alive else None
    return {
        "name": row.name,
        "runs on": where,
        "term": seat.term if seat is not None else None,
        "healthy": row.healthy,
        "started": ago(row.started_at),
        "last beat": ago(row.beat_at),
        "last executed": ago(row.executed_at),
        "executions": row.run_count,
        "failures": row.failure_count,
    }


def _at(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
