"""`rota locks`: who holds what, and freeing what is stuck."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rota.cli.complete import lock_names
from rota.cli.look import AsJson, Url, Yes, ago, ask, show, sure
from rota.cli.say import say
from rota.contract.locks import LockHolder
from rota.errors import NotFound
from rota.store import Store

app = typer.Typer(help="Locks and semaphores: who holds what, and freeing what is stuck.", no_args_is_help=True)

Name = Annotated[
    str, typer.Argument(help="As `rota locks list` spells it, e.g. ledger or rota:key:42", autocompletion=lock_names)
]


@app.command("list")
def list_(url: Url = None, as_json: AsJson = False) -> None:
    """All locks that are held, and by whom.

    Example: rota locks list --json
    """
    holders = ask(url, lambda store: store.list_locks())
    show([_row(holder, as_json) for holder in holders], as_json=as_json, nothing="no lock is held")


@app.command()
def who(name: Name, url: Url = None, as_json: AsJson = False) -> None:
    """Who holds this lock, and since when.

    Example: rota locks who ledger
    """
    holders = ask(url, lambda store: store.list_locks(name))
    show([_row(holder, as_json) for holder in holders], as_json=as_json, nothing=f"nobody holds {name!r}")


@app.command()
def release(name: Name, yes: Yes = False, url: Url = None) -> None:
    """Take a lock away from whoever holds it.

    A holder that lives finds out within a second or three, and what it protects is cancelled; until then it may overlap
    with the next one. A holder that died needs none of this: its locks are free by themselves.

    Example: rota locks release ledger --yes
    """
    holders = ask(url, lambda store: store.list_locks(name))
    if not holders:
        raise NotFound(f"nobody holds lock {name!r}; `rota locks list` shows those that are held")
    show([_row(holder, False) for holder in holders], as_json=False, nothing="")
    sure(f"Take {name!r} away?", yes)

    async def go(store: Store) -> None:
        for holder in holders:
            await store.release_lock(holder.token)
        await store.hint("locks")

    ask(url, go)
    say(f"released {name!r}")


def _row(holder: LockHolder, as_json: bool) -> dict[str, Any]:
    if as_json:
        fields = ("name", "fence", "holder", "replica_id", "acquired_at", "expires_at", "alive")
        return {name: getattr(holder, name) for name in fields}
    replica = "client" if holder.replica_id is None else f"replica {holder.replica_id}"
    return {
        "lock": holder.name,
        "holder": f"{holder.holder} ({replica})",
        "since": f"{holder.acquired_at:%Y-%m-%d %H:%M:%S} UTC ({ago(holder.acquired_at)})",
        "fence": holder.fence,
        "alive": holder.alive,
    }
