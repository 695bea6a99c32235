"""Sparkplug B values -> one row for each metric (`lakemq.broker_core.api.schemas.sparkplug`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakemq.broker_core.api.schemas.sparkplug import (
    UNBORN,
    birth_of,
    needs_birth,
    payload_of,
    place_of,
    rows_of,
    rows_of_payload,
)
from lakemq.spark_plugin.export.decoding.births import BIRTHS, BirthLog
from lakemq.spark_plugin.export.decoding.column_types import Type
from lakemq.spark_plugin.export.decoding.decoder import Decoded, decode_each, to_columns
from lakemq.spark_plugin.export.decoding.topic_names import topic_names

if TYPE_CHECKING:
    import pyarrow as pa

FindBirths = Callable[[int, int], BirthLog]
"""The births that the record at (partition, offset) may follow. What has come by is noted there."""
_FOLLOWING: Final = ("NDATA", "DDATA", "NCMD", "DCMD")
"""Messages that may leave out what a birth has told."""


class _Parsed(NamedTuple):
    address: dict[str, Any]
    payload: Any
    """None: `rows` is all that there is."""
    rows: list[dict[str, Any]]


class SparkplugDecoder:
    """Decodes Sparkplug B payloads."""

    def __init__(self, find_births: FindBirths | None = None) -> None:
        """`find_births`: for names of aliases; None: births are not looked at."""
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
        self._find_births = find_births

    def has_new_fields(self) -> bool:
        """Always False: the Sparkplug B payload fixes the columns, so a value adds none."""
        return False

    def decode_records(self, batch: pa.RecordBatch) -> Decoded:
        """See `RecordDecoder`. Raises what reading births from the journal does."""
        places = None
        if self._find_births is not None:
            columns = (batch.column("partition").to_pylist(), batch.column("offset").to_pylist())
            places = list(zip(*columns, strict=True))
        return self._decode(batch.column("value"), topic_names(batch).to_pylist(), places)

    def decode(self, values: pa.Array, keys: pa.Array | None = None) -> Decoded:
        """`values`, `keys`: binary; keys are topic names. A row in `rows` comes once for each of
        its metrics. Births are not looked at."""
        return self._decode(values, [None] * len(values) if keys is None else keys.to_pylist())

    def _decode(
        self,
        values: pa.Array,
        names: Sequence[bytes | None],
        places: Sequence[tuple[int, int]] | None = None,
    ) -> Decoded:
        # A null value takes nothing off the iterator: give each value its own.
        there = values.is_valid().to_pylist()
        at = iter([name for name, valid in zip(names, there, strict=True) if valid])
        rows, found, bad = decode_each(
            values, "not_sparkplug", lambda value: _parsed(place_of(next(at)), value)
        )
        # Births are found outside of `decode_each`, for it takes every error for the value's.
        parsed: dict[int, object] = dict(zip(rows, found, strict=True))
        # A birth that can't be read makes no rows, but what was born before counts no more.
        parsed |= {
            each.row: _Parsed(place_of(names[each.row]), None, [])
            for each in bad
            if there[each.row]
        }
        pairs = [
            (row, each)
            for row in sorted(parsed)
            for each in self._rows(parsed[row], None if places is None else places[row])
        ]
        rows = [row for row, _ in pairs]
        return to_columns([each for _, each in pairs], rows, bad, self.schema, self._parsed)

    def _rows(self, parsed: object, place: tuple[int, int] | None) -> list[dict[str, Any]]:
        assert isinstance(parsed, _Parsed)
        address, payload, rows = parsed
        kind, birth = address.get("message_type"), UNBORN
        if self._find_births is not None and place is not None:
            if kind in BIRTHS:
                told = UNBORN if payload is None else birth_of(payload)
                self._find_births(*place).note(address, place[1], told)
            elif kind in _FOLLOWING and payload is not None and needs_birth(payload):
                birth = self._find_births(*place).find(address)
        return rows if payload is None else rows_of_payload(address, payload, birth)


def _parsed(address: dict[str, Any], value: bytes) -> _Parsed:
    if address.get("message_type") == "STATE":
        return _Parsed(address, None, rows_of(address, value))
    return _Parsed(address, payload_of(value), [])
