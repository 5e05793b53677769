"""The command line called within this process: what it prints, how it exits."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
from dataclasses import dataclass
from typing import Any
from unittest import mock

import msgspec

from rota.cli.main import app


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def data(self) -> Any:
        assert self.code in (0, 1, 3), self.err
        return msgspec.json.decode(self.out)


def call(*arguments: str, url: str | None = None, stdin: str = "", **environ: str) -> Said:
    """With NO_COLOR, not to a terminal, and with nobody at the keyboard."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    where = {"ROTA_URL": url} if url else {}
    with (
        mock.patch.dict(os.environ, {"NO_COLOR": "1"} | where | environ),
        mock.patch("sys.stdin", io.StringIO(stdin)),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        os.environ.pop("COLUMNS", None)
        try:
            app(list(arguments))
        except SystemExit as ended:
            code = int(ended.code or 0)
    return Said(code, out.getvalue(), err.getvalue())


async def called(*arguments: str, **environ: str) -> Said:
    """The same, while this event loop goes on."""
    return await asyncio.to_thread(call, *arguments, **environ)
