"""Partitioning of tables: `day(timestamp), device` -> which rows share a file.

    --partition-by   field {, field}
    field            day(column) | hour(column) | month(column) | column

Iceberg keeps the transforms (hidden partitioning). Delta and plain Parquet get a column for each
that is not a column already: `day(timestamp)` makes `timestamp_day` (date), `hour(...)` makes
`..._hour` and `month(...)` makes `..._month` (text, `2026-11-21 13` and `2026-11`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from lakemq.spark_plugin.errors import OptionError
from lakemq.spark_plugin.source.options import nearest

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

_SPANS: Final = {"day": "datetime64[D]", "hour": "datetime64[h]", "month": "datetime64[M]"}
_FIELD: Final = re.compile(r"(?:(\w+)\s*\(\s*([\w.]+)\s*\))|([\w.]+)")
Values = tuple[str | None, ...]
"""One value for each field, as text; None: null."""


class PartitionField(NamedTuple):
    """One field of a partitioning."""

    transform: str
    """`day`, `hour`, `month` or `identity`."""
    source: str
    """Column of the table; `a.b` for field b of struct a."""

    @property
    def name(self) -> str:
        """Column of the partition value."""
        column = self.source.replace(".", "_")
        return self.source if self.transform == "identity" else f"{column}_{self.transform}"


def parse_partition_by(text: str) -> tuple[PartitionField, ...]:
    """Text of `--partition-by` -> fields. OptionError says what is wrong."""
    found = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        match = _FIELD.fullmatch(part)
        if match is None:
            raise OptionError(f"--partition-by: {part!r} is neither column nor day(column)")
        transform, inner, column = match.groups()
        if transform is not None and transform.lower() not in _SPANS:
            raise OptionError(
                f"--partition-by: there is no {transform}(){nearest(transform, tuple(_SPANS))}; "
                f"there are {', '.join(_SPANS)}"
            )
        name = transform.lower() if transform else "identity"
        found.append(PartitionField(name, inner or column))
    names = [field.name for field in found]
    if len(set(names)) < len(names):
        raise OptionError(f"--partition-by: {', '.join(names)}: a field is there twice")
    return tuple(found)


def partition_text(names: Sequence[str], schema: pa.Schema) -> str:
    """`--partition-by` as it was given for a table that has a column for each partition value."""
    made = {
        field.name: f"{field.transform}({field.source})"
        for source in _time_columns(schema)
        for field in (PartitionField(transform, source) for transform in _SPANS)
    }
    return ", ".join(made.get(name, name) for name in names)


def _time_columns(fields: Iterable[pa.Field], prefix: str = "") -> Iterator[str]:
    import pyarrow as pa

    for field in fields:
        if pa.types.is_struct(field.type):
            yield from _time_columns(field.type, f"{prefix}{field.name}.")
        elif pa.types.is_timestamp(field.type) or pa.types.is_date(field.type):
            yield f"{prefix}{field.name}"


def check_partitioning(fields: Sequence[PartitionField], schema: pa.Schema) -> None:
    """OptionError unless the table's columns can be partitioned by."""
    import pyarrow as pa

    for field in fields:
        kind = _type_of(schema, field.source)
        if kind is None:
            raise OptionError(f"--partition-by: there is no column {field.source}")
        is_time = pa.types.is_timestamp(kind) or (
            pa.types.is_date(kind) and field.transform != "hour"
        )
        if field.transform in _SPANS and not is_time:
            raise OptionError(f"--partition-by: {field.source} is {kind}, no time")
        plain = pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_date(kind)
        if field.transform == "identity" and ("." in field.source or not plain):
            raise OptionError(
                f"--partition-by: {field.source} is {kind}; text, whole numbers and dates of the "
                "table itself can be partitioned by"
            )


def _type_of(schema: pa.Schema, source: str) -> pa.DataType | None:
    import pyarrow as pa

    first, *inner = source.split(".")
    if first not in schema.names:
        return None
    kind = schema.field(first).type
    for name in inner:
        if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
            return None
        kind = kind.field(name).type
    return kind


def with_partition_columns(schema: pa.Schema, fields: Sequence[PartitionField]) -> pa.Schema:
    """The schema of a table that has columns for its partition values."""
    import pyarrow as pa

    for field in fields:
        if field.transform != "identity":
            kind = pa.date32() if field.transform == "day" else pa.string()
            schema = schema.append(pa.field(field.name, kind))
    return schema


def split(table: pa.Table, fields: Sequence[PartitionField]) -> Iterator[tuple[Values, pa.Table]]:
    """The rows by their partition values; order within each is kept."""
    import numpy as np
    import pyarrow as pa

    codes_of_rows = np.zeros(table.num_rows, dtype=np.int64)
    known: list[Values] = [()]
    for field in fields:
        codes, texts = _codes(table, field)
        # Field by field, codes are combined to one number for each combination that occurs, so
        # memory grows with these and not with their product.
        both, codes_of_rows = np.unique(codes_of_rows * len(texts) + codes, return_inverse=True)
        known = [(*known[pair // len(texts)], texts[pair % len(texts)]) for pair in both.tolist()]
    # The usual case: records of one range are close in time. No copy.
    if len(known) == 1:
        yield known[0], table
        return
    for number, values in enumerate(known):
        yield values, table.filter(pa.array(codes_of_rows == number))


def _codes(
    table: pa.Table, field: PartitionField
) -> tuple[npt.NDArray[np.int64], list[str | None]]:
    """Of every row, the index of the field's value in a list of texts."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import compute

    first, *inner = field.source.split(".")
    column = table.column(first)
    for name in inner:
        column = compute.struct_field(column, name)
    if field.transform == "identity":
        coded = column.combine_chunks().dictionary_encode()
        texts = [*coded.dictionary.cast(pa.string()).to_pylist(), None]
        return coded.indices.fill_null(len(texts) - 1).to_numpy().astype(np.int64), texts
    micros = column.cast(pa.timestamp("us")).cast(pa.int64())
    absent = micros.is_null().to_numpy()
    times = micros.fill_null(0).to_numpy().astype("datetime64[us]")
    spans, codes = np.unique(times.astype(_SPANS[field.transform]), return_inverse=True)
    texts = [str(span).replace("T", " ") for span in spans]
    if absent.any():
        codes = np.where(absent, len(texts), codes)
        texts = [*texts, None]
    return codes.astype(np.int64), texts


def partition_columns(
    table: pa.Table, fields: Sequence[PartitionField], values: Values
) -> pa.Table:
    """The rows with the columns that plain Parquet keeps for partition values."""
    import pyarrow as pa

    for field, value in zip(fields, values, strict=True):
        if field.transform != "identity":
            kind = pa.date32() if field.transform == "day" else pa.string()
            scalar = pa.scalar(value, pa.string()).cast(kind)
            table = table.append_column(field.name, pa.repeat(scalar, table.num_rows))
    return table
