"""JSON values -> columns, a block at a time; rows that cannot be decoded are reported apart.

A whole block is parsed by Arrow at once. When that fails, or gives another number of rows, the
block is halved until the bad rows stand alone. Before that, every value is seen to be one line that
begins with `{`: Arrow takes concatenated and empty lines, and a lone `null` crashes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from lakemq.spark_plugin.export.decoding.arrow_types import arrow_type, convert, type_of_arrow
from lakemq.spark_plugin.export.decoding.column_types import REST, Type, decimal_digits
from lakemq.spark_plugin.export.decoding.decoder import (
    ERROR_CHARS_MAX,
    BadRow,
    Decoded,
    utf8_only,
    without_frames,
)
from lakemq.spark_plugin.export.decoding.evolution import (
    evolve,
    merge_found,
    needed_type,
    type_of_value,
    unknown_part,
)
from lakemq.spark_plugin.export.decoding.rest import has_rest, rest_of, rest_texts

if TYPE_CHECKING:
    import pyarrow as pa

_PLAIN: Final = r"^[ \t\r]*\{[^\n]*$"
_SEVERAL: Final = "values in one record"
_CHECKED_ROWS_MAX: Final = 256
_DEPTH_MAX: Final = 100
"""Levels of a value whose fields become columns; Arrow follows deeper ones until it has no stack
left."""
_STRUCTURE: Final = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[\]{}]')
_LOOKED_AT_ROWS_MAX: Final = 1000
_INTEGERS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64, "timestamp_ms": 64}
"""Bits of the whole-number types."""


class JsonDecoder:
    """Decodes values by a column list (`column_types.parse_schema`)."""

    def __init__(
        self, columns: Sequence[tuple[str, Type]], *, find_new: bool = False, widen: bool = False
    ) -> None:
        """`find_new`: look for fields that the columns do not name, too; `widen`: and for values
        that need a wider type of their column's kind. A column `_rest` of text takes what the
        others have no place for."""
        import pyarrow as pa

        self._has_rest = (REST, Type("string")) in columns
        self._columns = tuple(each for each in columns if not self._has_rest or each[0] != REST)
        self._find_new = find_new
        self._widen = widen
        self.found: dict[str, Type] = {}
        self.schema = pa.schema([(name, arrow_type(kind)) for name, kind in columns])
        parsed = [(name, _parsed_type(kind)) for name, kind in self._columns]
        # Without any column Arrow would not say how many rows there were. The name is one that no
        # record has, so that the column stays null.
        self._parsed_schema = pa.schema(parsed or [("\0", pa.null())])

    def decode(self, values: pa.Array, keys: pa.Array | None = None) -> Decoded:
        """`values`: binary. Every row is either in `rows` or in `bad`."""
        import pyarrow as pa

        bad: dict[int, BadRow] = {}
        lines = self._lines(values, bad)
        rows = [row for row in range(len(values)) if row not in bad] if bad else None
        numbers = pa.array(range(len(values)) if rows is None else rows, pa.int64())
        if rows is not None:
            lines = lines.take(numbers)
        tables = self._parse(lines, numbers, bad)
        columns = pa.concat_tables(tables) if tables else self.schema.empty_table()
        kept = numbers
        if len(columns) != len(numbers):
            kept = pa.array([row for row in numbers.to_pylist() if row not in bad], pa.int64())
        return Decoded(kept, columns, [bad[row] for row in sorted(bad)])

    def _lines(self, values: pa.Array, bad: dict[int, BadRow]) -> pa.Array:
        """The values as text of one line each; what is not a JSON object goes to `bad`."""
        import pyarrow as pa
        from pyarrow import compute

        values = without_frames(values)
        try:
            text = values.cast(pa.string())
        except pa.ArrowInvalid:
            text = utf8_only(values, bad)
        if self._find_new:
            # Inferring columns recurses over nested values: Arrow would overflow the stack of the
            # whole process.
            text = _without_deep_ones(text, bad)
        plain = compute.match_substring_regex(text, _PLAIN)
        # Nearly always: one regular expression over the block, and no value becomes a Python
        # object.
        if compute.all(plain, skip_nulls=False).as_py():
            return text
        lines = text.to_pylist()
        for row in compute.indices_nonzero(compute.invert(compute.fill_null(plain, False))):
            number = row.as_py()
            if number not in bad:
                lines[number] = _one_line(number, lines[number], bad)
        return pa.array(lines, pa.string())

    def _parse(self, lines: pa.Array, rows: pa.Array, bad: dict[int, BadRow]) -> list[pa.Table]:
        """Tables of the good lines, in order; `rows` are the numbers of the lines."""
        import pyarrow as pa

        if not len(lines):
            return []
        error = ""
        try:
            table = self._parse_block(lines)
            # Else a value held several objects: rows would no longer match their records.
            if table.num_rows == len(lines):
                return [table]
            error = f"{table.num_rows} {_SEVERAL}"
        except (pa.ArrowInvalid, UnicodeDecodeError) as problem:
            error = str(problem).split(" in row ")[0]
        if len(lines) == 1:
            row = rows[0].as_py()
            bad[row] = BadRow(row, _error_class(error), error[:ERROR_CHARS_MAX])
            self._note_needed(lines[0].as_py())
            return []
        # Arrow does not say which row failed. Halving finds it in a logarithmic number of parses;
        # small blocks are looked through row by row.
        if len(lines) <= _CHECKED_ROWS_MAX:
            kept = self._without_mismatches(lines, rows, bad)
            if len(kept) < len(lines):
                return self._parse(lines.take(kept), rows.take(kept), bad)
        half = len(lines) // 2
        return [
            *self._parse(lines.slice(0, half), rows.slice(0, half), bad),
            *self._parse(lines.slice(half), rows.slice(half), bad),
        ]

    def _without_mismatches(
        self, lines: pa.Array, rows: pa.Array, bad: dict[int, BadRow]
    ) -> pa.Array:
        """Places of the lines that may be good. Halving is slow where many rows are bad, so values
        that are plainly of another kind than their column are sorted out one by one."""
        import pyarrow as pa

        kept = []
        for index, (line, row) in enumerate(zip(lines.to_pylist(), rows.to_pylist(), strict=True)):
            error = _mismatch_in(line, self._columns)
            if error:
                bad[row] = BadRow(row, "wrong_type", error)
                self._note_needed(line)
            else:
                kept.append(index)
        return pa.array(kept, pa.int64())

    def _note_needed(self, line: str) -> None:
        """Note, of a record that its columns can't hold, the types that they must grow to."""
        if not self._widen:
            return
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            return
        self._note(needed_type(Type("struct", self._columns), value))

    def has_new_fields(self) -> bool:
        """Whether a field was seen that could become a column, or make one grow."""
        return evolve(self._columns, self.found, widen=self._widen) != self._columns

    def _parse_block(self, lines: pa.Array) -> pa.Table:
        import pyarrow as pa

        table, has_more = self._read(lines)
        columns = {
            name: convert(table.column(name), kind, self.schema.field(name).type)
            for name, kind in self._columns
        }
        if self._has_rest:
            texts = rest_texts(self._columns, lines.to_pylist()) if has_more else None
            columns[REST] = pa.array(texts or [None] * table.num_rows, pa.string())
        return pa.table([columns[name] for name in self.schema.names], schema=self.schema)

    def _read(self, lines: pa.Array) -> tuple[pa.Table, bool]:
        """The lines parsed, with columns that are not known too if those are looked for; and
        whether records have more than the columns."""
        import pyarrow as pa

        if not self._find_new and not self._has_rest:
            return self._read_json(lines, "ignore"), False
        known = Type("struct", self._columns)
        try:
            # One pass that infers everything; only if it fails are unknown fields looked at value
            # by value.
            table = self._read_json(lines, "infer")
        except pa.ArrowInvalid:
            # Perhaps only because a field that is not known has values of several types.
            table = self._read_json(lines, "ignore")
            if self._find_new:
                self._look_at(lines)
            return table, True
        seen = pa.struct(list(table.schema))
        has_more = has_rest(known, seen)
        if self._find_new and has_more:
            self._note(type_of_arrow(seen))
            if not self._has_rest and has_rest(self._grown(), seen):
                self.found[REST] = Type("string")
        return table, has_more

    def _grown(self) -> Type:
        """A record with the columns that could be made of what was found."""
        return Type("struct", evolve(self._columns, self.found, widen=self._widen))

    def _look_at(self, lines: pa.Array) -> None:
        """Note what the columns lack for records of which one field may have several types."""
        known = Type("struct", self._columns)
        # The first rows are enough: what others add is found when the range is read again.
        for line in lines.slice(0, _LOOKED_AT_ROWS_MAX).to_pylist():
            self._note(unknown_part(known, type_of_value(json.loads(line))))
        if not self._has_rest:
            grown = self._grown()
            if any(rest_of(grown, json.loads(line)) is not None for line in lines.to_pylist()):
                self.found[REST] = Type("string")

    def _note(self, record: Type | None) -> None:
        if record is not None:
            self.found = merge_found(self.found, dict(record.fields))

    def _read_json(self, lines: pa.Array, unknown: str) -> pa.Table:
        import pyarrow as pa
        from pyarrow import compute
        from pyarrow import json as arrow_json

        one = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
        joined = compute.binary_join(one, "\n")[0].as_buffer()
        return arrow_json.read_json(
            pa.BufferReader(joined),
            # One block: Arrow infers the types of each block apart, and a row could be cut at its
            # end.
            read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(joined) + 1),
            parse_options=arrow_json.ParseOptions(
                explicit_schema=self._parsed_schema, unexpected_field_behavior=unknown
            ),
        )


