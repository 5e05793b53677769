"""What the pages need to be a site: a snippet for one store says for which."""

from __future__ import annotations

import re
from typing import Any

_STORES = {"postgres": "Postgres", "sqlite": "SQLite"}
_FENCE = re.compile(r"^```(\w+) (postgres|sqlite)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for each page."""
    return _FENCE.sub(lambda block: f'```{block[1]} title="{_STORES[block[2]]}"\n{block[3]}```', markdown)
