"""The tab key: commands, options, states, and the names that the database has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.cli.calling import call, called
from tests.cli.scenes import URL, a_replica
from tests.store.steps import enqueue, opened, scheduled

SHELLS = ("bash", "zsh", "fish")


def asked(shell: str, line: str) -> dict[str, str]:
    """What the shell's own script sets before it asks."""
    words = line.split(" ")
    if shell == "bash":
        return {"_ROTA_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    given = {"_ROTA_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": line}
    return given | ({"_TYPER_COMPLETE_FISH_ACTION": "get-args"} if shell == "fish" else {})


@pytest.mark.parametrize("shell", SHELLS)
def test_commands_options_and_states_are_offered(shell: str) -> None:
    assert {"run", "runs"} <= set(words(call(**asked(shell, "rota ru")).out))
    assert {"list", "show", "follow", "retry", "cancel"} <= set(words(call(**asked(shell, "rota runs ")).out))
    assert "--longest" in words(call(**asked(shell, "rota runs list --lo")).out)
    assert {"succeeded", "skipped"} <= set(words(call(**asked(shell, "rota runs list --state s")).out))


def words(out: str) -> list[str]:
    """The offers, out of what each shell wants around them."""
    for character in "\"'():\t\n":
        out = out.replace(character, " ")
    return out.split()


async def test_names_of_the_database_are_offered(url: str) -> None:
    async with opened(url) as store:
        await scheduled(store, name="nightly")
        await enqueue(store, job_id="resize")
        line = (await called(**asked("bash", "rota runs list --job "), ROTA_URL=url)).out.split()
        assert line == ["resize", "work"]
        assert (await called(**asked("bash", "rota runs list --job r"), ROTA_URL=url)).out.split() == ["resize"]
        schedules = await called(**asked("bash", "rota runs list --schedule "), ROTA_URL=url)
        assert schedules.out.split() == ["work/nightly"]
        assert (await called(**asked("bash", "rota runs show "), ROTA_URL=url)).out.split() == ["1"]


async def test_names_are_offered_for_every_noun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    offers = {
        "rota leader show ": ["exchange", "singleton:importer"],
        "rota leader step-down exchange --to ": ["web-1"],
        "rota singletons reset ": ["importer"],
        "rota locks release ": ["ledger"],
        "rota schedules list --job ": ["resize"],
        "rota schedules pause --job ": ["resize"],
    }
    async with AsyncExitStack() as stack:
        await a_replica(stack)
        found = {line: (await called(**asked("bash", line), ROTA_URL=URL)).out.split() for line in offers}
        await called("locks", "release", "ledger", "--yes", url=URL)  # ends the run that holds it
    assert found == offers


async def test_the_database_is_the_one_that_the_line_names(url: str) -> None:
    async with opened(url) as store:
        await scheduled(store, name="nightly")
        await scheduled(store, name="a\nb\x1b")  # no shell could take it
        for line in (f"rota schedules show --url {url} ", f"rota runs list --url {url} --schedule "):
            assert (await called(**asked("bash", line), ROTA_URL="bad:")).out.split() == ["work/nightly"]


@pytest.mark.parametrize(
    "url", ["sqlite:///missing/rota.db", "sqlite:///rota.db", "postgresql://127.0.0.1:1/x", "bad:"]
)
def test_where_nobody_answers_nothing_is_offered_and_nothing_is_made(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = call(**asked("bash", "rota runs list --job "), ROTA_URL=url)
    assert (said.code, said.out.strip(), said.err) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_the_script_for_the_shell_can_be_shown_and_works() -> None:
    environ = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    bash = shutil.which("bash")
    assert bash is not None
    lines = (
        'eval "$(rota --show-completion)"; COMP_WORDS=(rota mig); COMP_CWORD=1; _rota_completion rota; echo $COMPREPLY'
    )
    done = subprocess.run([bash, "-c", f"{lines}; true"], env=environ, text=True, capture_output=True, check=False)
    assert done.stdout == "migrate\n", done.stderr