def _parsed_type(kind: Type) -> pa.DataType:
    """The type that Arrow's parser is asked for."""
    import pyarrow as pa

    parsed = {"date": pa.string(), "timestamp_ms": pa.int64(), "timestamp_s": pa.float64()}
    return parsed.get(kind.name) or arrow_type(kind)


def _without_deep_ones(text: pa.Array, bad: dict[int, BadRow]) -> pa.Array:
    """The values, with null for those of too many levels, which go to `bad`."""
    import pyarrow as pa
    from pyarrow import compute

    # Counted over the block first, brackets within strings too: only the few suspects are scanned
    # in Python.
    opened = compute.add(compute.count_substring(text, "{"), compute.count_substring(text, "["))
    suspects = compute.indices_nonzero(
        compute.fill_null(compute.greater(opened, _DEPTH_MAX), False)
    )
    deep = [row for row in suspects.to_pylist() if _depth(text[row].as_py()) > _DEPTH_MAX]
    if not deep:
        return text
    lines = text.to_pylist()
    for row in deep:
        lines[row] = None
        bad[row] = BadRow(row, "not_json", f"more than {_DEPTH_MAX} levels")
    return pa.array(lines, pa.string())


def _depth(text: str) -> int:
    """How many brackets are open at a time, outside of strings."""
    depth = deepest = 0
    for token in _STRUCTURE.findall(text):
        if token in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif token in "]}":
            depth -= 1
    return deepest


