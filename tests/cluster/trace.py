"""A file in which processes say what they do, a line each, in the order in which it happened."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def write(trace: int, line: Mapping[str, object]) -> None:
    """It begins with an end of line: what is written after half a line of a process that was killed is a line still."""
    os.write(trace, b"\n" + json.dumps(line).encode() + b"\n")


class Trace:
    """Read as it grows. A line that crosses pages of the file can be seen, or be left by `kill -9`, in half: the first
    is read when it is whole, the second is as if the process had been killed before it wrote."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self._path = path
        self._read = 0
        self._lines: list[dict[str, Any]] = []

    def __str__(self) -> str:
        return str(self._path)

    def lines(self) -> list[dict[str, Any]]:
        with self._path.open("rb") as file:
            file.seek(self._read)
            news = file.read()
        whole = news[: news.rfind(b"\n") + 1]
        self._read += len(whole)
        self._lines += _whole_lines(whole)
        return self._lines


def _whole_lines(text: bytes) -> Iterator[dict[str, Any]]:
    for line in filter(None, text.split(b"\n")):
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue
