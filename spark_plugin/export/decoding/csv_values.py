"""CSV values -> columns: every record is one line of the columns, without a header line.

A block is parsed by Arrow at once, and halved where that fails until the bad rows stand alone, as
with JSON. Values that could run into their neighbours (line breaks, an odd number of quotes) are
parsed one by one. An empty field that is not quoted is null.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from lakemq.spark_plugin.errors import OptionError
from lakemq.spark_plugin.export.decoding.arrow_types import arrow_type, convert
from lakemq.spark_plugin.export.decoding.column_types import Type
from lakemq.spark_plugin.export.decoding.decoder import ERROR_CHARS_MAX, BadRow, Decoded, utf8_only

if TYPE_CHECKING:
    import pyarrow as pa

_ROW: Final = re.compile(r"Row #\d+: ")
_ZONE: Final = r"(Z|[+-]\d\d(:?\d\d)?)$"


class CsvDecoder:
    """Decodes values by a column list of scalar types."""

    def __init__(self, columns: Sequence[tuple[str, Type]], *, delimiter: str = ",") -> None:
        """OptionError for a column that no CSV field can hold."""
        import pyarrow as pa

        for name, kind in columns:
            if kind.fields:
                raise OptionError(f"--schema: column {name} is {kind.name}; CSV has no such field")
        self._columns = tuple(columns)
        self._delimiter = delimiter
        self.found: dict[str, Type] = {}
        self.schema = pa.schema([(name, arrow_type(kind)) for name, kind in columns])
        parsed = {"timestamp": pa.string(), "timestamp_ms": pa.int64(), "timestamp_s": pa.float64()}
        self._parsed = {
            name: parsed.get(kind.name) or arrow_type(kind) for name, kind in self._columns
        }

    def has_new_fields(self) -> bool:
        """Always False: the schema that was given fixes the columns, so a value adds none."""
        return False

    def decode(self, values: pa.Array, keys: pa.Array | None = None) -> Decoded:
        """`values`: binary. Every row is either in `rows` or in `bad`."""
        import pyarrow as pa
        from pyarrow import compute

        bad: dict[int, BadRow] = {}
        try:
            text = values.cast(pa.string())
        except pa.ArrowInvalid:
            text = utf8_only(values, bad)
        for row in compute.indices_nonzero(text.is_null()).to_pylist():
            bad.setdefault(row, BadRow(row, "null_value", "the record has no value"))
        text = compute.utf8_rtrim(text, "\r\n")
        if len(self._columns) > 1:
            for row in compute.indices_nonzero(compute.equal(text, "")).to_pylist():
                bad[row] = BadRow(row, "not_csv", "an empty line")
        text = (
            compute.if_else(pa.array([row in bad for row in range(len(text))]), None, text)
            if bad
            else text
        )
        quotes = compute.count_substring(text, '"')
        # An open quote would swallow the records behind it: such a record is parsed alone.
        odd = compute.not_equal(compute.bit_wise_and(quotes, 1), 0)
        alone = compute.or_(compute.match_substring(text, "\n"), odd)
        tables: list[tuple[pa.Array, pa.Table]] = []
        self._parse(text, compute.indices_nonzero(compute.invert(alone)), bad, tables)
        for row in compute.indices_nonzero(alone):
            self._parse(text, pa.array([row.as_py()], pa.uint64()), bad, tables)
        return _in_order(tables, self.schema, bad)

    def _parse(
        self,
        text: pa.Array,
        rows: pa.Array,
        bad: dict[int, BadRow],
        tables: list[tuple[pa.Array, pa.Table]],
    ) -> None:
        import pyarrow as pa

        if not len(rows):
            return
        try:
            table = self._parse_block(text.take(rows))
            if table.num_rows == len(rows):
                tables.append((rows, table))
                return
            error = f"{table.num_rows} lines in one record"
        except (pa.ArrowInvalid, pa.ArrowKeyError) as problem:
            error = str(problem)
        if len(rows) == 1:
            row = rows[0].as_py()
            kind = "wrong_type" if "conversion error" in error or "large" in error else "not_csv"
            bad[row] = BadRow(row, kind, _ROW.sub("", error)[:ERROR_CHARS_MAX])
            return
        # Halving finds the bad rows, since Arrow's row numbers count lines and not records.
        half = len(rows) // 2
        self._parse(text, rows.slice(0, half), bad, tables)
        self._parse(text, rows.slice(half), bad, tables)

    def _parse_block(self, lines: pa.Array) -> pa.Table:
        import pyarrow as pa

        table = read_csv(lines, self._delimiter, list(self._parsed), self._parsed)
        columns = []
        for name, kind in self._columns:
            column = table.column(name)
            if kind.name == "timestamp":
                column = _in_utc(column)
            columns.append(convert(column, kind, self.schema.field(name).type))
        return pa.table(columns, schema=self.schema)


def read_csv(
    lines: pa.Array, delimiter: str, names: Sequence[str] = (), types: Any = None
) -> pa.Table:
    """Lines -> a table; without names, columns `_c0`, `_c1`, ... with the types that fit."""
    import pyarrow as pa
    from pyarrow import compute, csv

    one = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
    joined = compute.binary_join(one, "\n")[0].as_buffer()
    table = csv.read_csv(
        pa.BufferReader(joined.to_pybytes() + b"\n"),
        read_options=csv.ReadOptions(
            use_threads=False,
            block_size=len(joined) + 2,
            column_names=list(names) or None,
            autogenerate_column_names=not names,
        ),
        parse_options=csv.ParseOptions(
            delimiter=delimiter, newlines_in_values=len(lines) == 1, ignore_empty_lines=False
        ),
        convert_options=csv.ConvertOptions(
            column_types=types,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    if names:
        return table
    return table.rename_columns([f"_c{index}" for index in range(table.num_columns)])


def _in_utc(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text of times, with a zone where it names none."""
    import pyarrow as pa
    from pyarrow import compute

    text = compute.utf8_trim_whitespace(column)
    clock = compute.if_else(compute.equal(compute.utf8_length(text), 10), "T00:00:00", "")
    timed = compute.binary_join_element_wise(text, clock, "")
    zoned = compute.match_substring_regex(compute.utf8_slice_codeunits(timed, 10), _ZONE)
    zone = compute.if_else(zoned, "", "Z")
    return compute.binary_join_element_wise(timed, zone, "").cast(pa.timestamp("us", tz="UTC"))


def _in_order(
    tables: list[tuple[pa.Array, pa.Table]], schema: pa.Schema, bad: dict[int, BadRow]
) -> Decoded:
    import pyarrow as pa
    from pyarrow import compute

    failed = [bad[row] for row in sorted(bad)]
    if not tables:
        return Decoded(pa.array([], pa.int64()), schema.empty_table(), failed)
    rows = pa.concat_arrays([rows.cast(pa.int64()) for rows, _ in tables])
    columns = pa.concat_tables([table for _, table in tables])
    order = compute.sort_indices(rows)
    return Decoded(rows.take(order), columns.take(order), failed)
