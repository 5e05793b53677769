"""rota on Postgres 14 and later, through asyncpg."""

from rota.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
