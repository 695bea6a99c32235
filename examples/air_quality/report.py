"""What the demo shows on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Set
from decimal import Decimal

from rich.columns import Columns
from rich.table import Table
from rich.text import Text

from examples.air_quality.comparison import Comparison
from examples.air_quality.readings import Figures

_FIELDS = {
    "readings": "readings",
    "missing": "missing",
    "minimum": "min",
    "mean": "mean",
    "maximum": "max",
}


def side_by_side(
    table: Mapping[str, Figures], csv: Mapping[str, Figures], differing: Set[tuple[str, str]]
) -> Columns:
    """The table's answer and the CSV's figures; what differs is marked."""
    return Columns(
        [
            _figures_table("from the Delta table (Spark SQL)", table, differing, marks=False),
            _figures_table("from the CSV file (Python)", csv, differing, marks=True),
        ],
        padding=(0, 3),
    )


def _figures_table(
    title: str, figures: Mapping[str, Figures], differing: Set[tuple[str, str]], *, marks: bool
) -> Table:
    table = Table(
        title=title, box=None, padding=(0, 1, 0, 0), title_style="bold", title_justify="left"
    )
    table.add_column("sensor", style="cyan", no_wrap=True)
    for heading in _FIELDS.values():
        table.add_column(heading, justify="right", no_wrap=True)
    if marks:
        table.add_column("", no_wrap=True)
    for sensor in sorted(figures):
        cells = [
            _cell(getattr(figures[sensor], field), (sensor, _counted(field)) in differing)
            for field in _FIELDS
        ]
        agrees = not any(place[0] == sensor for place in differing)
        mark = Text("✓", "green") if agrees else Text("✗ differs", "bold red")
        table.add_row(sensor, *cells, *([mark] if marks else []))
    return table


def _counted(field: str) -> str:
    """The mean is compared through the sum that it is made of."""
    return "total" if field == "mean" else field


def _cell(value: int | Decimal, differs: bool) -> Text:
    text = f"{value:,}" if isinstance(value, int) else f"{value.normalize():f}"
    return Text(text, "bold red" if differs else "")


def verdict(comparison: Comparison, differing: Set[tuple[str, str]], figures: int) -> str:
    """One or more sentences, in rich's markup."""
    if comparison.exact and not differing:
        return (
            f"[bold green]All agree:[/] {figures} figures are equal to the last digit, and every "
            f"one of {comparison.sent:,} readings is in the table exactly once."
        )
    parts = [_count(len(differing), "figure") + " wrong" if differing else "the figures agree"]
    for name, found in (
        ("lost", comparison.lost),
        ("stored more than once", comparison.doubled),
        ("stored but never sent", comparison.strangers),
    ):
        if found:
            first = found[0]
            parts.append(
                f"{_count(len(found), 'reading')} {name}, the first: "
                f"{first.sensor} {first.time} {first.value}"
            )
    return f"[bold red]They do not agree:[/] {'; '.join(parts)}."


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
