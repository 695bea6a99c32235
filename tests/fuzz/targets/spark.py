"""Values of records on their way into tables, and what users write of columns and offsets."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence

import pyarrow as pa

from lakemq.broker_core.api.schemas.formats import _compiled as compiled
from lakemq.broker_core.api.schemas.sparkplug import Payload
from lakemq.plugins.native.sdk.arrow import arrow_schema
from lakemq.spark_plugin.errors import OffsetsError, OptionError
from lakemq.spark_plugin.export.decoding.avro_values import AvroDecoder
from lakemq.spark_plugin.export.decoding.births import BirthCache, BirthLog, StoredBirth
from lakemq.spark_plugin.export.decoding.column_types import parse_schema
from lakemq.spark_plugin.export.decoding.csv_values import CsvDecoder
from lakemq.spark_plugin.export.decoding.decode import JsonDecoder
from lakemq.spark_plugin.export.decoding.decoder import Decoder
from lakemq.spark_plugin.export.decoding.evolution import evolve, schema_text, type_of_value
from lakemq.spark_plugin.export.decoding.protobuf_values import ProtobufDecoder
from lakemq.spark_plugin.export.decoding.sparkplug_values import SparkplugDecoder
from lakemq.spark_plugin.export.routing.rules import parse_route_by
from lakemq.spark_plugin.export.tables.partitioning import parse_partition_by
from lakemq.spark_plugin.source.offsets import (
    cursor_from_json,
    parse_assignment,
    parse_offsets,
    parse_timestamps,
)
from tests.fuzz.registry import Values, pieces, target

COLUMNS = (
    "a bigint, b string, c double, d array<struct<x: int>>, e timestamp, f decimal(10,2), "
    "g date, h timestamp_ms, i boolean"
)
CSV_COLUMNS = "a bigint, b string, c double, e timestamp, f decimal(10,2), g date, i boolean"
AVRO = json.dumps(
    {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": "a", "type": "long"},
            {"name": "b", "type": ["null", "string"]},
            {"name": "c", "type": {"type": "array", "items": "int"}},
            {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4}},
            {"name": "e", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        ],
    }
)
PROTOBUF = """syntax = "proto3"; import "google/protobuf/timestamp.proto";
message I { string s = 1; }
message R { int64 a = 1; repeated I b = 2; map<string, I> c = 3; google.protobuf.Timestamp t = 4;
            uint64 u = 5; enum E { X = 0; } E e = 6; optional bytes y = 7; }"""
MARK = b"\xff\x00\xff"


def _decode(decoder: Decoder, values: Sequence[bytes | None], *, exploding: bool = False) -> None:
    """Every value is either in rows or in bad, in order; the columns are those of the schema."""
    keys = pa.array([b"spBv1.0/g/NDATA/e"] * len(values), pa.binary())
    found = decoder.decode(pa.array(values, pa.binary()), keys)
    rows = found.rows.to_pylist()
    bad = [each.row for each in found.bad]
    assert found.columns.schema == decoder.schema
    assert len(found.columns) == len(rows)
    assert rows == sorted(rows) and bad == sorted(set(bad))
    assert sorted({*rows, *bad}) == list(range(len(values)))
    assert exploding or len(set(rows)) == len(rows)
    found.columns.validate(full=True)
    decoder.has_new_fields()


@target("spark.json", seeds=[
    b'{"a": 1, "b": "x", "c": 1.5, "d": [{"x": 1}]}' + MARK + b'{"new": 1}' + MARK + b"null",
    b'{"e": "2026-03-01T00:00:00Z", "f": "1.50", "g": "2026-03-01", "h": 5, "i": true}',
    b'{"b": ' + b'{"a":' * 4000 + b"1" + b"}" * 4001, b'{"b": "' + b"[" * 300 + b'"}',
    b'{"a":' * 300 + MARK + b"{}{}" + MARK + b"", b'{"a": 1e999, "z": [1, "x", {}]}',
], bytes_max=4096, weight=4)  # fmt: skip
def json_values(data: bytes) -> None:
    """JSON by a column list, with and without new fields."""
    values = [*pieces(data)[:20], None]
    columns = parse_schema(COLUMNS)
    _decode(JsonDecoder(columns), values)
    growing = JsonDecoder(columns, find_new=True, widen=True)
    _decode(growing, values)
    parse_schema(schema_text(evolve(columns, growing.found, widen=True)))
    type_of_value(Values(data).value())


@target(
    "spark.csv",
    seeds=[
        b"1,x,1.5,2026-03-01,1.50,2026-03-01,true" + MARK + b'1,"x,y",,,,,' + MARK + b'"',
        b",,,,,,",
        b'1,"a\nb",1,,,,' + MARK + b"\r\n" + MARK + b"\xff",
    ],
    bytes_max=4096,
    weight=4,
)
def csv_values(data: bytes) -> None:
    """CSV by a column list."""
    _decode(CsvDecoder(parse_schema(CSV_COLUMNS)), [*pieces(data)[:20], None])


@target(
    "spark.avro",
    seeds=[
        b"\x02\x02\x02a\x00\x02\x05\x0a" + MARK + b"\x02",
        b"\xc3\x01" + bytes(9),
        b"\x00\x00\xfe\xff\xff\xff\x0f",
        b"\x00\x00\x00\x02\x7f\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    ],
    weight=2,
)
def avro_values(data: bytes) -> None:
    """Avro by a writer's schema."""
    _decode(AvroDecoder(AVRO), [*pieces(data)[:20], None])


