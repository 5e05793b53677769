"""rota in a Django project: `INSTALLED_APPS = [..., "rota.integrations.django"]`, then `manage.py rota`.

`app` is the project's Rota. It is made from `settings.ROTA` and `settings.DATABASES` when it is first asked for. The
modules named `jobs` of the installed apps are imported at start, so that what they declare is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rota.integrations.django.project import app as app

__all__ = ["app"]


def __getattr__(name: str) -> Any:
    # Not at import: Django imports this package before its settings can be relied upon.
    if name == "app":
        from rota.integrations.django.project import app

        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
