"""What the pages need to be a site: a snippet for one store says for which."""

from __future__ import annotations

import re
from typing import Any

_TITLES = {"postgres": "Postgres", "sqlite": "SQLite", "theirs": "Before"}
_FENCE = re.compile(r"^```(\w+) (postgres|sqlite|theirs)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for each page."""
    return _FENCE.sub(lambda block: f'```{block[1]} title="{_TITLES[block[2]]}"\n{block[3]}```', markdown)
