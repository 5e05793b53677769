"""The view of the demo, and its lines: what a scene looks like."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest
from rich.console import Console

from rota.cli.audience import Lines
from rota.cli.board import board
from rota.cli.scene import Actor, Entry, Fate, Happening, Line, Scene

START = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


def tick(job: str, second: int, fate: Fate, by: str | None = None, *, rescued: bool = False, twice: int = 0) -> Entry:
    due = START + timedelta(seconds=second)
    return Entry(
        run_id=1000 * twice + second * 10 + len(job), job=job, due=due, fate=fate, by=by, took=0.25, rescued=rescued,
        reason="overlap" if fate == "skipped" else "",
    )  # fmt: skip


def scene(*beats: Entry, imports: tuple[Entry, ...] = ()) -> Scene:
    """Ten seconds into a demo of which ben was killed in the seventh."""
    return Scene(
        kind="SQLite", now=START + timedelta(seconds=10), started=START, seconds=20,
        killed_at=START + timedelta(seconds=6.5),
        actors=(
            Actor(name="anna", pid=101, term=2, doing=("import_feed (2 of 5)",), done=12),
            Actor(name="ben", pid=102, killed=True, doing=("import_feed 12:00:06 (3 of 5)",), done=7),
            Actor(name="cleo", pid=103, count=31, done=9),
        ),
        lines=(
            Line(job="heartbeat", every=1, next_in=0.4, ticks=beats),
            Line(job="import_feed", every=2, next_in=1.4, ticks=imports),
        ),
        ledger=(*beats, *imports),
        story=(
            Happening(at=0.0, text="ben leads, term 1"),
            Happening(at=6.5, text="kill -9 102: ben dies in the middle of import_feed 12:00:06 (3 of 5)", grave=True),
            Happening(at=7.7, text="anna takes over import_feed 12:00:06, 1.2 s after the kill"),
        ),
    )  # fmt: skip


def rows(shown: Scene, width: int = 80, height: int = 24) -> list[str]:
    return board(shown, width, height).plain.split("\n")


def row(name: str, shown: Scene) -> str:
    """The row of a schedule, or of a replica."""
    return next(line for line in rows(shown) if line.split()[:1] == [name] or line.split()[1:2] == [name])


def test_each_replica_has_a_row_with_what_it_has_and_does() -> None:
    assert row("anna", scene()) == "  ● anna  pid 101      12 done  LEADER term 2  import_feed (2 of 5)"
    assert row("cleo", scene()) == "  ● cleo  pid 103       9 done  SINGLETON count 31"
    assert row("ben", scene()) == "  x ben   pid 102       7 done  killed -9 in import_feed 12:00:06 (3 of 5)"


def test_each_tick_has_one_letter_in_the_column_of_its_second() -> None:
    shown = scene(tick("heartbeat", 0, "done", "ben"), tick("heartbeat", 1, "done", "anna"),
                  tick("heartbeat", 3, "running", "cleo"), tick("heartbeat", 4, "coming"))  # fmt: skip
    assert row("heartbeat", shown) == "  heartbeat   1 s   0.4 s   b a   c ·"


@pytest.mark.parametrize(
    ("entry", "mark"),
    [
        (tick("import_feed", 0, "orphaned", "ben"), "x"),
        (tick("import_feed", 0, "waiting"), "?"),
        (tick("import_feed", 0, "done", "anna", rescued=True), "A"),
        (tick("import_feed", 0, "skipped"), "-"),
        (tick("import_feed", 0, "failed", "anna"), "!"),
    ],
)
def test_what_is_not_plainly_done_has_a_mark_of_its_own(entry: Entry, mark: str) -> None:
    assert row("import_feed", scene(imports=(entry,)))[28:] == mark


def test_the_kill_is_above_the_second_in_which_it_happened() -> None:
    shown = rows(scene(tick("heartbeat", 6, "done", "ben")))
    [above] = [line for line in shown if "▼ kill -9" in line]
    assert above.index("▼") == row("heartbeat", scene(tick("heartbeat", 6, "done", "ben"))).index("b", 28)


def test_the_books_so_far_count_a_tick_that_ran_twice() -> None:
    once = scene(tick("heartbeat", 0, "done", "ben"), tick("heartbeat", 1, "running", "anna"))
    assert "LEDGER  2 ticks so far, 1 completed, 1 running, 0 twice" in rows(once)
    twice = scene(tick("heartbeat", 0, "done", "ben"), tick("heartbeat", 0, "done", "anna", twice=1))
    assert any(line.startswith("LEDGER") and line.endswith(", 1 twice") for line in rows(twice))


def test_a_long_demo_scrolls_so_that_the_newest_ticks_are_seen() -> None:
    late = replace(scene(tick("heartbeat", 590, "done", "cleo")), now=START + timedelta(seconds=590), seconds=600)
    assert row("heartbeat", late).endswith("c")


@pytest.mark.parametrize("width", [1, 20, 40, 79, 80, 200])
@pytest.mark.parametrize("height", [1, 5, 12, 16, 24, 60])
def test_it_never_has_more_lines_or_columns_than_the_terminal(width: int, height: int) -> None:
    full = scene(*(tick("heartbeat", second, "done", "anna") for second in range(10)))
    shown = rows(full, width, height)
    assert len(shown) <= height
    assert max(len(line) for line in shown) <= width


def test_a_low_terminal_keeps_the_newest_of_the_story() -> None:
    assert rows(scene(), height=12)[-1] == "  7.7 s  anna takes over import_feed 12:00:06, 1.2 s after the kill"


def test_line_by_line_each_thing_is_told_once() -> None:
    lines = Lines(Console(file=StringIO()))
    first = scene(tick("heartbeat", 0, "done", "ben"))
    assert [line.plain for line in lines.news(first)] == [
        " 10.0 s  anna has joined, pid 101",
        " 10.0 s  ben has joined, pid 102",
        " 10.0 s  cleo has joined, pid 103",
        "  0.0 s  ben leads, term 1",
        "  6.5 s  kill -9 102: ben dies in the middle of import_feed 12:00:06 (3 of 5)",
        "  7.7 s  anna takes over import_feed 12:00:06, 1.2 s after the kill",
        " 10.0 s  12:00:00  heartbeat   ben   done in 250 ms",
    ]
    more = scene(*first.ledger, imports=(tick("import_feed", 2, "skipped"),))
    assert [line.plain for line in lines.news(more)] == [
        " 10.0 s  12:00:02  import_feed -     skipped: the one before still ran"
    ]
