"""The version of the tables against that of the code: what fits is used, what does not is refused in a sentence."""

from __future__ import annotations

from collections.abc import Callable

from rota.errors import SchemaMismatch
from rota.store import Store

SCHEMA = 2
"""The version of the tables that this code was written for."""


async def check_schema(store: Store, *, migrate: bool, applied: Callable[[str], None] | None = None) -> list[str]:
    """Bring the tables forward if allowed; refuse a store that is too old or too new. The migrations applied."""
    version, compatible_with = await store.schema_version()
    if compatible_with > SCHEMA:
        raise SchemaMismatch(
            f"the store's tables are of version {version}, which needs a rota that knows version {compatible_with}; "
            f"this one knows {SCHEMA}: upgrade rota here"
        )
    if version >= SCHEMA:
        return []
    if not migrate:
        have = f"of version {version}" if version else "not there"
        raise SchemaMismatch(
            f"the store's tables are {have}, this rota needs version {SCHEMA}: run `rota migrate`, "
            "or leave ROTA_MIGRATE on to have it done at start"
        )
    return await store.migrate(applied)
