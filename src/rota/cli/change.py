"""Doing one thing to many runs: which, whether really, one message for each."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import typer

from rota.cli.look import ask, show, sure
from rota.cli.say import complain, say
from rota.cli.which import Which
from rota.errors import NotFound, WrongState
from rota.store import Hint, Store

_MANY = 20


def chosen(url: str | None, ids: Sequence[int] | None, which: Which, limit: int, verb: str, *, yes: bool) -> list[int]:
    """The runs named, or those that the options choose; of the latter it is asked whether they are meant."""
    if bool(ids) == bool(which):
        raise typer.BadParameter(f"name the runs to {verb}, or choose them by options; `rota runs list` takes the same")
    if ids:
        return list(dict.fromkeys(ids))

    async def find(store: Store) -> list[int]:
        rows = await store.find_runs(await which.filter(store, await store.now(), limit=limit))
        return [row.id for row in reversed(rows)]

    found = ask(url, find)
    if not found:
        raise NotFound(f"there is no such run to {verb}")
    some = ", ".join(map(str, found[:10])) + (", ..." if len(found) > 10 else "")
    sure(f"{verb.capitalize()} {len(found)} run{'s' * (len(found) > 1)} ({some})?", yes)
    return found


def change(
    url: str | None,
    ids: Sequence[int],
    one: Callable[[Store, int], Awaitable[tuple[bool, str]]],
    *,
    hint: Hint,
    words: Mapping[str, str],
    as_json: bool,
) -> None:
    """Each by itself: one that cannot be changed does not keep the others. Exits with 1 if there was one."""

    async def attempt(store: Store, run_id: int) -> tuple[bool, str]:
        try:
            good, state = await one(store, run_id)
        except (NotFound, WrongState) as error:
            return False, str(error)
        return good, f"run {run_id} {words[state]}" if good else f"run {run_id} is {state} already"

    async def go(store: Store) -> list[tuple[int, bool, str]]:
        done = [(run_id, *await attempt(store, run_id)) for run_id in _tracked(ids)]
        await store.hint(hint)
        return done

    done = ask(url, go)
    if as_json:
        show([{"id": run_id, "done": good, "said": said} for run_id, good, said in done], as_json=True, nothing="")
    for _, good, said in [] if as_json else done:
        if good:
            say(said)
        else:
            complain(said)
    raise typer.Exit(0 if all(good for _, good, _ in done) else 1)


def _tracked(ids: Sequence[int]) -> Iterable[int]:
    """With a bar where they are many and somebody looks on."""
    if len(ids) < _MANY or not sys.stderr.isatty():
        return ids
    from rich.console import Console
    from rich.progress import track  # only here: it takes long to import

    return track(ids, console=Console(stderr=True), transient=True)
