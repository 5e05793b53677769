"""`rota leader`: who leads what, and to move it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rota.cli.complete import replica_names, role_names
from rota.cli.look import AsJson, Url, ago, ask, show, show_one
from rota.cli.near import unknown
from rota.cli.say import say
from rota.contract.roles import Candidate, Seat
from rota.errors import BadInput

app = typer.Typer(help="Who leads which role, in which term; and to move one.", no_args_is_help=True)

Role = Annotated[str, typer.Argument(help="The role, as `rota leader list` shows it.", autocompletion=role_names)]


@app.command("list")
def list_(url: Url = None, as_json: AsJson = False) -> None:
    """All roles, and who leads them."""
    seats, _ = ask(url, lambda store: store.look_roles())
    show(
        [_data(seat) if as_json else _row(seat) for seat in seats], as_json=as_json, nothing="no role was ever led here"
    )


@app.command("show")
def show_(role: Role, url: Url = None, as_json: AsJson = False) -> None:
    """One role, and who would take it. Exits with 3 when nobody leads it."""
    seats, candidates = ask(url, lambda store: store.look_roles())
    seat = _find(seats, role)
    others = [candidate for candidate in candidates if role in candidate.roles]
    if as_json:
        found = [{"name": each.name, "replica_id": each.replica_id} for each in others]
        show_one(_data(seat) | {"candidates": found}, as_json=True)
    else:
        named = ", ".join(f"{each.name} ({each.replica_id})" for each in others)
        show_one(_row(seat) | {"candidates": named or None}, as_json=False)
    raise typer.Exit(0 if seat.alive else 3)


@app.command("step-down")
def step_down(
    role: Role,
    to: Annotated[
        str | None, typer.Option(help="The replica to lead next: its name or its number.", autocompletion=replica_names)
    ] = None,
    url: Url = None,
) -> None:
    """Ask the leader to hand the role on; its hooks run first. Returns when it was asked, not when it is done."""

    async def go(store: Any) -> tuple[Seat, Candidate | None]:
        seats, candidates = await store.look_roles()
        seat = _find(seats, role)
        target = choose(candidates, seat, to)
        return await store.ask_step_down(role, meant_for=target.replica_id if target else None), target

    seat, target = ask(url, go)
    nxt = f"; {target.name} is to lead next" if target else "; nobody else would take it, so it comes back"
    say(f"asked {seat.holder} (replica {seat.replica_id}, term {seat.term}) to step down from {role!r}{nxt}")


def choose(candidates: list[Candidate], seat: Seat, to: str | None) -> Candidate | None:
    """Who is to lead next: the one named, or another one that would."""
    others = [c for c in candidates if seat.role in c.roles and c.replica_id != seat.replica_id]
    if to is None:
        return others[0] if others else None
    for candidate in others:
        if to in (candidate.name, str(candidate.replica_id)):
            return candidate
    known = ", ".join(f"{c.name} ({c.replica_id})" for c in others) or "nobody else"
    raise BadInput(f"{to!r} cannot take {seat.role!r}: there is {known}")


def _find(seats: list[Seat], role: str) -> Seat:
    for seat in seats:
        if seat.role == role:
            return seat
    raise unknown("role", role, [seat.role for seat in seats])


def _data(seat: Seat) -> dict[str, Any]:
    return {
        "role": seat.role,
        "leader": seat.holder if seat.alive else None,
        "replica_id": seat.replica_id if seat.alive else None,
        "term": seat.term,
        "won_at": seat.won_at,
        "elector": seat.elector,
        "step_down": seat.step_down,
    }


def _row(seat: Seat) -> dict[str, Any]:
    return {
        "role": seat.role,
        "leader": seat.holder if seat.alive else None,
        "replica": seat.replica_id if seat.alive else None,
        "term": seat.term,
        "since": ago(seat.won_at) if seat.alive else None,
        "elector": seat.elector,
        "asked to step down": seat.step_down,
    }
