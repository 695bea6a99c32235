"""The columns that an export adds to decoded rows, and the dead-letter table's. No IO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from spark_plugin.export.json_schema import META

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_plugin.export.decode import BadRow

_META_FIELDS = ("topic", "partition", "offset", "timestamp", "key")


def _field_types() -> dict[str, pa.DataType]:
    from plugins.native.sdk.arrow import arrow_schema

    schema = arrow_schema()
    return {field.name: field.type for field in schema}


def with_meta(schema: pa.Schema) -> pa.Schema:
    """A decoded schema and `_meta`: where in the journal each row came from."""
    import pyarrow as pa

    types = _field_types()
    meta = pa.struct([(name, types[name]) for name in _META_FIELDS])
    return schema.append(pa.field(META, meta))


def meta_column(batch: pa.RecordBatch) -> pa.Array:
    """`_meta` of the rows of a batch with the journal's columns."""
    import pyarrow as pa

    return pa.StructArray.from_arrays(
        [batch.column(name) for name in _META_FIELDS], names=list(_META_FIELDS)
    )


def dead_letter_schema() -> pa.Schema:
    """Bad rows: the record as it was, and why it could not be decoded."""
    import pyarrow as pa

    types = _field_types()
    return pa.schema(
        [
            ("topic", pa.string()), ("topic_id", pa.string()), ("partition", types["partition"]),
            ("offset", types["offset"]), ("timestamp", types["timestamp"]), ("key", types["key"]),
            ("value", types["value"]), ("headers", types["headers"]),
            ("error_class", pa.string()), ("error", pa.string()),
        ]
    )  # fmt: skip


def dead_letter_rows(batch: pa.RecordBatch, bad: Sequence[BadRow], topic_id: str) -> pa.Table:
    """Dead letters of a batch with the journal's columns."""
    import pyarrow as pa

    table = pa.Table.from_batches([batch.take(pa.array([each.row for each in bad], pa.int64()))])
    return (
        table.append_column("topic_id", pa.array([topic_id] * len(bad), pa.string()))
        .append_column("error_class", pa.array([each.error_class for each in bad], pa.string()))
        .append_column("error", pa.array([each.error for each in bad], pa.string()))
    )
