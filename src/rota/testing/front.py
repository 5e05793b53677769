"""Front: lets the app that the tests and the handlers know stand for whichever replica they are in.

Handlers name their app (`app.lock(...)`, `report.enqueue(...)`). Inside a run that must mean the replica that runs it,
with its own connections: one that is cut off must not reach the store by the back door. Elsewhere it is a client.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

from rota.app import Rota
from rota.context import current_context
from rota.errors import BadInput
from rota.keeper import Keeper
from rota.results import Results
from rota.snowflake import Snowflakes
from rota.store import Store
from rota.testing.stepped import Twin, alike


class Whichever:
    """Stands for one of several, chosen anew at every use."""

    def __init__(self, choose: Callable[[], object]) -> None:
        self._choose = choose

    def __getattr__(self, name: str) -> Any:
        return getattr(self._choose(), name)


@asynccontextmanager
async def fronted(app: Rota, outside: Twin, twins: Mapping[str, Twin]) -> AsyncIterator[None]:
    """For the time of the block, the app is the replica that a run is on, and `outside` elsewhere."""
    if app._store is not None:
        raise BadInput("this Rota is open already; a cluster opens it itself")

    def here() -> Twin:
        context = current_context()
        return outside if context is None else twins.get(context.replica, outside)

    with app._entrance():
        settings, results, ids = app.settings, app.results, app.ids
        app.settings = alike(settings, outside.settings.url)
        app.results, app.ids = Results(lambda: app.store), Snowflakes(lambda: app.store)
        app._store = cast(Store, Whichever(lambda: here().store))
        app._keeper = cast(Keeper, Whichever(lambda: here()._holding()))
        try:
            yield
        finally:
            await app.results.close()
            await app.ids.close()
            app._store = app._keeper = None
            app.settings, app.results, app.ids = settings, results, ids
