"""Plots: the figures beside one another, the rate over time, the distribution of the ticks' lateness."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from bench.machine import shown
from bench.report import more_is_better
from bench.targets import Figure

STYLE: Any = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 10,
    "axes.titlelocation": "left", "figure.dpi": 110, "savefig.bbox": "tight", "svg.hashsalt": "rota",
}  # fmt: skip
COLOURS = {"rota": "#2364aa", "raw SQL": "#b8b8b8"}
OTHERS = ["#e58a2b", "#73956f", "#a06cb0", "#c8553d", "#7a6f5d", "#4aa5a5", "#d1a3a4", "#5c5f66"]
_LEAST = 0.1
"""Milliseconds at which the scale of the waits begins."""


def draw(found: dict[str, Any], stem: Path) -> list[Path]:
    """A PNG and an SVG for each picture there is something for."""
    made = []
    with plt.rc_context(STYLE):
        for name, picture in _pictures(found):
            for kind in ("png", "svg"):
                path = stem.parent / f"{stem.name}-{name}.{kind}"
                picture.savefig(path, metadata={"Date": None} if kind == "svg" else None)
                made.append(path)
            plt.close(picture)
    return made


def _pictures(found: dict[str, Any]) -> Iterator[tuple[str, Picture]]:
    compared = _compared(found["figures"])
    if compared:
        title = f"rota beside raw SQL and others, in one run on one machine of {found['cores']} cores"
        yield "figures", _bars(compared, title + (", small counts" if found["quick"] else ""))
    rates = {name: values for name, values in found["series"].items() if name.startswith("runs/s")}
    if rates:
        yield "long", _lines_over_runs(rates)
    waits = {name: values for name, values in found["series"].items() if name.startswith(("tick lateness", "pick-up"))}
    if waits:
        yield "latency", _distributions(waits)


def _compared(figures: list[Figure]) -> list[list[Figure]]:
    """Figures that have something beside them, grouped by what was measured."""
    groups: dict[tuple[str, str], list[Figure]] = {}
    for figure in figures:
        groups.setdefault((figure["what"], figure["store"]), []).append(figure)
    return [group for group in groups.values() if len(group) > 1 or group[0]["raw"]]


def _bars(groups: list[list[Figure]], title: str) -> Picture:
    columns = 3
    rows = -(-len(groups) // columns)
    systems = sorted({f["system"] for group in groups for f in group} - {"rota"})
    colours = COLOURS | dict(zip(systems, OTHERS * 9, strict=False))
    heights = [max(len(_entries(group)) for group in groups[r * columns : (r + 1) * columns]) for r in range(rows)]
    picture, axes = plt.subplots(
        rows, columns, figsize=(13, 0.4 + sum(0.27 * h + 0.62 for h in heights)), squeeze=False, layout="constrained",
        height_ratios=[0.27 * h + 0.62 for h in heights],
    )  # fmt: skip
    for n, (place, group) in enumerate(zip(axes.flat, groups, strict=False)):
        _bar(place, group, colours)
        place.set_ylim(heights[n // columns] - 0.4, -0.6)  # bars of one thickness, from the top
    for place in list(axes.flat)[len(groups) :]:
        place.set_axis_off()
    picture.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold")
    return picture


def _entries(group: list[Figure]) -> list[tuple[str, float]]:
    entries = [(figure["system"], float(figure["value"])) for figure in group]
    raw = next((figure["raw"] for figure in group if figure["raw"]), None)
    return sorted(entries, key=lambda entry: entry[0] != "rota") + ([("raw SQL", raw)] if raw else [])


def _bar(place: Axes, group: list[Figure], colours: dict[str, str]) -> None:
    entries, figure = _entries(group), group[0]
    most = max(value for _, value in entries) or 1.0
    names = [name for name, _ in entries]
    place.barh(names, [value for _, value in entries], color=[colours[name] for name in names], height=0.7)
    for n, (_, value) in enumerate(entries):
        place.text(value + most * 0.015, n, shown(value), va="center", fontsize=8)
    place.set_xlim(0, most * 1.2)
    place.set_xticks([])
    place.spines[["bottom", "left"]].set_visible(False)
    place.tick_params(left=False)
    place.set_title(f"{figure['what']}\n{figure['store']}, {_unit(figure)}", fontsize=8.5)


def _unit(figure: Figure) -> str:
    unit = {"/s": "per second", "x": "ratio"}.get(figure["unit"], figure["unit"])
    return f"{unit}, {'more' if more_is_better(figure) else 'less'} is better"


def _lines_over_runs(rates: dict[str, list[float]]) -> Picture:
    picture, place = plt.subplots(figsize=(8, 3.8), layout="constrained")
    for n, (name, values) in enumerate(sorted(rates.items())):
        count = int(name.split(",", 1)[1].split(" runs")[0].replace(",", ""))
        done = [count / len(values) * (i + 1) / 1000 for i in range(len(values))]
        told = name.split(" runs", 1)[1].strip(", ") or "alone"
        colour = COLOURS["raw SQL"] if told == "raw" else (COLOURS["rota"], OTHERS[0])[n % 2]
        label = "raw SQL" if told == "raw" else f"rota, {told}"
        place.plot(done, [value / 1000 for value in values], marker="o", markersize=3.5, color=colour, label=label)
    place.set_ylim(bottom=0)
    place.set_xlim(left=0)
    place.set_xlabel("runs done, thousands")
    place.set_ylabel("runs per second, thousands")
    place.set_title("The rate while a long queue is drained by one process, default autovacuum")
    place.grid(axis="y", alpha=0.3)
    picture.legend(frameon=False, loc="outside lower center", ncols=len(rates))
    return picture


def _distributions(waits: dict[str, list[float]]) -> Picture:
    """How many of them were at most so late: a step for each, on a scale on which 1 ms and 100 ms can both be read."""
    picture, places = plt.subplots(1, 2, figsize=(11, 3.6), layout="constrained", sharey=True)
    titles = {
        "pick-up": "Pick-up: commit to start of the handler",
        "tick lateness": "Ticks: due to start of the handler",
    }
    for place, (kind, title) in zip(places, titles.items(), strict=True):
        for name, values in sorted(waits.items()):
            if not name.startswith(kind):
                continue
            store = name.rsplit(", ", 1)[1]
            ordered = sorted(max(value, _LEAST) for value in values)
            shares = [n / len(ordered) * 100 for n in range(len(ordered) + 1)]
            colour = COLOURS["rota"] if store == "postgres" else OTHERS[1]
            place.step([_LEAST, *ordered], shares, where="post", color=colour, label=f"{store} ({len(ordered)})")
        place.set_xscale("log")
        place.set_xlim(_LEAST, max(100.0, 2 * max(max(values) for values in waits.values())))
        place.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        place.set_xlabel("milliseconds")
        place.set_title(title)
        place.grid(alpha=0.3)
        if place.get_legend_handles_labels()[0]:
            place.legend(frameon=False, loc="lower right")
    places[0].set_ylabel("% at most so late")
    return picture
