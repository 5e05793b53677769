"""Report: what was measured, as tables to read and as JSON to keep and to compare with."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.machine import Bench, shown
from bench.targets import Figure, Target, speed_of, target_of


def result(bench: Bench) -> dict[str, Any]:
    """Everything that one run found, and on what it found it."""
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "quick": bench.quick,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "figures": bench.figures,
        "series": bench.series,
    }


def write(found: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def table(found: dict[str, Any]) -> str:
    """Every figure of rota's beside raw SQL, and whether it reached its target."""
    rows = []
    for figure in found["figures"]:
        if figure["system"] != "rota":
            continue
        target = target_of(figure)
        rows.append(
            (
                figure["what"], figure["store"], f"{shown(figure['value'])} {figure['unit']}",
                shown(figure["raw"]) if figure["raw"] else "", _ratio(figure["ratio"]), str(target or ""),
                _verdict(target, figure, found) if target else "",
            )
        )  # fmt: skip
    note = "\nSmall counts: see that it runs, believe no figure." if found["quick"] else ""
    return _lines(("figure", "store", "value", "raw", "ratio", "first target", "reached"), rows) + note


def others(found: dict[str, Any]) -> str:
    """Every figure that was measured on another system too; `x rota` above 1 means that the other one is better."""
    rows = []
    for figure in found["figures"]:
        ours = next((f for f in found["figures"] if _name(f) == (figure["what"], "rota", figure["store"])), None)
        if figure["system"] == "rota" or ours is None:
            continue
        value = f"{shown(figure['value'])} {figure['unit']}"
        rows.append((figure["what"], figure["system"], value, shown(ours["value"]), _ratio(_better(ours, figure))))
    return _lines(("figure", "system", "value", "rota", "x rota"), rows) if rows else ""


def compare(old: dict[str, Any], new: dict[str, Any]) -> str:
    """Two runs. The change of the ratio says more than that of the value: raw was measured on the same day."""
    before = {_name(figure): figure for figure in old["figures"]}
    rows = []
    for figure in new["figures"]:
        then = before.get(_name(figure))
        if then is None:
            continue
        ratios = then["ratio"], figure["ratio"]
        rows.append(
            (
                figure["what"], figure["system"], figure["store"], f"{shown(then['value'])} {then['unit']}",
                f"{shown(figure['value'])} {figure['unit']}", _ratio(_better(then, figure)), _ratio(ratios[0]),
                _ratio(ratios[1]), _ratio(ratios[1] / ratios[0] if all(ratios) else None),
            )
        )  # fmt: skip
    head = ("figure", "system", "store", "old", "new", "better", "old x raw", "new x raw", "better")
    note = "\nOne of them is quick, the other is not." if old["quick"] != new["quick"] else ""
    return _lines(head, rows) + note


def _name(figure: Figure) -> tuple[str, str, str]:
    return figure["what"], figure["system"], figure["store"]


def _better(old: Figure, new: Figure) -> float | None:
    """How many times better the second is. Of rates and ratios more is better, of everything else less."""
    if not old["value"] or not new["value"]:
        return None
    times = float(new["value"]) / float(old["value"])
    return times if more_is_better(new) else 1 / times


def more_is_better(figure: Figure) -> bool:
    return figure["unit"] == "x" or (figure["unit"] == "/s" and "queries" not in figure["what"])


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def _verdict(target: Target, figure: Figure, found: dict[str, Any]) -> str:
    reached, speed = target.reached(figure, found["figures"]), speed_of(found["figures"])
    if reached is None:
        return "?"
    if reached:
        verdict = "yes"
    elif speed is not None and target.work and target.at(speed).reached(figure, found["figures"]):
        verdict = f"yes for {speed:.2f} of the speed"
    else:
        verdict = "no" if target.within_reach(figure) else "no, nor has raw"
    return verdict + (" (quick)" if found["quick"] else "")


def _lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need to be; the first to the left, as are words, numbers to the right."""
    widths = [max(len(row[n]) for row in (head, *rows)) for n in range(len(head))]
    words = {n for n, name in enumerate(head) if name in ("figure", "store", "system", "first target", "reached")}
    lines = []
    for row in (head, ["-" * width for width in widths], *rows):
        cells = (
            cell.ljust(w) if n in words else cell.rjust(w) for n, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
