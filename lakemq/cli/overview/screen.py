"""How `lakemq top` looks on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

Rows = Sequence[Sequence[object]]


def screen(
    head: Iterable[str], tables: Iterable[tuple[Sequence[str], Rows]], problem: str
) -> RenderableType:
    """Lines, then tables of headings and rows. `problem`: comes first; empty: there is none. What
    is too long for the terminal is cut off at the end."""
    parts: list[RenderableType] = [Text(problem, "bold red")] if problem else []
    parts += [Text(line, no_wrap=True) for line in head]
    return Group(*parts, *(_table(headings, rows) for headings, rows in tables))


def _table(headings: Sequence[str], rows: Rows) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="reverse")
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place < 2 else "right", no_wrap=True)
    for row in rows:
        # As text: names come from the network, and brackets would be markup.
        table.add_row(*(Text(_cell(cell)) for cell in row))
    return table


def _cell(value: object) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