def _one_line(row: int, text: str | None, bad: dict[int, BadRow]) -> str | None:
    """A value that isn't plainly an object on one line: pretty-printed, or no object at all."""
    if text is None:
        bad[row] = BadRow(row, "null_value", "the record has no value")
        return None
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        bad[row] = BadRow(row, "not_json", str(error) or type(error).__name__)
        return None
    if not isinstance(value, dict):
        bad[row] = BadRow(row, "not_json", f"a JSON object is wanted, not {type(value).__name__}")
        return None
    return json.dumps(value)


def _error_class(error: str) -> str:
    if " changed from " in error:
        return "wrong_type"
    syntax = error.startswith("JSON parse error") or error.endswith(_SEVERAL)
    return "not_json" if syntax else "wrong_type"


def _mismatch_in(line: str, columns: Sequence[tuple[str, Type]]) -> str:
    """The first field whose JSON kind its column surely can't hold; empty if there is none.

    Careful by design: what is only maybe wrong is left to Arrow's parser.
    """
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(value, dict):
        return ""
    for name, kind in columns:
        error = _mismatch(name, value.get(name), kind)
        if error:
            return error
    return ""


def _mismatch(name: str, value: Any, kind: Type) -> str:
    if value is None:
        return ""
    if kind.name == "struct" and isinstance(value, dict):
        errors = (_mismatch(f"{name}.{each}", value.get(each), of) for each, of in kind.fields)
        return next(filter(None, errors), "")
    if kind.name == "array" and isinstance(value, list):
        errors = (_mismatch(f"{name}[]", each, kind.fields[0][1]) for each in value)
        return next(filter(None, errors), "")
    if _fits(value, kind.name):
        return ""
    return f"{name} is {kind.name}; {json.dumps(value)[:80]} is not"


def _fits(value: Any, kind: str) -> bool:
    """Whether a JSON value may be of a scalar type."""
    if kind in _INTEGERS:
        limit = 1 << (_INTEGERS[kind] - 1)
        # `type`, for a bool is an int to isinstance.
        return type(value) is int and -limit <= value < limit
    if kind in ("float", "double", "timestamp_s"):
        return type(value) in (int, float)
    if decimal_digits(kind) is not None:
        return type(value) in (int, float, str)
    return isinstance(value, bool if kind == "boolean" else str)
