"""The command line in this process: as fast as a call, with what it printed and how it would have exited."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, NamedTuple

from rota.cli.main import app


class Said(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code in (0, 3), self.err
        return json.loads(self.out)


def call(*arguments: str, url: str | None = None, stdin: str = "") -> Said:
    out, err = io.StringIO(), io.StringIO()
    with _environment(ROTA_URL=url, COLUMNS="400", NO_COLOR="1"), redirect_stdout(out), redirect_stderr(err):
        before, sys.stdin = sys.stdin, io.StringIO(stdin)
        try:
            app(list(arguments), prog_name="rota")
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0
        finally:
            sys.stdin = before
    return Said(code, out.getvalue(), err.getvalue())


@contextmanager
def _environment(**variables: str | None) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    _set(variables)
    try:
        yield
    finally:
        _set(before)


def _set(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
