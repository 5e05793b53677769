"""A name that nobody has, and those that may be meant."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from difflib import get_close_matches

from rota.errors import NotFound

_MOST_LISTED = 20


def near(text: str, names: Collection[str]) -> list[str]:
    return get_close_matches(text, names, 5) or [name for name in names if text.lower() in name.lower()][:5]


def unknown(what: str, text: str, names: Sequence[str]) -> NotFound:
    hint = f"near it: {', '.join(found)}" if (found := near(text, names)) else f"there are: {listed(names)}"
    return NotFound(f"there is no {what} {text!r}; {hint}")


def listed(names: Sequence[str]) -> str:
    return (", ".join(names[:_MOST_LISTED]) or "none") + (", ..." if len(names) > _MOST_LISTED else "")
