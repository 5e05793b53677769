"""rota on one SQLite file, shared by the processes of one machine, through apsw."""

from rota.stores.sqlite.store import SQLiteStore

__all__ = ["SQLiteStore"]