@target(
    "spark.avro_schema",
    seeds=[
        AVRO.encode(),
        b"[" * 3000,
        b'{"type": "bytes", "logicalType": "decimal"}',
        b'{"type": "record", "name": "r", "fields": [{"name": "a", "type": {"type": "bytes",'
        b' "logicalType": "decimal", "precision": "x"}}]}',
        b'{"type": "record", "name": "r", "fields": [{"name": "a", "type": "r"}]}',
        b'{"type": "record", "name": "r", "fields": [{"name": "a", "type":'
        b' {"type": "long", "logicalType": "timestamp-x"}}]}',
    ],
    weight=4,
)
def avro_schema(data: bytes) -> None:
    """A schema is OptionError, or its columns hold what Avro gives."""
    text, *values = pieces(data)
    with contextlib.suppress(OptionError):
        _decode(AvroDecoder(text.decode("utf-8", "replace")), [*values[:5], b"", None])


@target(
    "spark.protobuf",
    seeds=[
        b"\x08\x05\x12\x03\x0a\x01x" + MARK + b"\x1a\x05\x0a\x01k\x12\x00",
        b"\x22\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f" + MARK + b"\x30\x63",
    ],
    weight=2,
)
def protobuf_values(data: bytes) -> None:
    """Protobuf by a set of descriptors."""
    _decode(_protobuf(), [*pieces(data)[:20], None])
    with contextlib.suppress(OptionError):
        ProtobufDecoder(data, "R")


_made: list[ProtobufDecoder] = []


def _protobuf() -> ProtobufDecoder:
    if not _made:
        _made.append(ProtobufDecoder(compiled(PROTOBUF), "R"))
    return _made[0]


def _payload() -> bytes:
    payload = Payload(timestamp=5, seq=1)
    payload.metrics.add(name="a", datatype=3, int_value=2**32 - 1, timestamp=2**63)
    payload.metrics.add(alias=2**64 - 1, datatype=13, long_value=2**64 - 1)
    payload.metrics.add(name="b", datatype=12, string_value="x", is_null=True)
    return bytes(payload.SerializeToString())


@target(
    "spark.sparkplug",
    seeds=[
        _payload(),
        Payload(uuid="SPBV1.0_COMPRESSED", body=b"x").SerializeToString(),
        Payload(seq=2**64 - 1).SerializeToString(),
    ],
    weight=2,
)
def sparkplug_values(data: bytes) -> None:
    """Sparkplug B payloads, alone and behind births of any kind."""
    values = [*pieces(data)[:20], None]
    _decode(SparkplugDecoder(), values, exploding=True)
    records = [
        {"key": _SPARKPLUG_NAMES[number % 4], "value": value, "headers": []}
        for number, value in enumerate(values)
    ]
    places = {"topic": "t", "partition": 0, "timestamp": 0}
    rows = [{**places, **record, "offset": at} for at, record in enumerate(records)]
    batch = pa.RecordBatch.from_pylist(rows, arrow_schema())
    log = BirthLog(_Nothing(), 0, None, "p", BirthCache(100))
    decoded = SparkplugDecoder(lambda partition, offset: log).decode_records(batch)
    found = decoded.rows.to_pylist()
    assert sorted({*found, *(each.row for each in decoded.bad)}) == list(range(len(values)))


_SPARKPLUG_NAMES = (
    b"spBv1.0/g/NBIRTH/n", b"spBv1.0/g/NDATA/n", b"spBv1.0/g/DBIRTH/n/d", b"spBv1.0/g/DDATA/n/d",
)  # fmt: skip


class _Nothing:
    """A journal with no older records."""

    def log_start(self) -> int:
        return 0

    def births(self, start: int, end: int) -> Iterator[StoredBirth]:
        return iter(())


@target("spark.options", seeds=[
    COLUMNS.encode(), b"array<" * 400, b"a array<" + b"struct<a:" * 400, b"day(e), f",
    b"a decimal(" + b"9" * 5000 + b",1)", b'{"t": {"0": 23, "1": -2}}', b'{"t": [0, 1]}',
    b'{"v": 1, "t": {"s": {"id": "x", "p": {"0": 5}}}}', b"[" * 3000, b"header:x", b"column:a.b",
])  # fmt: skip
def options(data: bytes) -> None:
    """What users write of columns, offsets, partitions and routes is read or refused in words."""
    text = data.decode("utf-8", "replace")
    for parse in (parse_schema, parse_partition_by, parse_route_by):
        with contextlib.suppress(OptionError):
            parse(text)
    for read in (parse_offsets, parse_timestamps):
        with contextlib.suppress(OffsetsError):
            read("option", text)
    with contextlib.suppress(OffsetsError):
        parse_assignment(text)
    for value in (Values(data).value(), {"v": 1, "t": Values(data).value()}):
        if isinstance(value, dict):
            with contextlib.suppress(OffsetsError):
                cursor_from_json(value)
