"""Rows of a DataFrame -> what is produced: topic, partition, columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakemq.spark_plugin.errors import OptionError
from lakemq.spark_plugin.source.options import nearest

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final = ("topic", "partition", "key", "value", "headers", "timestamp")
_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "topic": ("string",),
    "partition": ("int", "smallint", "tinyint"),
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "timestamp": ("timestamp",),
}


class Share(NamedTuple):
    """Rows of one topic, and of one partition if the rows name it."""

    topic: str
    partition: int | None
    rows: pa.RecordBatch
    """Columns value, and key, headers, timestamp as far as they are there."""


def check_columns(columns: Sequence[tuple[str, str]], topic: str) -> None:
    """`columns`: (name, Spark's simple type). OptionError unless they can be produced."""
    names = [name for name, _ in columns]
    for name, kind in columns:
        if name not in _TYPES:
            raise OptionError(
                f"there is no column {name} in a record{nearest(name, COLUMNS)}; the sink takes "
                f"{', '.join(COLUMNS)}"
            )
        if kind.replace(" ", "") not in _TYPES[name]:
            raise OptionError(
                f"column {name} is {kind}; the sink takes {' or '.join(_TYPES[name])}"
            )
    if "value" not in names:
        raise OptionError("the rows have no column value")
    if not topic and "topic" not in names:
        raise OptionError("say where to: option topic, or a column topic")


def shares(batch: pa.RecordBatch, topic: str, now_ms: int) -> Iterator[Share]:
    """The rows by topic and partition, in their order within each. Option `topic` goes before the
    column, as in Spark's Kafka sink. ValueError for a row that says no topic."""
    import pyarrow as pa

    for name, of_topic in _by(batch, "topic") if not topic else [(topic, batch)]:
        if name is None:
            raise ValueError("a row has no topic, and there is no option topic")
        for partition, rows in _by(of_topic, "partition"):
            kept = [each for each in rows.schema.names if each not in ("topic", "partition")]
            rows = rows.select(kept)
            if "timestamp" in kept and rows.column("timestamp").null_count:
                index = kept.index("timestamp")
                column = rows.column(index)
                now = pa.scalar(1000 * now_ms, pa.int64()).cast(column.type)
                rows = rows.set_column(index, "timestamp", column.fill_null(now))
            yield Share(name, partition, rows)


def _by(batch: pa.RecordBatch, name: str) -> Iterator[tuple[Any, pa.RecordBatch]]:
    """(value, its rows) of a column; everything under None if there is no such column."""
    from pyarrow import compute

    if name not in batch.schema.names:
        yield None, batch
        return
    column = batch.column(name)
    values = compute.unique(column)
    if len(values) == 1:
        yield values[0].as_py(), batch
        return
    for value in values:
        chosen = column.is_null() if not value.is_valid else compute.equal(column, value)
        yield value.as_py(), batch.filter(compute.fill_null(chosen, False))
