"""Find the Rota that `MODULE:APP` names."""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import replace
from typing import Any

from rota import Rota
from rota.errors import BadInput


def load_app(target: str, **settings: Any) -> Rota:
    """Import the module, from the current folder too, and take the app out of it; with these settings, if not None."""
    module_name, colon, attribute = target.partition(":")
    if not module_name or module_name.startswith(".") or (colon and not attribute):
        raise BadInput(f"{target!r} is not of the form MODULE:APP, e.g. billing.jobs:app")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise BadInput(f"{module_name!r} imports {error.name!r}, which is not installed here") from error
        raise BadInput(f"there is no module {module_name!r} here ({os.getcwd()}) or on PYTHONPATH") from None
    found = getattr(module, attribute or "app", None)
    if not isinstance(found, Rota):
        apps = [name for name, value in vars(module).items() if isinstance(value, Rota)]
        hint = f"; it has: {', '.join(f'{module_name}:{name}' for name in apps)}" if apps else ""
        raise BadInput(f"{module_name!r} has no Rota named {attribute or 'app'!r}{hint}")
    given = {name: value for name, value in settings.items() if value is not None}
    if given:
        found.settings = replace(found.settings, **given)
    return found
