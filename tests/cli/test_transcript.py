"""docs/commands.md is what the commands print; `ROTA_TEST_WRITE_TRANSCRIPT=1` (`make transcript`) writes it anew."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import typer

from rota.cli.main import app
from tests.cli.transcript import SCRIPT, Shown, performed

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"


def commands(group: typer.Typer, path: tuple[str, ...] = ("rota",)) -> set[tuple[str, ...]]:
    """Every command that there is, as it is typed."""
    found = {
        (*path, info.name or str(getattr(info.callback, "__name__", "")).replace("_", "-"))
        for info in group.registered_commands
        if not info.hidden
    }
    for nested in group.registered_groups:
        assert nested.typer_instance is not None
        found |= commands(nested.typer_instance, (*path, str(nested.name)))
    return found


def test_every_command_is_in_the_transcript() -> None:
    shown = [tuple(item.line.split()) for item in SCRIPT if isinstance(item, Shown)]
    missing = [command for command in commands(app) if not any(line[: len(command)] == command for line in shown)]
    assert missing == [], "add them to SCRIPT in tests/cli/transcript.py, then `make transcript`"


async def test_the_transcript_is_what_the_commands_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("ROTA_") and not name.startswith("ROTA_TEST_")]:
        monkeypatch.delenv(name)
    page = await performed(tmp_path)
    if os.environ.get("ROTA_TEST_WRITE_TRANSCRIPT"):
        PAGE.write_text(page)
    # A mask may be wider or narrower than what it hides, and moves the columns behind it.
    assert _words(PAGE.read_text()) == _words(page), "if that is right: `make transcript`"


def _words(text: str) -> list[str]:
    return [re.sub(r" +", " ", line) for line in text.splitlines()]
