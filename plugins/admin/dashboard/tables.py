"""Lists of the admin API as tables: search, sort, pages, CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request

from lakemq.plugins.admin.dashboard.rendering import listed, moment

ROWS: Final = 100
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """One column."""

    field: str
    label: str
    kind: str = "text"
    """As `rendering.shown` takes it."""
    sort: bool = False
    """The API can sort by this field."""
    link: Callable[[Row], str] | None = None
    value: Callable[[Row], object] | None = None
    """In place of the field."""

    def of(self, row: Row) -> object:
        """The value of a row; None: the row has none."""
        return self.value(row) if self.value is not None else row.get(self.field)

    @property
    def is_number(self) -> bool:
        """Aligned to the right."""
        return self.kind in ("number", "size", "duration", "short")


@dataclass(frozen=True)
class Choice:
    """A filter beside the search: a field of the query with few values."""

    name: str
    label: str
    values: Sequence[tuple[str, str]]
    """(value, shown); the first is what is asked without a choice."""


@dataclass(frozen=True)
class Text:
    """A filter beside the search: a field of the query with any text."""

    name: str
    label: str
    placeholder: str = ""


@dataclass(frozen=True)
class Table:
    """A list of the API."""

    path: str
    """Behind `/api/v1/`."""
    columns: Sequence[Column]
    noun: str
    """In the plural: "topics"."""
    empty: str
    """Said where there is nothing at all: what to do."""
    command: str = ""
    """To copy, of the empty table."""
    choices: Sequence[Choice] = ()
    texts: Sequence[Text] = ()
    searched: str = "Name contains"
    """Label of the search; empty: there is none."""
    query: Mapping[str, str] = field(default_factory=dict)
    """Always asked."""


@dataclass(frozen=True)
class Shown:
    """A page of a table, for its template."""

    table: Table
    here: str
    asked: Mapping[str, str]
    rows: Sequence[Row]
    next: str | None
    total: int
    as_of: str
    missing: Sequence[Mapping[str, str]]

    @property
    def noun(self) -> str:
        """Of what there are `total`."""
        return self.table.noun.removesuffix("s") if self.total == 1 else self.table.noun

    def link(self, **changes: str | None) -> str:
        """This view with other fields of its query; None: without it."""
        fields = {**self.asked, **changes}
        query = urlencode({name: value for name, value in fields.items() if value})
        return f"{self.here}?{query}" if query else self.here

    def sorted_by(self, column: Column) -> str:
        """`ascending`, `descending` or empty."""
        sort = self.asked.get("sort", "")
        if sort.removeprefix("-") != column.field:
            return ""
        return "descending" if sort.startswith("-") else "ascending"

    def sort_link(self, column: Column) -> str:
        """The other way round, when it is sorted by this already; from the first page."""
        down = self.sorted_by(column) == "ascending" or (
            column.is_number and self.sorted_by(column) == ""
        )
        return self.link(sort=f"-{column.field}" if down else column.field, cursor=None)


def asked_of(request: Request, table: Table) -> dict[str, str]:
    """What of the query the table knows: other fields are ignored, as are unknown sorts."""
    texts = {each.name for each in table.texts}
    known = {"q", "cursor", *texts, *(choice.name for choice in table.choices)}
    asked = {name: request.query_params[name] for name in known if request.query_params.get(name)}
    sort = request.query_params.get("sort", "")
    if sort.removeprefix("-") in {column.field for column in table.columns if column.sort}:
        asked["sort"] = sort
    for choice in table.choices:
        if asked.get(choice.name) not in {value for value, _ in choice.values}:
            asked.pop(choice.name, None)
    return asked


def query_of(table: Table, asked: Mapping[str, str]) -> dict[str, str]:
    """For the API."""
    return {"limit": str(ROWS), **table.query, **asked}


def shown_of(table: Table, here: str, asked: Mapping[str, str], answer: Row) -> Shown:
    """The API's answer."""
    meta = answer["meta"]
    return Shown(
        table, here, asked, answer["data"], meta["next"], meta["total"], meta["as_of"][11:19],
        meta["missing"],
    )  # fmt: skip


def as_csv(page: Shown) -> str:
    """The rows that are shown. Texts that a spreadsheet would take for a formula get a `'`."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([column.label for column in page.table.columns])
    for row in page.rows:
        writer.writerow([_plain(column.of(row), column.kind) for column in page.table.columns])
    return out.getvalue()


def _plain(value: object, kind: str) -> object:
    if value is None or isinstance(value, bool | int | float):
        return moment(value) if kind == "time" and isinstance(value, int) else value
    text = listed(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t")) else text
