"""docs/commands.md: every command with what it prints. A new command is added to `SCRIPT`, then `make transcript`.

The commands really run, one after the other, on one SQLite file whose clock stands still; so most of what they print is
the same every time. What is left, the machine, its processes and its real clock, is in `MASKS`.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.cli.calling import called
from tests.cli.scenes import a_history, a_replica, a_service

OPENING = """\
# Commands

Every command with what it prints. This page is made by running them: `make transcript`.

All that look or act take `--url`, else they use `ROTA_URL`, else the file `rota.db`. Those that look take `--json`, for
scripts. What asks before it acts takes `--yes`. Errors are one sentence on stderr; [exit codes](operations.md#run-it)
are the same everywhere. `rota COMMAND --help` has all options. `rota --install-completion` teaches your shell the tab
key: commands, options, and the names of jobs, schedules and runs.
"""


@dataclass(frozen=True)
class Part:
    """A heading, and what is set up before what follows."""

    title: str
    prose: str = ""
    scene: Callable[[AsyncExitStack], Awaitable[None]] | None = None


@dataclass(frozen=True)
class Shown:
    """A command line to run. `| head -N` is understood."""

    line: str
    prose: str = ""
    exit: int = 0


SCRIPT: list[Part | Shown] = [
    Part("Help"),
    Shown("rota", exit=2),
    Shown("rota --version"),
    Part("Tables"),
    Shown("rota migrate --check", "Whether there is something to do, for scripts:", exit=1),
    Shown("rota migrate"),
    Shown("rota sql --store postgres | head -13", "The same as [plain SQL](sql.md#migrations-as-sql), for a DBA:"),
    Part("Run", "Until SIGTERM or Ctrl-C.", a_service),
    Shown("rota run service:app --name web-0"),
    Part("Runs", "Times are UTC; of today's, the day is left out.", a_history),
    Shown("rota runs list"),
    Shown("rota runs list --state failed --since 1d"),
    Shown("rota runs list --longest --limit 2", "What is slow:"),
    Shown("rota runs show 1"),
    Shown("rota runs show 2"),
    Shown("rota runs show 4", "A tick that did not run says why:"),
    Shown("rota runs show 3 --json | head -8"),
    Shown("rota runs follow 2", "One run, until it ends; how it ended is the exit code:", exit=1),
    Shown("rota runs follow --for 1", "All runs, as they change:"),
    Shown("rota runs retry 1 2", exit=1),
    Shown("rota runs cancel --job mail --yes"),
    Part("Schedules", "Named `JOB`, `JOB/NAME` or by id. Times are those of the schedule's zone."),
    Shown("rota schedules list"),
    Shown("rota schedules show collect"),
    Shown(
        'rota schedules next --cron "30 2 * * *" --timezone Europe/Paris --from 2031-03-29 --count 3',
        "What an expression means, before it is anywhere; and what the clocks do to it:",
    ),
    Shown("rota schedules edit collect --cron '*/10 * * * *' --timezone Europe/Paris --overlap queue"),
    Shown("rota schedules pause collect"),
    Shown("rota schedules resume collect"),
    Shown("rota schedules trigger collect"),
    Shown("rota schedules backfill collect --from 2031-05-14T12:00 --until 2031-05-14T13:00 --yes"),
    Shown("rota schedules export", "As a file, to be kept beside the code:"),
    Shown("rota schedules diff schedules.toml", "And from a file into the table, after a look at the difference:", 3),
    Shown("rota schedules apply schedules.toml --yes"),
    Shown("rota import crontab old.crontab --timezone Europe/Paris", "[Moving in from cron](crontab.md):"),
    Part("Doctor"),
    Shown("rota doctor"),
    Part("Replicas", scene=a_replica),
    Shown("rota replicas"),
    Part("Leaders"),
    Shown("rota leader list"),
    Shown("rota leader show exchange"),
    Shown("rota leader step-down exchange"),
    Part("Singletons"),
    Shown("rota singletons list"),
    Shown("rota singletons show importer"),
    Shown("rota singletons move importer"),
    Shown("rota singletons reset importer --yes"),
    Part("Locks"),
    Shown("rota locks list"),
    Shown("rota locks who ledger"),
    Shown("rota locks release ledger --yes"),
    Part("Try it"),
    Shown("rota demo --help"),
    Shown("rota soak --help"),
]

MASKS: list[tuple[str, str]] = [
    (re.escape(socket.gethostname()) + r"([:-])\d+", r"box\g<1>4711"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", "2031-05-14 12:00:00,000"),  # the log's clock is the real one,
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "2031-05-14 14:01:00 UTC"),  # and so is that of locks
    (r"\b\d+(\.\d)?s ago", "1s ago"),
    (r"Python \d+\.\d+\.\d+", "Python 3.13.1"),
    (r"SQLite \d+\.\d+\.\d+", "SQLite 3.54.1"),
    (r"[\d.]+ GB free", "41.5 GB free"),
    (r"(?m)^(version +)\d$", r"\g<1>4"),  # the replica of `rota run` may have looked at it, or not
    (r"202\d-\d\d-\d\d 02:30 \w+", "2031-05-15 02:30 CEST"),  # no store, so no clock that stands still
]


async def performed(folder: Path) -> str:
    """The page, made anew in this empty folder, which must be the current one."""
    text = OPENING
    async with AsyncExitStack() as stack:
        for item in SCRIPT:
            if isinstance(item, Part):
                if item.scene is not None:
                    await item.scene(stack)
                text += f"\n## {item.title}\n" + (f"\n{item.prose}\n" if item.prose else "")
            else:
                text += await _shown(item, folder)
    return text


async def _shown(item: Shown, folder: Path) -> str:
    line, _, lines = item.line.partition(" | head -")
    arguments = shlex.split(line)[1:]
    if arguments[:1] == ["run"]:
        code, output = _run(arguments)
    else:
        said = await called(*arguments)
        code, output = said.code, said.out + said.err
    assert code == item.exit, f"{item.line} exits with {code}: {output}"
    kept = masked(output, folder).rstrip().splitlines()[: int(lines) if lines else None]
    block = "\n".join([f"$ {item.line}", *(text.rstrip() for text in kept)])
    prose = f"\n{item.prose}\n" if item.prose else ""
    return f"{prose}\n```console\n{block}\n```\n" + (f"\nExit code {code}.\n" if code else "")


def _run(arguments: list[str]) -> tuple[int, str]:
    """A replica, told to stop as soon as it has joined."""
    process = subprocess.Popen(
        [sys.executable, "-m", "rota", *arguments], stderr=subprocess.PIPE, text=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("ROTA_")},
    )  # fmt: skip
    output = ""
    assert process.stderr is not None
    with process:
        for line in process.stderr:
            output += line
            if "joined" in line:
                process.send_signal(signal.SIGTERM)
    return process.returncode, output


def masked(text: str, folder: Path) -> str:
    text = text.replace(str(folder), "/srv/shop")
    for pattern, instead in MASKS:

        def put(match: re.Match[str], instead: str = instead) -> str:
            """In a column that has others behind it, as wide as what it hides."""
            shown, behind = match.expand(instead), match.string[match.end() : match.end() + 2]
            return shown.ljust(len(match[0])) if behind == "  " else shown

        text = re.sub(pattern, put, text)
    return text
