"""The benchmark's questions to peers, asked of a peer that is none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from bench.machine import Bench
from bench.peers.install import PEERS, ROOT, Peer, PeerFailed
from bench.peers.measure import Pace, ask_all, missed

BRIEF = Pace(one=20, many=100, drain=1, slow=100, pickups=3, settle=0.1, idle=0.5, ticks=0.2)


@dataclass(frozen=True)
class Fake:
    name: str
    module: str = "tests.unit.fake_peer"
    version: str = "1.0"
    cwd: Path = ROOT
    complaint: str = ""

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", self.module]

    def install(self) -> None:
        if self.complaint:
            raise PeerFailed(self.complaint)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench(quick=True)
    yield made
    made.close()


async def test_every_peer_is_asked_the_same_and_one_that_fails_leaves_the_rest_alone(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = Fake("absent", complaint="it needs a compiler")
    broken = Fake("broken", module="tests.unit.no_such_peer")
    await ask_all(bench, [absent, broken, Fake("fake")], BRIEF)

    figures = {figure["what"]: figure for figure in bench.figures if figure["system"] != "machine"}
    assert {(figure["system"], figure["version"]) for figure in figures.values()} == {("fake", "1.0")}
    assert list(figures) == [
        "enqueue one by one",
        "enqueue_many, 1000 at a time",
        "drain, async no-op, 1 process",
        "drain, async no-op, 2 processes",
        "pick-up p50",
        "pick-up p99",
        "tick lateness p50",
        "tick lateness p99",
        "idle queries per second",
    ]
    assert all(figure["value"] > 0 for what, figure in figures.items() if what != "pick-up p50")
    assert 5 < figures["idle queries per second"]["value"] <= 102  # it polls every 10 ms: 51 times in half a second
    assert 490 < figures["tick lateness p50"]["value"] < 1000
    said = capsys.readouterr().out
    assert "absent 1.0 left out: it needs a compiler\n" in said
    assert "broken 1.0 left out: setup: " in said
    assert "no_such_peer" in said


def test_a_peer_is_pinned_and_runs_in_its_own_environment() -> None:
    assert Peer("a", ("a==1.2",)).version == "1.2"
    assert Peer("a", ("a@1.2",)).version == "1.2"
    for peer in PEERS.values():
        assert peer.version
        assert peer.home.parent == ROOT / ".peers"
        assert (ROOT / "bench" / "peers" / f"{peer.name}.{'mjs' if peer.node else 'py'}").exists()


def test_seconds_that_nobody_was_started_for_are_counted_whatever_the_lateness_of_the_others() -> None:
    assert missed([10.0, 11.0, 12.0]) == 0
    assert missed([10.15, 12.15, 14.15]) == 2
    assert missed([10.0, 10.0, 13.0]) == 2
