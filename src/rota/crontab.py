"""Crontab: the lines of cron's own file, as crontab(5) of Debian and of cronie describe them.

A user's crontab has five fields (or `@daily` and the like) and a command; the system's (`/etc/crontab`, `/etc/cron.d`)
has the user's name in between. `NAME=value` lines hold for what comes below them; `CRON_TZ`, else `TZ`, is the zone. In
a command `%` is the end of the line: what comes after the first one is the command's input; `\\%` is a plain `%`.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from keyword import iskeyword
from pathlib import Path

from rota.errors import BadInput
from rota.timetable import timetable, zone_rules

_SETTING = re.compile(r"""(["']?)([A-Za-z_]\w*)\1\s*=\s*(.*)""")
_PERCENT = re.compile(r"(?<!\\)%")
_NOT_FOR_COMMANDS = {
    "CRON_TZ": None,
    "SHELL": None,
    "MAILTO": "no mail is sent: a failed run is in the table, and what it prints goes where the replica's goes",
    "MAILFROM": None,
    "CONTENT_TYPE": None,
    "CONTENT_TRANSFER_ENCODING": None,
    "RANDOM_DELAY": "there is no random delay",
    "START_HOURS_RANGE": "START_HOURS_RANGE is anacron's, and has no meaning here",
}
_WRAPPERS = {"sudo", "nice", "ionice", "exec", "time", "nohup", "env", "command", "chronic", "setsid", "flock"}
_TESTS = {"test", "[", "[[", "cd", "export", ".", "source", "umask", "sleep", "set"}
_INTERPRETERS = re.compile(r"(?:ba|da|z|k)?sh|python[\d.]*|perl|ruby|node|php[\d.]*")

RESERVED = ("app", "os", "subprocess", "Path", "Rota", "shell", "environment")
"""Names that a module made of these jobs uses itself."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A line that is a job."""

    line: int
    text: str
    expression: str
    timezone: str
    user: str | None
    command: str
    stdin: str
    shell: str
    environment: Mapping[str, str]
    name: str
    problem: str | None = None
    """Why rota cannot take it over."""
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Crontab:
    """A file's jobs, in its order, and what is to be said about the file."""

    jobs: tuple[Job, ...]
    remarks: tuple[str, ...]


@dataclass(kw_only=True)
class _Reader:
    system: bool
    timezone: str
    settings: dict[str, str] = field(default_factory=dict)
    jobs: list[Job] = field(default_factory=list)
    remarks: dict[str, None] = field(default_factory=dict)
    names: set[str] = field(default_factory=lambda: set(RESERVED))

    def line(self, number: int, text: str) -> None:
        text = text.strip()
        if not text or text.startswith("#"):
            return
        if setting := _SETTING.fullmatch(text):
            name, value = setting[2], setting[3].strip()
            if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
                value = value[1:-1]
            self.settings[name] = value
            if remark := _NOT_FOR_COMMANDS.get(name):
                self.remarks[f"line {number}, {name}: {remark}"] = None
            return
        self.jobs.append(self._job(number, text))

    def _job(self, number: int, text: str) -> Job:
        expression, user, rest = _split(text, self.system)
        command, stdin = _input(rest)
        timezone = (self.settings.get("CRON_TZ") or self.settings.get("TZ") or self.timezone).removeprefix(":")
        environment = {k: v for k, v in self.settings.items() if k not in _NOT_FOR_COMMANDS}
        name = _free(name_of(command), self.names)
        problem = _problem(expression, timezone, command)
        if problem is None:
            self.names.add(name)
        return Job(
            line=number, text=text, expression=expression, timezone=timezone, user=user, command=command, stdin=stdin,
            shell=self.settings.get("SHELL", "/bin/sh"), environment=environment, name=name, problem=problem,
            remarks=() if problem else _remarks(expression, user),
        )  # fmt: skip


def read_crontab(text: str, *, system: bool, timezone: str) -> Crontab:
    """The jobs of a file, with what is wrong with each. `timezone` holds where the file sets none."""
    zone_rules(timezone)
    reader = _Reader(system=system, timezone=timezone)
    for number, line in enumerate(text.splitlines(), 1):
        reader.line(number, line)
    return Crontab(jobs=tuple(reader.jobs), remarks=tuple(reader.remarks))


def _split(text: str, system: bool) -> tuple[str, str | None, str]:
    """Expression, user, and what follows; an incomplete line has an empty command."""
    fields = 1 if text.startswith("@") else 5
    parts = text.split(None, fields + system)
    expression, rest = " ".join(parts[:fields]), parts[fields:]
    user = rest.pop(0) if system and rest else None
    return expression, user, rest[0] if rest else ""


def _input(rest: str) -> tuple[str, str]:
    command, *lines = _PERCENT.split(rest)
    return command.replace("\\%", "%").strip(), "".join(f"{line}\n" for line in lines).replace("\\%", "%")


def _problem(expression: str, timezone: str, command: str) -> str | None:
    try:
        timetable(expression, timezone)
    except BadInput as error:
        return str(error)
    return None if command else "there is no command"


def _remarks(expression: str, user: str | None) -> tuple[str, ...]:
    remarks = []
    fields = expression.split()
    if len(fields) == 5:
        day, weekday = fields[2], fields[4]
        if not (day.startswith("*") or weekday.startswith("*")):
            remarks.append(f"day of month {day} or day of week {weekday}: either is enough, as in cron")
        elif "*" not in (day, weekday):
            remarks.append(f"day of month {day} and day of week {weekday}: both must match, as in Debian's cron")
    if user is not None:
        remarks.append(f"cron ran it as {user}; it will run as whoever runs the replica")
    return tuple(remarks)


# -- names -----------------------------------------------------------------------------------------


def name_of(command: str) -> str:
    """A Python name for a command: that of the program, or of the script that an interpreter is given."""
    words = _words(command)
    while words and (_stem(words[0]) in _WRAPPERS or words[0].startswith("-") or "=" in words[0]):
        skipped = _stem(words.pop(0))
        if skipped == "flock":  # its options, then the lock's file
            words = [*_after_options(words)][1:]
        elif skipped in ("-n", "-c", "-u") and words:
            words.pop(0)
    program = _stem(words[0]) if words else "job"
    if _INTERPRETERS.fullmatch(program):
        program = _script(words[1:]) or program
    name = re.sub(r"\W+", "_", program, flags=re.ASCII).strip("_").lower() or "job"
    return f"job_{name}" if name[0].isdigit() or iskeyword(name) else name


def _words(command: str) -> list[str]:
    """Of the part of a line that does the work: `cd /srv && test -x a && a --now` is about `a --now`."""
    try:
        lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        tokens = list(lexer)
    except ValueError:
        tokens = command.split()
    parts: list[list[str]] = [[]]
    for token in tokens:
        if token in ("&&", "||", ";", "|", "(", ")", "{", "}", "&"):
            parts.append([])
        else:
            parts[-1].append(token)
    working = [part for part in parts if part and part[0] not in _TESTS]
    return list(working[0] if working else next((part for part in parts if part), []))


def _after_options(words: list[str]) -> Iterable[str]:
    started = False
    for word in words:
        started = started or not word.startswith("-")
        if started:
            yield word


def _script(words: list[str]) -> str | None:
    """What an interpreter runs: `-m package.module`, or the first that is no option."""
    if words[:1] == ["-m"] and len(words) > 1:
        return words[1].replace(".", "_")
    if words[:1] and words[0] in ("-c", "-e", "-lc"):
        return _stem(words[1].split()[0]) if len(words) > 1 and words[1].split() else None
    return next((_stem(word) for word in _after_options(words)), None)


def _stem(word: str) -> str:
    name = word.rstrip("/").rsplit("/", 1)[-1]
    return name.rsplit(".", 1)[0] or name if "." in name.lstrip(".") and not name[-1].isdigit() else name


def _free(name: str, taken: set[str]) -> str:
    number, free = 2, name
    while free in taken:
        free, number = f"{name}_{number}", number + 1
    return free


# -- the machine's zone ----------------------------------------------------------------------------


def machine_timezone(environment: Mapping[str, str] = os.environ, etc: Path = Path("/etc")) -> str | None:
    """The zone in which this machine's cron runs, by its IANA name; None when that cannot be told."""
    for candidate in _candidates(environment, etc):
        try:
            return zone_rules(candidate).key
        except BadInput:
            continue
    return None


def _candidates(environment: Mapping[str, str], etc: Path) -> Iterable[str]:
    if name := environment.get("TZ", "").removeprefix(":"):
        yield name
    link = os.path.realpath(etc / "localtime")
    if "zoneinfo/" in link:
        yield link.rsplit("zoneinfo/", 1)[1].removeprefix("posix/")
    if (etc / "timezone").is_file():
        yield (etc / "timezone").read_text().strip()
