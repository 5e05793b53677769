"""The stores, by url. Imported only when one is wanted."""

from __future__ import annotations

from rota.settings import Settings
from rota.store import Store


def open_store(settings: Settings, tag: str | None = None) -> Store:
    """The store that the url names; not connected yet."""
    if settings.url.startswith("sqlite:"):
        from rota.stores.sqlite import SQLiteStore

        return SQLiteStore(settings, tag=tag)
    from rota.stores.postgres import PostgresStore

    return PostgresStore(settings, tag=tag)
