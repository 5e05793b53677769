"""The module that a crontab becomes: one job for every line, for its owner to read and to edit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from rota.crontab import Crontab, Job

_HEAD = '''"""Jobs taken over from a crontab, yours to edit. `rota run MODULE:app` runs them, on any number of machines.

Unlike cron's: a tick that comes while the last one still runs is skipped (overlap="queue" lets it wait), the newest
tick missed in a downtime runs afterwards (catch_up="skip" leaves it), and an exit code other than 0 makes a failed run
(retry=3 tries again).
"""

import os
import subprocess
from pathlib import Path

from rota import Rota

app = Rota()


def shell(command: str, stdin: str = "", by: str = "/bin/sh", environment: dict[str, str] | None = None) -> None:
    """Run a command as cron does: by a shell, in the home folder. Its output goes where the replica's goes."""
    variables = os.environ | (environment or {})
    home = variables.get("HOME", Path.home())
    subprocess.run([by, "-c", command], input=stdin, text=True, check=True, cwd=home, env=variables)
'''


def service_file(read: Crontab, notes: Sequence[str]) -> str:
    """Its text. Lines that cannot be taken over are in it as comments, so that nothing is lost."""
    parts = [_HEAD]
    named = _environments(read.jobs)
    if notes:
        parts.append("\n\n" + "".join(f"# {note}\n" for note in notes))
    for environment, name in named.items():
        inside = "".join(f"    {_text(key)}: {_text(value)},\n" for key, value in environment)
        parts.append(f"\n{name} = {{\n{inside}}}\n")
    for job in read.jobs:
        parts.append(f"\n\n{_job(job, named)}" if job.problem is None else f"\n\n{_left_out(job)}")
    return "".join(parts)


_Environment = tuple[tuple[str, str], ...]


def _environments(jobs: Sequence[Job]) -> dict[_Environment, str]:
    """A name for each set of variables that some job is to have."""
    found: dict[_Environment, str] = {}
    for job in jobs:
        key = _key(job.environment)
        if key and key not in found and job.problem is None:
            found[key] = "ENVIRONMENT" if not found else f"ENVIRONMENT_{len(found) + 1}"
    return found


def _key(environment: Mapping[str, str]) -> _Environment:
    return tuple(environment.items())


def _job(job: Job, named: dict[_Environment, str]) -> str:
    arguments = [_text(job.command)]
    if job.stdin:
        arguments.append(f"stdin={_text(job.stdin)}")
    if job.shell != "/bin/sh":
        arguments.append(f"by={_text(job.shell)}")
    if environment := named.get(_key(job.environment)):
        arguments.append(f"environment={environment}")
    remarks = "".join(f"# {remark}\n" for remark in job.remarks)
    return (
        f"# line {job.line}: {_printable(job.text)}\n{remarks}"
        f"@app.cron({_text(job.expression)}, timezone={_text(job.timezone)})\n"
        f"def {job.name}() -> None:\n"
        f"    shell({', '.join(arguments)})\n"
    )


def _left_out(job: Job) -> str:
    return f"# line {job.line} could not be taken over: {_printable(job.problem or '')}\n# {_printable(job.text)}\n"


def _text(value: str) -> str:
    """A Python string: what JSON escapes Python reads alike."""
    return json.dumps(value, ensure_ascii=False)


def _printable(text: str) -> str:
    """What stays within its comment, whatever it holds."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
