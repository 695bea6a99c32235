"""Plots of a run as PNG, by matplotlib; one hue for each side, the same on every plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.declare import FIGURES, Curve, Growth, Result, Work
from benchmarks.harness.report import values
from benchmarks.harness.statistics import Estimate, ratio

HUES = ("#0b62c4", "#c2410c", "#15803d", "#7e22ce", "#475569", "#b91c1c")
INCHES_WIDE = 7.0
PACED = 0.02
"""Rates that differ by less are those that the load gave."""


def hue(name: str, names: Sequence[str]) -> str:
    return HUES[list(names).index(name) % len(HUES)]


def ratio_bars(works: Sequence[Work], results: dict[str, Result], path: Path) -> bool:
    """LakeMQ's rate, or the peers' CPU or p99 where the rate is fixed, as multiples of each peer's:
    right of 1 LakeMQ is better. False: there is nothing to draw."""
    bars: list[tuple[str, Estimate]] = []
    for work in works:
        result = results.get(work.name)
        if result is None or len(result.samples) < 2:
            continue
        ours, *peers = result.samples
        for peer in peers:
            for key in ("rate", "cpu_us", "p99_ms"):
                mine = values(result.samples[ours], key)
                theirs = values(result.samples[peer], key)
                more = FIGURES[key].better == "more"
                found = ratio(mine, theirs) if more else ratio(theirs, mine)
                paced = key == "rate" and found and abs(found.median - 1) < PACED
                if found and found.median > 0 and not paced:
                    bars.append((f"{work.name}, {FIGURES[key].title.split(',')[0]}, {peer}", found))
    if not bars:
        return False
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(INCHES_WIDE + 2, 0.22 * len(bars) + 1.2))
    for place, (_, found) in enumerate(bars):
        color = HUES[0] if found.median >= 1 else HUES[1]
        axes.plot([found.low, found.high], [place, place], color=color, linewidth=2)
        axes.plot(found.median, place, "o", color=color, markersize=4)
    axes.axvline(1, color="#475569", linewidth=1)
    axes.set_xscale("log")
    axes.set_yticks(range(len(bars)), [text for text, _ in bars], fontsize=7)
    axes.invert_yaxis()
    axes.grid(axis="x", color="#e2e8f0")
    axes.set_xlabel("times as good as the peer: median, least and greatest round; logarithmic")
    figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Software": None})
    pyplot.close(figure)
    return True


def growth_plot(growth: Growth, curve: Curve, path: Path) -> None:
    from matplotlib import pyplot

    keys = [
        key for key in growth.figures
        if any(key in sample for points in curve.points.values() for _, sample in points)
    ]  # fmt: skip
    figure, grid = pyplot.subplots(
        1, max(1, len(keys)), figsize=(INCHES_WIDE, 2.8), squeeze=False, layout="constrained"
    )
    names = [side.name for side in growth.sides]
    for axes, key in zip(grid[0], keys, strict=False):
        for name, points in curve.points.items():
            found = [(size, sample[key]) for size, sample in points if key in sample]
            if found:
                axes.plot(
                    *zip(*found, strict=True),
                    "o-",
                    color=hue(name, names),
                    label=name,
                    markersize=4,
                )
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.set_xlabel(growth.x)
        axes.set_title(FIGURES[key].title, fontsize=10)
        axes.grid(color="#e2e8f0")
    grid[0][0].legend(fontsize=8, frameon=False)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)


def time_plot(title: str, rows: Sequence[dict[str, float]], path: Path) -> None:
    """Columns of rows over `minutes`, one below the other."""
    from matplotlib import pyplot

    keys = [key for key in rows[0] if key != "minutes"]
    figure, grid = pyplot.subplots(
        len(keys),
        1,
        figsize=(INCHES_WIDE, 1.5 * len(keys) + 0.6),
        sharex=True,
        squeeze=False,
        layout="constrained",
    )
    for (axes,), key in zip(grid, keys, strict=True):
        axes.plot([row["minutes"] for row in rows], [row[key] for row in rows], color=HUES[0])
        axes.set_title(key.replace("_", " "), fontsize=9, loc="left")
        axes.set_ylim(bottom=0)
        axes.grid(color="#e2e8f0")
    grid[-1][0].set_xlabel("minutes")
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
