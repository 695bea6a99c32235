"""Rows of a table and the records that they came from: which file and commit hold them. Edge: reads
the table's log and Parquet files, needs neither Spark nor the broker.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakemq.spark_plugin.errors import OptionError
from lakemq.spark_plugin.export.maintenance.audit import files_by_constants, offset_columns
from lakemq.spark_plugin.export.tables.files import Folder
from lakemq.spark_plugin.export.tables.table import LakeTable, TableCommit

if TYPE_CHECKING:
    import pyarrow as pa

_TERM: Final = re.compile(
    r"\s*([A-Za-z_][\w.]*)\s*(<=|>=|!=|=|<|>)\s*('(?:[^']|'')*'|[-+]?[0-9][0-9.eE+-]*|true|false)\s*",
    re.IGNORECASE,
)
_AND: Final = re.compile(r"and\b", re.IGNORECASE)
_COMPARE: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge,
}  # fmt: skip
_ROWS_MAX: Final = 100


class Term(NamedTuple):
    """A comparison of a column with a value."""

    column: str
    """Fields of structs behind dots."""
    compare: str
    value: str


@dataclass(frozen=True)
class FoundRow:
    """A row, the record that it came from, and where it lies."""

    topic: str
    partition: int
    offset: int
    file: str
    """Path as the table's file system has it."""
    number: int
    """Of the row in its file, from 0."""
    commit: TableCommit | None
    """That brought the file into the table; None: the table's log does not reach back so far."""
    error: str = ""
    """Of a dead letter: why it could not be decoded."""


def find_record(table: LakeTable, topic: str, partition: int, offset: int) -> list[FoundRow]:
    """Rows that came from a record; a record may make several. TableError if the table does not
    say which records its rows came from."""
    scan = _Scan(table)

    def wanted(constants: Mapping[str, Any]) -> Any:
        place = [scan.place(name, constants) for name in ("offset", "partition", "topic")]
        return (place[0] == offset) & (place[1] == partition) & (place[2] == topic)

    return list(scan.rows(wanted, _ROWS_MAX))


def find_where(table: LakeTable, where: str, limit: int) -> list[FoundRow]:
    """Rows that a condition like `device = 'x' and co > 5` holds for, at most `limit`. OptionError
    for a condition that can't be read, or names a column that there is not."""
    scan, terms = _Scan(table), parse_where(where)
    for term in terms:
        scan.kind(term)  # before anything is read

    def wanted(constants: Mapping[str, Any]) -> Any:
        found = scan.holds(terms[0], constants)
        for term in terms[1:]:
            found = found & scan.holds(term, constants)
        return found

    return list(scan.rows(wanted, limit))


def parse_where(text: str) -> list[Term]:
    """`a = 'x' and b.c >= 5` -> its comparisons. OptionError."""
    terms: list[Term] = []
    at = 0
    while True:
        found = _TERM.match(text, at)
        if found is None:
            raise OptionError(
                f"--where can't be read from {text[at : at + 40]!r} on; it takes "
                "COLUMN = 'TEXT' or COLUMN > NUMBER (=, !=, <, <=, >, >=), joined by and"
            )
        value = found[3]
        if value.startswith("'"):
            value = value[1:-1].replace("''", "'")
        terms.append(Term(found[1], found[2], value))
        at = found.end()
        if at == len(text):
            return terms
        joined = _AND.match(text, at)
        if joined is None:
            raise OptionError(f"--where: {text[at : at + 40]!r}: only `and` joins comparisons")
        at = joined.end()


class _Scan:
    """Looks through the files of a table."""

    def __init__(self, table: LakeTable) -> None:
        self._table = table
        self._inside = offset_columns(table)
        self._schema = table.arrow_schema()
        self._files = Folder(table.location, table.storage).filesystem

    def place(self, name: str, constants: Mapping[str, Any]) -> Any:
        """topic, partition or offset of the record that a row came from."""
        return self._column((*self._inside, name), constants)

    def _column(self, path: tuple[str, ...], constants: Mapping[str, Any]) -> Any:
        from pyarrow import compute, dataset

        # Delta keeps values of partition columns in the log: the files lack them.
        if len(path) == 1 and path[0] in constants:
            return compute.scalar(constants[path[0]])
        return dataset.field(*path)

    def kind(self, term: Term) -> pa.DataType | None:
        """Type of the column; None: it is a partition column of Delta. OptionError: there is no
        such column."""
        import pyarrow as pa

        first, *inner = term.column.split(".")
        if not inner and first in getattr(self._table, "partition_columns", list)():
            return None
        kind: pa.DataType = pa.struct(list(self._schema))
        for name in (first, *inner):
            if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
                known = ", ".join(self._schema.names[:50])
                raise OptionError(f"--where: there is no column {term.column!r}; there are {known}")
            kind = kind.field(name).type
        return kind

    def holds(self, term: Term, constants: Mapping[str, Any]) -> Any:
        """The comparison as an expression. OptionError: the value is none of that type."""
        import pyarrow as pa

        kind = self.kind(term)
        compare = _COMPARE[term.compare]
        if kind is None:
            constant = constants[term.column]
            value = pa.scalar(term.value).cast(pa.scalar(constant).type).as_py()
            return pa.compute.scalar(bool(constant is not None and compare(constant, value)))
        try:
            scalar = pa.scalar(term.value).cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise OptionError(f"--where: {term.column} is {kind}, not {term.value!r}") from None
        return compare(self._column(tuple(term.column.split(".")), constants), scalar)

    def rows(self, wanted: Callable[[Mapping[str, Any]], Any], limit: int) -> Iterator[FoundRow]:
        """Rows that an expression holds for."""
        for constants, paths in files_by_constants(self._table):
            condition = wanted(constants)
            for path in paths:
                # What a file's statistics rule out is not read.
                if not self._open(path).count_rows(filter=condition):
                    continue
                commit = self._table.commit_of(path)
                for row in self._rows_of(path, condition, constants, commit):
                    yield row
                    limit -= 1
                    if not limit:
                        return

    def _open(self, path: str) -> Any:
        from pyarrow import dataset

        return dataset.dataset([path], self._schema, format="parquet", filesystem=self._files)

    def _rows_of(
        self, path: str, condition: Any, constants: Mapping[str, Any], commit: TableCommit | None
    ) -> Iterator[FoundRow]:
        names = ("topic", "partition", "offset")
        columns = {name: self.place(name, constants) for name in names}
        if "error_class" in self._schema.names:
            columns |= {name: self._column((name,), {}) for name in ("error_class", "error")}
        columns["wanted"] = condition
        number = 0
        for batch in self._open(path).to_batches(columns=columns, use_threads=False):
            for index, hit in enumerate(batch.column("wanted").to_pylist()):
                if hit:
                    row = {name: batch.column(name)[index].as_py() for name in columns}
                    error = f"{row['error_class']}: {row['error']}" if "error" in row else ""
                    yield FoundRow(
                        row["topic"], row["partition"], row["offset"], path, number + index,
                        commit, error,
                    )  # fmt: skip
            number += batch.num_rows
