"""Named statements on one connection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias, TypeVar

import apsw
import msgspec

from rota.stores.queries import load_queries
from rota.stores.sqlite.times import from_text

QUERIES = load_queries("rota.stores.sqlite")

_NOW = "select now, real from moment"

Values: TypeAlias = Sequence[Any] | Mapping[str, Any]
Record: TypeAlias = tuple[Any, ...]
R = TypeVar("R", bound=msgspec.Struct)
_TOGETHER = (100, 10, 1)
"""Rows of one statement: few sizes, so that each is planned once."""


class Session:
    """What a transition sees of the database."""

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection

    def execute(self, sql: str, values: Values = ()) -> list[Record]:
        return self.connection.execute(sql, values).fetchall()

    def all(self, name: str, values: Values = ()) -> list[Record]:
        return self.execute(QUERIES[name], values)

    def each(self, name: str, rows: Iterable[Values]) -> list[Record]:
        """The statement once for every row; all that it returned."""
        return self.connection.executemany(QUERIES[name], rows).fetchall()

    def insert(self, name: str, rows: Sequence[Sequence[Any]]) -> int:
        """The statement with many rows of values at a time; how many rows came of it."""
        made = done = 0
        for size in _TOGETHER:
            while len(rows) - done >= size:
                some = rows[done : done + size]
                places = ", ".join([f"({', '.join('?' * len(some[0]))})"] * size)
                made += self.changed(QUERIES[name].replace("/* rows */", places), list(chain.from_iterable(some)))
                done += size
        return made

    def changed(self, sql: str, values: Values = ()) -> int:
        """How many rows the statement wrote."""
        self.connection.execute(sql, values)
        return self.connection.changes()

    def first(self, sql: str, values: Values = ()) -> Record | None:
        """The first row, without the step that would find the end."""
        row: Record | None = self.connection.execute(sql, values).fetchone()
        return row

    def only(self, name: str, values: Values = ()) -> Record:
        """The row of a statement that always has one."""
        found = self.first(QUERIES[name], values)
        assert found is not None
        return found

    def value(self, name: str, values: Values = ()) -> Any:
        row = self.first(QUERIES[name], values)
        return row[0] if row else None

    def structs(self, kind: type[R], name: str, values: Values = (), sql: str | None = None) -> list[R]:
        """Rows as `kind`, by the names of the columns."""
        cursor = self.connection.execute(sql or QUERIES[name], values)
        try:
            names = [column[0] for column in cursor.get_description()]
        except apsw.ExecutionCompleteError:
            return []
        readers = [(column, _READERS[kind].get(column)) for column in names]
        return [
            kind(**{c: read(v) if read and v is not None else v for (c, read), v in zip(readers, row, strict=True)})
            for row in cursor
        ]  # fmt: skip

    def now(self) -> str:
        """The store's clock, read once per transition."""
        return self.clocks()[0]

    def clocks(self) -> tuple[str, str]:
        """The store's clock, and the real one: moving the first must not kill anybody."""
        found = self.first(_NOW)
        assert found is not None
        now, real = found
        return now, real

    def new_ids(self, count: int) -> list[int]:
        """Ids that no run has had. Its first statement writes, so that a deferred transaction gets its lock here."""
        last: int = self.value("enqueue.ids", (count,))
        return list(range(last - count + 1, last + 1))


class _Readers(dict[type[msgspec.Struct], dict[str, Callable[[Any], Any]]]):
    """For each kind of row, the columns that SQLite keeps as something else."""

    def __missing__(self, kind: type[msgspec.Struct]) -> dict[str, Callable[[Any], Any]]:
        readers: dict[str, Callable[[Any], Any]] = {}
        for field in msgspec.structs.fields(kind):
            if "datetime" in str(field.type):
                readers[field.name] = from_text
            elif field.type is bool:
                readers[field.name] = bool
        self[kind] = readers
        return readers


_READERS = _Readers()
_ROWS = msgspec.json.Decoder(list[Record])


def encode(value: Any) -> str:
    """A list as the one JSON parameter that `json_each` takes apart."""
    return msgspec.json.encode(value).decode()


def decode(text: str) -> Any:
    """What `json_group_array` put together."""
    return msgspec.json.decode(text)


def decode_rows(text: str) -> list[Record]:
    """Rows that `json_group_array` put together; as tuples, which are cheaper than lists."""
    return _ROWS.decode(text)
