"""One picture: a week of a few sensors, drawn from the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, NamedTuple

import matplotlib.dates
from matplotlib.figure import Figure

_dates: Any = matplotlib.dates  # its locators and formatters carry no types

START: Final = "2004-03-15"
END: Final = "2004-03-22"
"""Monday to Sunday, in which hardly a reading is missing."""
_INK: Final = "#1f2933"
_PALE: Final = "#7b8794"


class _Panel(NamedTuple):
    sensor: str
    title: str
    unit: str
    colour: str


_PANELS: Final = (
    _Panel("co_gt", "Carbon monoxide", "mg/m³", "#c2410c"),
    _Panel("c6h6_gt", "Benzene", "µg/m³", "#7c3aed"),
    _Panel("no2_gt", "Nitrogen dioxide", "µg/m³", "#0f766e"),
    _Panel("t", "Temperature", "°C", "#2563eb"),
)
SENSORS: Final = tuple(panel.sensor for panel in _PANELS)


def draw(series: Mapping[str, Sequence[tuple[datetime, Decimal | None]]], path: Path) -> None:
    """Write the picture as PNG. A gap in the data is a gap in the line."""
    figure = Figure(figsize=(12, 8.6), layout="constrained")  # draws with Agg, needs no window
    axes = figure.subplots(len(_PANELS), 1, sharex=True)
    for panel, axis in zip(_PANELS, axes, strict=True):
        _draw_panel(axis, panel, series[panel.sensor])
    _name_days(axes[-1])
    figure.suptitle(
        "A week of air by a busy road, 15 to 21 March 2004",
        x=0.012,
        ha="left",
        size=17,
        weight="bold",
        color=_INK,
    )
    figure.supxlabel(
        "Drawn from the Delta table that the readings reached over MQTT, journal and Spark. Gaps: "
        "the device had no reading. Data: S. De Vito et al., UCI ML Repository 360, CC BY 4.0",
        x=0.012,
        ha="left",
        size=9,
        color=_PALE,
    )
    figure.savefig(path, dpi=120, facecolor="white")


def _draw_panel(axis: Any, panel: _Panel, points: Sequence[tuple[datetime, Any]]) -> None:
    times = [time for time, _ in points]
    values = [float("nan") if value is None else float(value) for _, value in points]
    floor = min((value for value in values if value == value), default=0.0)
    base = min(0.0, floor)
    axis.fill_between(times, values, base, color=panel.colour, alpha=0.12, linewidth=0)
    axis.plot(times, values, color=panel.colour, linewidth=1.6, solid_capstyle="round")
    axis.set_title(panel.title, loc="left", size=11.5, weight="bold", color=panel.colour, pad=5)
    axis.set_title(panel.unit, loc="right", size=9.5, color=_PALE, pad=5)
    axis.set_ylim(bottom=base)
    axis.margins(x=0)
    axis.grid(axis="y", color="#e4e7eb", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.tick_params(which="both", colors=_PALE, labelsize=9, length=0)
    axis.grid(axis="x", which="major", color="#cbd2d9", linewidth=0.8, linestyle=(0, (2, 3)))
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.spines["bottom"].set_color("#cbd2d9")


def _name_days(axis: Any) -> None:
    axis.xaxis.set_major_locator(_dates.DayLocator())
    axis.xaxis.set_major_formatter(_dates.DateFormatter(""))
    axis.xaxis.set_minor_locator(_dates.HourLocator(byhour=12))
    axis.xaxis.set_minor_formatter(_dates.DateFormatter("%a %-d"))
    axis.tick_params(axis="x", which="major", length=5, color="#cbd2d9")
    axis.tick_params(axis="x", which="minor", colors=_INK, labelsize=10, length=0)
