"""What every decoder of values gives: columns of the good rows, and which rows are bad."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, runtime_checkable

from lakemq.spark_plugin.export.decoding.column_types import Type

if TYPE_CHECKING:
    import pyarrow as pa

ERROR_CHARS_MAX: Final = 300
FRAME_BYTES: Final = 5


class BadRow(NamedTuple):
    """A row that can't be decoded."""

    row: int
    error_class: str
    """`null_value`, `not_utf8`, `wrong_type`, or `not_` and the name of the format."""
    error: str


class Decoded(NamedTuple):
    """Outcome for a block."""

    rows: pa.Array
    """Numbers of the good ones, ascending (int64); one that makes several rows comes as often."""
    columns: pa.Table
    """Their columns, in the order of the schema."""
    bad: list[BadRow]


class Decoder(Protocol):
    """Decodes the values of one topic, block by block."""

    schema: pa.Schema
    """Columns of what it decodes to."""
    found: dict[str, Type]
    """Fields that were seen and that the schema has no column for, or too narrow a one."""

    def decode(self, values: pa.Array, keys: pa.Array | None = None) -> Decoded:
        """`values`, `keys`: binary. Every row is either in `rows` or in `bad`."""

    def has_new_fields(self) -> bool:
        """Whether something was found that could change the columns."""


@runtime_checkable
class RecordDecoder(Protocol):
    """A decoder that looks at more of a record than its value and key."""

    def decode_records(self, batch: pa.RecordBatch) -> Decoded:
        """`batch` has the journal's columns, its records come in the order of each partition."""


def decode_batch(decoder: Decoder, batch: pa.RecordBatch) -> Decoded:
    """Decode records; `batch` has the journal's columns."""
    if isinstance(decoder, RecordDecoder):
        return decoder.decode_records(batch)
    return decoder.decode(batch.column("value"), batch.column("key"))


def without_frames(values: pa.Array) -> pa.Array:
    """Binary values without the frame of a schema registry (0 and the schema's id, `framed` of
    broker_core.api.schemas), where they have one. For formats no value of which begins with 0."""
    import pyarrow as pa
    from pyarrow import compute

    if not compute.any(compute.starts_with(values, b"\0")).as_py():
        return values
    # One by one: without a stop Arrow's binary_slice fails ("Negative buffer resize").
    cells = values.to_pylist()
    return pa.array(
        [cell[FRAME_BYTES:] if cell and not cell[0] else cell for cell in cells], values.type
    )


def decode_each(
    values: pa.Array, error_class: str, decode: Callable[[bytes], object]
) -> tuple[list[int], list[object], list[BadRow]]:
    """Decode value by value: (row numbers, objects, bad rows). Whatever a parser raises for a value
    makes that one row bad."""
    rows: list[int] = []
    objects: list[object] = []
    bad: list[BadRow] = []
    for row, value in enumerate(values.to_pylist()):
        if value is None:
            bad.append(BadRow(row, "null_value", "the record has no value"))
            continue
        try:
            objects.append(decode(value))
            rows.append(row)
        except Exception as error:  # parsers raise whatever they stumble over
            text = f"{error}" or type(error).__name__
            bad.append(BadRow(row, error_class, text[:ERROR_CHARS_MAX]))
    return rows, objects, bad


def to_columns(
    objects: Sequence[object],
    rows: list[int],
    bad: list[BadRow],
    schema: pa.Schema,
    parsed: pa.DataType,
) -> Decoded:
    """Objects (dicts) -> columns: as `parsed` first, which may name times in other units. An object
    that does not fit makes its row bad."""
    import pyarrow as pa

    wanted = pa.struct(list(schema))
    try:
        # All at once; one by one only if that fails, to find out which.
        whole = pa.array(objects, parsed).cast(wanted)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        errors: dict[int, str] = {}
        for row, each in zip(rows, objects, strict=True):
            try:
                pa.array([each], parsed).cast(wanted)
            except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
                errors[row] = str(error)[:ERROR_CHARS_MAX]
        bad += [BadRow(row, "wrong_type", error) for row, error in errors.items()]
        good = [each for row, each in zip(rows, objects, strict=True) if row not in errors]
        rows = [row for row in rows if row not in errors]
        whole = pa.array(good, parsed).cast(wanted)
    columns = pa.Table.from_arrays(
        [whole.field(index) for index in range(wanted.num_fields)], schema=schema
    )
    return Decoded(pa.array(rows, pa.int64()), columns, sorted(bad))


def utf8_only(values: pa.Array, bad: dict[int, BadRow]) -> pa.Array:
    """Binary as text; values that are not UTF-8 become null and go to `bad`."""
    import pyarrow as pa

    found: list[str | None] = []
    for row, value in enumerate(values.to_pylist()):
        try:
            found.append(None if value is None else value.decode())
        except UnicodeDecodeError as error:
            found.append(None)
            bad[row] = BadRow(row, "not_utf8", f"not UTF-8: {error.reason} at byte {error.start}")
    return pa.array(found, pa.string())
