"""The columns that an export adds to decoded rows, and the dead-letter table's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lakemq.spark_plugin.export.decoding.column_types import META

if TYPE_CHECKING:
    import pyarrow as pa

    from lakemq.spark_plugin.export.decoding.decoder import BadRow, Decoded

PART = "part"
"""Field of `_meta`: number of the row among those of its record, from 0."""
_META_FIELDS = ("topic", "partition", "offset", "timestamp", "key")


def _field_types() -> dict[str, pa.DataType]:
    from lakemq.plugins.native.sdk.arrow import arrow_schema

    schema = arrow_schema()
    return {field.name: field.type for field in schema}


def with_meta(schema: pa.Schema, parts: bool = False) -> pa.Schema:
    """A decoded schema and `_meta`: where in the journal each row came from. With `parts` also
    which of its record's rows it is."""
    import pyarrow as pa

    types = _field_types()
    fields = [(name, types[name]) for name in _META_FIELDS]
    meta = pa.struct([*fields, (PART, pa.int32())] if parts else fields)
    return schema.append(pa.field(META, meta))


def with_meta_column(decoded: Decoded, batch: pa.RecordBatch, parts: bool = False) -> pa.Table:
    """The decoded rows with their `_meta`; `batch` holds the journal's columns of all rows."""
    import pyarrow as pa

    one_each = not parts and len(decoded.rows) == batch.num_rows
    good = batch if one_each else batch.take(decoded.rows)
    part = None
    if parts:
        rows = decoded.rows.to_numpy()
        first = np.searchsorted(rows, rows)  # of the row's own record
        part = pa.array((np.arange(len(rows)) - first).astype(np.int32))
    return decoded.columns.append_column(META, meta_column(good, part))


def meta_column(batch: pa.RecordBatch, part: pa.Array | None = None) -> pa.StructArray:
    """`_meta` of every record of a batch; `part` numbers the rows of their record."""
    import pyarrow as pa

    arrays, names = [batch.column(name) for name in _META_FIELDS], list(_META_FIELDS)
    if part is not None:
        arrays.append(part)
        names.append(PART)
    return pa.StructArray.from_arrays(arrays, names=names)


def dead_letter_schema() -> pa.Schema:
    """Bad rows: the record as it was, and why it could not be decoded."""
    import pyarrow as pa

    types = _field_types()
    return pa.schema(
        [
            ("topic", pa.string()),
            ("topic_id", pa.string()),
            ("partition", types["partition"]),
            ("offset", types["offset"]),
            ("timestamp", types["timestamp"]),
            ("key", types["key"]),
            ("value", types["value"]),
            ("headers", types["headers"]),
            ("error_class", pa.string()),
            ("error", pa.string()),
        ]
    )


def dead_letter_rows(batch: pa.RecordBatch, bad: Sequence[BadRow], topic_id: str) -> pa.Table:
    """Dead letters of a batch with the journal's columns."""
    import pyarrow as pa

    table = pa.Table.from_batches([batch.take(pa.array([each.row for each in bad], pa.int64()))])
    return (
        table.append_column("topic_id", pa.array([topic_id] * len(bad), pa.string()))
        .append_column("error_class", pa.array([each.error_class for each in bad], pa.string()))
        .append_column("error", pa.array([each.error for each in bad], pa.string()))
    )
