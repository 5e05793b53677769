"""The benchmark's report, from figures that were not measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bench import quiet, report
from bench.machine import Bench, middle, percentile, shown
from bench.plots import draw
from bench.quiet import Noise
from bench.targets import FIRST, target_of


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Bench:
    made = Bench(quick=False, folder=tmp_path)
    made.add("drain, async no-op, 1 process", 60_000, "/s", raw=80_000)
    made.add("drain, plain functions in threads, 1 process", 20_000, "/s", raw=80_000)
    made.add("drain, async no-op, 1 process", 20_000, "/s", system="pgqueuer")
    made.add("pick-up p50", 1.0, "ms", raw=0.25)
    made.add("pick-up p99", 9.0, "ms", raw=0.5)
    made.add("idle queries per second", 0.5, "/s")
    made.keep("runs/s, 400,000 runs", [50_000, 49_000, 48_000])
    made.keep("runs/s, 400,000 runs, a snapshot held", [50_000, 40_000, 30_000])
    made.keep("runs/s, 400,000 runs, raw", [90_000, 90_000, 80_000])
    made.keep("tick lateness ms, postgres", [2.0, 3.0, 20.0])
    made.keep("pick-up ms, sqlite", [-0.01, 5.0, 12.0])
    return made


def row(table: str, what: str) -> str:
    [found] = [line for line in table.splitlines() if line.startswith(what)]
    return found


def test_the_ratio_of_a_time_is_below_one_when_it_takes_longer_than_raw(bench: Bench) -> None:
    ratios = {figure["what"]: figure["ratio"] for figure in bench.figures if figure["system"] == "rota"}
    assert ratios["pick-up p50"] == 0.25
    assert ratios["drain, async no-op, 1 process"] == 0.75


def test_the_table_says_which_targets_are_reached(bench: Bench) -> None:
    table = report.table(report.result(bench))
    assert row(table, "drain, async no-op").endswith("0.6 x raw, 2.5 x pgqueuer            yes")
    assert row(table, "drain, plain").endswith("no")  # a third of the async rate
    assert row(table, "pick-up p50").endswith("yes")
    assert row(table, "pick-up p99").endswith("no")


@pytest.mark.parametrize(
    ("raw", "ticks", "seconds", "verdict"),
    [
        (81_547, 25_000, 0.6, "yes"),
        (40_773.5, 25_000, 0.6, "yes"),
        (40_773.5, 12_501, 1.19, "yes for 0.50 of the speed"),
        (40_773.5, 12_499, 1.21, "no"),
        (163_094, 25_000, 0.6, "yes"),
        (163_094, 24_999, 0.61, "no"),
    ],
)
def test_an_amount_of_work_is_that_of_the_machine(
    bench: Bench, raw: float, ticks: float, seconds: float, verdict: str
) -> None:
    bench.figures[0]["raw"] = raw
    bench.add("100,000 schedules due of 100,000 stored", ticks, "/s")
    bench.add("10,000 schedules due at once, last run row written", seconds, "s")
    table = report.table(report.result(bench))
    assert [row(table, what).split("  ")[-1].strip() for what in ("100,000", "10,000")] == [verdict, verdict]


def test_raw_is_no_excuse_where_the_speed_is_one(bench: Bench) -> None:
    bench.figures[0]["raw"] = 40_773.5
    for seconds, verdict in ((1.19, "yes for 0.50 of the speed"), (1.21, "no, nor has raw")):
        bench.figures = [figure for figure in bench.figures if not figure["what"].startswith("10,000")]
        bench.add("10,000 schedules due at once, last run row written", seconds, "s", raw=0.7)
        assert row(report.table(report.result(bench)), "10,000").endswith(verdict)


def test_what_raw_does_not_reach_is_said_of_rates_too(bench: Bench) -> None:
    for raw, verdict in ((25_000, "no"), (24_999, "no, nor has raw")):
        bench.figures = [figure for figure in bench.figures if not figure["what"].startswith("100,000")]
        bench.add("100,000 schedules due of 100,000 stored", 5_000, "/s", raw=raw)
        assert row(report.table(report.result(bench)), "100,000").split("  ")[-1].strip() == verdict


def test_what_cannot_be_compared_is_neither_reached_nor_missed(bench: Bench) -> None:
    bench.figures = [figure for figure in bench.figures if figure["system"] != "pgqueuer"]
    assert row(report.table(report.result(bench)), "drain, async no-op").endswith("?")


def test_small_counts_are_marked(bench: Bench) -> None:
    bench.quick = True
    table = report.table(report.result(bench))
    assert row(table, "pick-up p50").endswith("yes (quick)")
    assert table.endswith("believe no figure.")


def test_other_systems_are_shown_beside_rota(bench: Bench) -> None:
    assert row(report.others(report.result(bench)), "drain").split()[-2:] == ["60,000", "0.33"]
    bench.figures = [figure for figure in bench.figures if figure["system"] == "rota"]
    assert report.others(report.result(bench)) == ""


def test_a_comparison_says_how_many_times_better_each_figure_is(bench: Bench, tmp_path: Path) -> None:
    old: dict[str, Any] = report.result(bench)
    report.write(old, tmp_path / "kept" / "old.json")
    faster = [dict(figure, value=figure["value"] * 2) for figure in old["figures"]]
    told = report.compare(report.read(tmp_path / "kept" / "old.json"), old | {"figures": faster})
    rate, wait, queries = (row(told, what).split() for what in ("drain, plain", "pick-up p50", "idle queries"))
    assert "2.00" in rate
    assert "0.50" in wait
    assert "0.50" in queries  # of these, less is better


def test_a_figure_that_is_new_is_not_compared(bench: Bench) -> None:
    found = report.result(bench)
    assert "pick-up" not in report.compare(found | {"figures": []}, found)


def test_every_picture_is_drawn_as_png_and_svg(bench: Bench, tmp_path: Path) -> None:
    made = draw(report.result(bench), tmp_path / "result")
    assert [path.name for path in made] == [
        f"result-{name}.{kind}" for name in ("figures", "long", "latency") for kind in ("png", "svg")
    ]
    assert all(path.read_bytes()[:4] in (b"\x89PNG", b"<?xm") for path in made)


def test_nothing_is_drawn_of_nothing(tmp_path: Path) -> None:
    assert draw(report.result(Bench(quick=True, folder=tmp_path)), tmp_path / "result") == []


def test_a_target_of_a_longer_name_goes_first() -> None:
    figure = {"what": "enqueue_many, 1000 at a time, with keys", "store": "postgres", "system": "rota"}
    target = target_of(figure)
    assert target is not None
    assert target.ratio == 0.3
    assert target_of(figure | {"system": "pgqueuer"}) is None
    assert all(str(target) for target in FIRST)


def test_numbers_are_shown_as_people_read_them() -> None:
    assert [shown(value) for value in (1234567.8, 99.96, 12.34, 1.234, 0.01234)] == [
        "1,234,568", "100.0", "12.3", "1.23", "0.0123",
    ]  # fmt: skip


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0


def test_of_rounds_by_turns_the_middle_ratio_counts() -> None:
    assert middle([50.0, 9.0, 80.0], [100.0, 10.0, 100.0]) == (80.0, 100.0)


@pytest.mark.parametrize(
    ("noise", "silent"),
    [
        (Noise(0.4, 0.2, 2.0), True),
        (Noise(2.0, 3.0, 25.0), True),
        (Noise(2.1, 0.0, 2.0), False),
        (Noise(0.1, 3.1, 2.0), False),
        (Noise(0.1, 0.0, 26.0), False),
    ],
)
def test_a_machine_is_quiet_when_neither_its_disk_nor_its_cores_are_in_use_by_others(
    noise: Noise, silent: bool
) -> None:
    assert noise.quiet == silent


def test_quiet_is_waited_for_as_long_as_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = [Noise(9.0, 0.0, 2.0), Noise(0.5, 40.0, 2.0), Noise(0.5, 0.5, 2.0), Noise(9.0, 9.0, 2.0)]
    monkeypatch.setattr(quiet, "look", lambda _: seen.pop(0))
    assert quiet.wait(tmp_path, 60.0) == Noise(0.5, 0.5, 2.0)
    assert capsys.readouterr().out == "  not quiet yet: fdatasync p99 9.0 ms, cores 0.0 % stolen, 2 % busy\n"
    assert quiet.wait(tmp_path, 0.0) == Noise(9.0, 9.0, 2.0)


def test_the_noise_is_that_of_the_disk_of_the_folder(tmp_path: Path) -> None:
    noise = quiet.look(tmp_path, 0.05)
    assert noise.disk > 0
    assert 0 <= noise.stolen <= 100
    assert 0 <= noise.busy <= 100


@pytest.mark.parametrize("patience", [0.0, 5.0])
def test_what_it_was_like_is_kept_beside_the_figures(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, patience: float
) -> None:
    monkeypatch.setattr(quiet, "look", lambda _: Noise(0.5, 0.25, 2.0))
    bench.patience = patience
    with quiet.surroundings(bench, "drain"):
        pass
    kept = {figure["what"]: figure["value"] for figure in bench.figures if figure["system"] == "machine"}
    before = {"fdatasync p99 before drain": 0.5, "stolen before drain": 0.25} if patience else {}
    assert kept == before | {"stolen during drain": kept["stolen during drain"]}
    assert "drain" not in report.others(report.result(bench)).replace("drain, async", "")
