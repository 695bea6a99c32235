"""Sparkplug B values -> one row for each metric (`lakemq.broker_core.api.schemas.sparkplug`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakemq.broker_core.api.schemas.sparkplug import place_of, rows_of
from lakemq.spark_plugin.export.decoding.column_types import Type
from lakemq.spark_plugin.export.decoding.decoder import Decoded, decode_each, to_columns

if TYPE_CHECKING:
    import pyarrow as pa


class SparkplugDecoder:
    """Decodes Sparkplug B payloads; the topic comes from the record's key."""

    def __init__(self) -> None:
        import pyarrow as pa

        time, text, flag = pa.timestamp("us", tz="UTC"), pa.string(), pa.bool_()
        self.schema = pa.schema(
            [
                ("group_id", text), ("message_type", text), ("edge_node_id", text),
                ("device_id", text), ("seq", pa.int64()), ("payload_time", time), ("metric", text),
                ("alias", pa.int64()), ("metric_time", time), ("datatype", text),
                ("is_historical", flag), ("is_transient", flag), ("is_null", flag),
                ("long_value", pa.int64()), ("double_value", pa.float64()),
                ("boolean_value", flag), ("string_value", text), ("time_value", time),
                ("bytes_value", pa.binary()),
            ]
        )  # fmt: skip
        self._parsed = pa.struct(
            [
                (each.name, pa.timestamp("ms", tz="UTC") if each.type == time else each.type)
                for each in self.schema
            ]
        )
        self.found: dict[str, Type] = {}

    def has_new_fields(self) -> bool:
        """Always False: the Sparkplug B payload fixes the columns, so a value adds none."""
        return False

    def decode(self, values: pa.Array, keys: pa.Array | None = None) -> Decoded:
        """`values`, `keys`: binary. A row in `rows` comes once for each of its metrics."""
        topics = keys.to_pylist() if keys is not None else [None] * len(values)
        at = iter(topics)

        def decode_next(value: bytes) -> list[dict[str, Any]]:
            return rows_of(place_of(next(at)), value)

        # A null value takes no key off the iterator: give each value its own.
        at = iter(
            [
                key
                for key, null in zip(topics, values.is_null().to_pylist(), strict=True)
                if not null
            ]
        )
        rows, found, bad = decode_each(values, "not_sparkplug", decode_next)
        pairs = [(row, each) for row, many in zip(rows, found, strict=True) for each in _many(many)]
        return to_columns(
            [each for _, each in pairs], [row for row, _ in pairs], bad, self.schema, self._parsed
        )


def _many(rows: object) -> list[dict[str, Any]]:
    assert isinstance(rows, list)
    return rows
