"""The examples, as their users have them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def imported(file: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A fresh copy of the module, whose Rota uses this database."""
    monkeypatch.setenv("ROTA_URL", url)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
