"""The trace of the cluster tests: what it makes of lines that are not whole."""

from __future__ import annotations

import os
from pathlib import Path

from tests.cluster.trace import Trace, write


def test_half_a_line_is_read_when_it_is_whole_or_never(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "trace")
    file = os.open(tmp_path / "trace", os.O_WRONLY | os.O_APPEND)
    assert trace.lines() == []
    write(file, {"n": 1})
    os.write(file, b'\n{"n"')
    assert trace.lines() == [{"n": 1}]
    os.write(file, b": 2}\n")
    assert trace.lines() == [{"n": 1}, {"n": 2}]
    os.write(file, b'\n{"n": 3')  # and it was killed
    write(file, {"n": 4})
    assert trace.lines() == [{"n": 1}, {"n": 2}, {"n": 4}]
    os.close(file)
