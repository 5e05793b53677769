"""Baseline: schedules as a file has them, `schedules.toml`.

    [defaults]                      # for every schedule below that does not say otherwise
    timezone = "Europe/Paris"

    [[schedule]]
    job = "close_books"             # the only key that is always needed; name is "default"
    cron = "0 3 * * *"
    parameters = { region = "eu" }

What a file does not say about a schedule is left as it is, and takes rota's default where the schedule is new. Reading
is strict: a key that is not known, a value that cannot be, the same schedule twice are refused, with file and line,
before anything is compared.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

import msgspec

from rota.contract.row import Row
from rota.errors import BadInput
from rota.moment import read_duration, show_duration
from rota.schedule import declaration
from rota.store import ScheduleRow

_KINDS: dict[str, tuple[type, ...]] = {
    "job": (str,),
    "name": (str,),
    "cron": (str,),
    "timezone": (str,),
    "enabled": (bool,),
    "priority": (int,),
    "concurrency_limit": (int,),
    "lock_timeout_seconds": (int,),
    "parameters": (dict, str),
    "overlap": (str,),
    "catch_up": (str,),
    "catch_up_limit": (int,),
    "skip_if_older_than": (int, str),
}
_SPOKEN = {str: "a string", bool: "true or false", int: "a whole number", dict: "a table"}
_OWN = ("job", "name")
_HEADER = re.compile(r"^\s*\[\[\s*schedule\s*\]\]", re.MULTILINE)
_DEFAULTS = re.compile(r"^\s*\[\s*defaults\s*\]", re.MULTILINE)
_BARE = re.compile(r"[A-Za-z0-9_-]+")


class Entry(Row, frozen=True, kw_only=True):
    """One schedule of a file: the fields that it names, checked, as the columns have them."""

    job_id: str
    name: str
    fields: dict[str, Any]
    where: str
    """File and line."""

    @property
    def label(self) -> str:
        return f"{self.job_id}/{self.name}"


def read_baseline(text: str, source: str) -> list[Entry]:
    """The schedules of a file, in its order; `BadInput` names the file, the line and what to do."""
    document = _parse(text, source)
    if unknown := sorted(document.keys() - {"defaults", "schedule"}):
        raise BadInput(f"{source}: unknown key {unknown[0]!r}; a file has [defaults] and [[schedule]] only")
    places = _Places(text, source, document)
    defaults = document.get("defaults", {})
    if not isinstance(defaults, dict):
        raise BadInput(f"{source}: defaults must be a table: [defaults]")
    if own := sorted(defaults.keys() & set(_OWN)):
        raise BadInput(f"{places.of_defaults(own[0])}: {own[0]!r} belongs to each [[schedule]], not to [defaults]")
    read_fields(defaults, places.of_defaults)
    entries: dict[tuple[str, str], Entry] = {}
    tables = document.get("schedule", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise BadInput(f"{source}: schedules must be an array of tables, each opened by [[schedule]]")
    for number, table in enumerate(tables):
        entry = _entry(defaults, table, places, number)
        if (twin := entries.get((entry.job_id, entry.name))) is not None:
            raise BadInput(f"{entry.where}: {entry.label} is there twice; first at {twin.where}")
        entries[entry.job_id, entry.name] = entry
    return list(entries.values())


def _parse(text: str, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{source}: not TOML: {error}") from None


def _entry(defaults: dict[str, Any], table: dict[str, Any], places: _Places, number: int) -> Entry:
    def where(key: str | None) -> str:
        return places.of_schedule(number, key)

    fields = read_fields(defaults | table, where)
    job, name = fields.pop("job", None), fields.pop("name", "default")
    if not job:
        raise BadInput(f'{where(None)}: this schedule says no job; add job = "..."')
    return Entry(job_id=job, name=name, fields=fields, where=where(None))


def read_fields(table: dict[str, Any], where: Any) -> dict[str, Any]:
    """The keys of one schedule as columns, checked; `where(key)` names the place."""
    for key, value in table.items():
        if key not in _KINDS:
            near = get_close_matches(key, _KINDS, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(_KINDS)}"
            raise BadInput(f"{where(key)}: unknown key {key!r}; {hint}")
        if type(value) not in _KINDS[key]:
            kinds = " or ".join(_SPOKEN[kind] for kind in _KINDS[key])
            raise BadInput(f"{where(key)}: {key} must be {kinds}, not {value!r}")
    for key in _OWN:
        if key in table:
            try:
                declaration(**{"job_id": "job", "cron": "@hourly"} | {"job_id" if key == "job" else key: table[key]})
            except BadInput as error:
                raise BadInput(f"{where(key)}: {error}") from None
    fields = {key: table[key] for key in _KINDS if key in table and key not in _OWN}
    # One at a time, so that the place of what is wrong can be named; the zone is looked up on its own.
    for key, value in fields.items():
        try:
            fields[key] = _column(key, value)
        except BadInput as error:
            raise BadInput(f"{where(key)}: {error}") from None
    if "skip_if_older_than" in fields:
        fields["skip_if_older_than_seconds"] = fields.pop("skip_if_older_than")
    return {key: table[key] for key in _OWN if key in table} | fields


def _column(key: str, value: Any) -> Any:
    if key == "skip_if_older_than":
        seconds = read_duration(value) if isinstance(value, str) else float(value)
        return declaration("job", "@hourly", skip_if_older_than=seconds).skip_if_older_than_seconds
    if key == "cron":
        return declaration("job", value).cron
    return getattr(declaration("job", "@hourly", **{key: value}), key)


class _Places:
    """Lines by number, found by their headers: the parser does not tell them. Unknown ones are left out."""

    def __init__(self, text: str, source: str, document: dict[str, Any]) -> None:
        self._source, self._lines = source, text.splitlines()
        tables = document.get("schedule", [])
        heads = [text.count("\n", 0, found.end()) for found in _HEADER.finditer(text)]
        self._heads = heads if isinstance(tables, list) and len(heads) == len(tables) else []
        defaults = _DEFAULTS.search(text)
        self._defaults = text.count("\n", 0, defaults.end()) if defaults else None

    def of_schedule(self, number: int, key: str | None) -> str:
        if not self._heads:
            return f"{self._source}: schedule {number + 1}"
        return self._within(self._heads[number], key) or self.of_defaults(key)

    def of_defaults(self, key: str | None) -> str:
        return self._within(self._defaults, key) or self._source

    def _within(self, head: int | None, key: str | None) -> str | None:
        """The line of the key in the table that begins at this line."""
        if head is None:
            return None
        if key is None:
            return f"{self._source}:{head + 1}"
        for number in range(head + 1, len(self._lines)):
            line = self._lines[number].lstrip()
            if line.startswith("[") and not line.startswith("[schedule."):
                return None
            if re.match(rf"[\"']?{re.escape(key)}[\"']?\s*[.=]", line) or line.startswith(f"[schedule.{key}]"):
                return f"{self._source}:{number + 1}"
        return None


# -- writing ---------------------------------------------------------------------------------------

_PLAIN = declaration("job", "@hourly")


def write_baseline(rows: Iterable[ScheduleRow]) -> str:
    """The file of these schedules. Whoever is not paused is not said to be enabled: applying it resumes nobody."""
    usual = schedule_toml(_PLAIN, leave=("enabled", "cron"))
    parts = [f"[defaults]\n{usual}"]
    for row in rows:
        same = {field for field in msgspec.structs.asdict(_PLAIN) if getattr(row, field) == getattr(_PLAIN, field)}
        same |= {"timezone"} if row.timezone == "UTC" else set()
        own = schedule_toml(row, leave=(*(same - {"cron"}), *(() if not row.enabled else ("enabled",))))
        named = f"name = {quoted(row.name)}\n" if row.name != "default" else ""
        parts.append(f"[[schedule]]\njob = {quoted(row.job_id)}\n{named}{own}")
    return "\n".join(parts)


def schedule_toml(row: Any, leave: tuple[str, ...] = ()) -> str:
    """The fields of a schedule, one line each."""
    lines = []
    for key in _KINDS:
        column = "skip_if_older_than_seconds" if key == "skip_if_older_than" else key
        if key in _OWN or column in leave:
            continue
        value = getattr(row, column)
        if key == "parameters":
            value = msgspec.json.decode(value)
        elif key == "timezone":
            value = value or "UTC"
        elif key == "skip_if_older_than":
            value = show_duration(value)
        lines.append(f"{key} = {_value(value)}\n")
    return "".join(lines)


def quoted(text: str) -> str:
    """A basic string. What JSON escapes TOML reads alike; DEL it wants escaped too."""
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, dict):
        if _has_null(value):  # TOML has no null: then as JSON, in a string
            return quoted(msgspec.json.encode(value).decode())
        inside = ", ".join(f"{k if _BARE.fullmatch(k) else quoted(k)} = {_value(v)}" for k, v in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return quoted(value) if isinstance(value, str) else msgspec.json.encode(value).decode()


def _has_null(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(map(_has_null, value.values() if isinstance(value, dict) else value))
    return value is None
