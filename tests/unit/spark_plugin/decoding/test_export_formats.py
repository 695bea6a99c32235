"""CSV, Avro, Protobuf and Sparkplug B values to columns, and what becomes of bad ones."""

from __future__ import annotations

import base64
import datetime
import gzip
import io
import json
from decimal import Decimal

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemq.broker_core.api.schemas.sparkplug import Payload
from lakemq.broker_core.api.schemas.types import framed
from lakemq.spark_plugin.errors import OptionError
from lakemq.spark_plugin.export.decoding.decoders import open_decoder
from lakemq.spark_plugin.export.decoding.given_schema import read_schema
from tests.support.seeds import examples

AT = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)


def decode(decoder, *values, keys=None):
    keys = pa.array(keys, pa.binary()) if keys else None
    decoded = decoder.decode(pa.array(values, pa.binary()), keys)
    decoded.columns.validate(full=True)
    assert decoded.columns.schema == decoder.schema
    bad = {each.row: (each.error_class, each.error) for each in decoded.bad}
    rows = decoded.rows.to_pylist()
    assert rows == sorted(rows)
    assert sorted({*rows, *bad}) == list(range(len(values))), "every row is good or bad"
    assert not {*rows} & {*bad}, "and not both"
    return list(zip(rows, decoded.columns.to_pylist(), strict=True)), bad


# -- CSV

CSV = "s string, n int, at timestamp, d decimal(6,2), ms timestamp_ms, f float, day date, b boolean"


def test_csv_of_every_type():
    good, bad = decode(
        open_decoder("csv", CSV),
        b'"a,b",1,2024-01-01,1.25,1704067200000,0.5,2024-01-01,true\r\n',
        b"x,-1,2024-01-01T01:00:00+01:00,,,,,",
        b'"two\nlines",2,2024-01-01 00:00:00,,,,,',
        b'"",3,,,,,,',
    )
    assert bad == {}
    assert good[0][1] == {
        "s": "a,b",
        "n": 1,
        "at": AT,
        "d": Decimal("1.25"),
        "ms": AT,
        "f": 0.5,
        "day": AT.date(),
        "b": True,
    }
    assert good[1][1]["at"] == AT and good[1][1]["day"] is None
    assert good[2][1]["s"] == "two\nlines" and good[2][1]["at"] == AT
    assert good[3][1]["s"] == "", "what is quoted is not null"


@pytest.mark.parametrize(
    ("value", "error_class", "error"),
    [
        (None, "null_value", "has no value"),
        (b"\xff,1", "not_utf8", "invalid start byte"),
        (b"", "not_csv", "an empty line"),
        (b"a,1,2", "not_csv", "Expected 2 columns, got 3"),
        (b"a,1\nb,2", "not_csv", "2 lines in one record"),
        (b'"a,1', "not_csv", "Expected 2 columns"),
        (b"a,x", "wrong_type", "invalid value 'x'"),
        (b"a,3000000000", "wrong_type", "invalid value '3000000000'"),
    ],
)
def test_a_bad_csv_row_stands_alone(value, error_class, error):
    good, bad = decode(open_decoder("csv", "s string, n int"), b"a,1", value, b"b,2")
    assert [row["n"] for _, row in good] == [1, 2]
    assert bad[1][0] == error_class
    assert error in bad[1][1]


def test_csv_has_a_delimiter_and_no_nested_columns():
    good, _ = decode(open_decoder("csv", "s string, n int", delimiter=";"), b"a,b;1")
    assert good == [(0, {"s": "a,b", "n": 1})]
    with pytest.raises(OptionError, match="column l is array; CSV has no such field"):
        open_decoder("csv", "l array<int>")


def test_records_that_run_into_each_other_and_one_of_two_lines_do_not_make_up_for_it():
    good, bad = decode(open_decoder("csv", "s string, n int"), b'"a,1', b'b",2', b"x,1\ry,2")
    assert good == [(1, {"s": 'b"', "n": 2})]
    assert {row: error for row, (error, _) in bad.items()} == {0: "not_csv", 2: "not_csv"}


LINES = [b"a,1", b'"x"",\n",2', b'",\n']


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.binary(max_size=12) | st.sampled_from(LINES), max_size=8))
def test_neighbours_never_change_a_csv_row(values):
    decoder = open_decoder("csv", "s string, n int")
    good, bad = decode(decoder, *values)
    for row, value in enumerate(values):
        alone, alone_bad = decode(decoder, value)
        assert [columns for number, columns in good if number == row] == [c for _, c in alone]
        assert (row in bad) == bool(alone_bad)


# -- Avro

AVRO = {
    "type": "record", "name": "Reading", "fields": [
        {"name": "device", "type": "string"},
        {"name": "n", "type": ["null", "long"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 8,
                                   "scale": 2}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["ON", "OFF"]}},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
        {"name": "parts", "type": {"type": "array", "items": {
            "type": "record", "name": "Part",
            "fields": [{"name": "x", "type": "int"},
                       {"name": "t", "type": {"type": "long", "logicalType": "timestamp-micros"}}],
        }}},
        {"name": "main", "type": ["null", "Part"]},
        {"name": "mixed", "type": ["null", "int", "double"]},
    ],
}  # fmt: skip
READING = {
    "device": "d", "n": None, "at": AT, "day": AT.date(), "price": Decimal("1.25"), "state": "OFF",
    "tags": {"a": 1}, "parts": [{"x": 1, "t": AT}], "main": None, "mixed": 2,
}  # fmt: skip


def avro(value, schema=AVRO):
    data = io.BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return data.getvalue()


def test_avro_of_every_type():
    good, bad = decode(open_decoder("avro", json.dumps(AVRO)), avro(READING))
    assert bad == {}
    assert good == [(0, {**READING, "tags": [("a", 1)], "mixed": 2.0})]


def test_avro_in_single_object_encoding():
    fingerprint = fastavro.schema.fingerprint(
        fastavro.schema.to_parsing_canonical_form(AVRO), "CRC-64-AVRO"
    )
    mark = b"\xc3\x01" + bytes.fromhex(fingerprint)
    good, bad = decode(
        open_decoder("avro", json.dumps(AVRO)),
        mark + avro(READING),
        b"\xc3\x01" + bytes(8) + avro(READING),
    )
    assert [row for row, _ in good] == [0]
    assert list(bad) == [1]


@pytest.mark.parametrize("change", [lambda v: v[:-1], lambda v: v + b"\0", lambda v: b"", None])
def test_what_is_no_datum_is_a_bad_row(change):
    value = change(avro(READING)) if change else None
    good, bad = decode(open_decoder("avro", json.dumps(AVRO)), avro(READING), value)
    assert [row for row, _ in good] == [0]
    assert bad[1][0] == ("not_avro" if change else "null_value")


def test_an_avro_number_that_no_column_holds_is_a_bad_row():
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}],
    }
    plain = {"type": "record", "name": "R", "fields": [{"name": "at", "type": "long"}]}
    values = [avro({"at": number}, plain) for number in (0, 2**62, 1)]
    good, bad = decode(open_decoder("avro", json.dumps(schema)), *values)
    assert [row for row, _ in good] == [0, 2]
    assert bad[1][0] == "wrong_type"


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ("{", "is not a valid Avro schema"),
        ('"string"', "must be a record"),
        (
            '{"type":"record","name":"R","fields":[{"name":"x","type":"nix"}]}',
            "is not a valid Avro schema",
        ),
        (
            '{"type":"record","name":"R","fields":[{"name":"x","type":["int","string"]}]}',
            "x is a union that no column can hold",
        ),
        (
            '{"type":"record","name":"R","fields":[{"name":"x","type":["null","R"]}]}',
            "x is R, which no column can hold",
        ),
        (
            '{"type":"record","name":"R","fields":[{"name":"x","type":{"type":"array","items":'
            '{"type":"record","name":"E","fields":[]}}}]}',
            "x is an array of empty records",
        ),
        ('{"type":"record","name":"R","fields":[{"name":"_meta","type":"int"}]}', "is taken by"),
        ('{"type":"record","name":"R","fields":[]}', "has no fields"),
        (
            '{"type":"record","name":"R","fields":[{"name":"x","type":{"type":"bytes",'
            '"logicalType":"decimal"}}]}',
            "x has None digits",
        ),
        ("[" * 5000, "not a valid Avro schema"),
    ],
)
def test_an_avro_schema_without_columns_says_so(schema, problem):
    with pytest.raises(OptionError, match=problem):
        open_decoder("avro", schema)


# -- Protobuf

PROTO = """
syntax = "proto3";
package fleet;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
message Reading {
  enum State { OFF = 0; ON = 1; }
  message Part { int32 x = 1; optional string name = 2; }
  string device = 1;
  optional int64 n = 2;
  uint64 total = 3;
  State state = 4;
  Part main = 5;
  repeated Part parts = 6;
  map<string, Part> by_name = 7;
  google.protobuf.Timestamp at = 8;
  google.protobuf.DoubleValue maybe = 9;
  google.protobuf.Struct free = 10;
  repeated int32 numbers = 11;
  oneof choice { bytes raw = 12; bool flag = 13; }
}
message Tree { repeated Tree below = 1; }
"""


@pytest.fixture(scope="module")
def descriptors(tmp_path_factory):
    file = tmp_path_factory.mktemp("proto") / "fleet.proto"
    file.write_text(PROTO)
    return read_schema("protobuf", str(file))


def reading_class(descriptors):
    from google.protobuf import message_factory

    from lakemq.spark_plugin.export.decoding.protobuf_values import find_message

    return message_factory.GetMessageClass(
        find_message(base64.b64decode(descriptors), "fleet.Reading")
    )


def test_protobuf_of_every_type(descriptors):
    message = reading_class(descriptors)()
    message.device, message.total, message.state = "d", 2**64 - 1, 1
    message.parts.add(x=1)
    message.parts.add(x=2, name="two")
    message.by_name["k"].x = 7
    message.at.FromDatetime(AT)
    message.maybe.value = 0.0
    message.free.update({"a": [1, None]})
    message.numbers.extend([3, 4])
    message.flag = False
    decoder = open_decoder("protobuf", descriptors, message="fleet.Reading")
    good, bad = decode(decoder, message.SerializeToString(), b"", None, b"\x08\xff")
    assert good[0] == (0, {
        "device": "d", "n": None, "total": Decimal(2**64 - 1), "state": "ON", "main": None,
        "parts": [{"x": 1, "name": None}, {"x": 2, "name": "two"}],
        "by_name": [("k", {"x": 7, "name": None})], "at": AT, "maybe": 0.0,
        "free": '{"a": [1.0, null]}', "numbers": [3, 4], "raw": None, "flag": False,
    })  # fmt: skip
    assert good[1][1]["device"] == "" and good[1][1]["parts"] == []
    assert {row: error for row, (error, _) in bad.items()} == {2: "null_value", 3: "not_protobuf"}


def test_a_frame_of_a_schema_registry_before_a_protobuf_message_is_left_out(descriptors):
    message = reading_class(descriptors)(device="d", n=5).SerializeToString()
    decoder = open_decoder("protobuf", descriptors, message="fleet.Reading")
    values = (framed(300, b"\0" + message), message, framed(300, b"\0"), framed(300, message))
    good, bad = decode(decoder, *values)
    assert [(row, each["device"], each["n"]) for row, each in good] == [
        (0, "d", 5), (1, "d", 5), (2, "", None),
    ]  # fmt: skip
    assert {row: error for row, (error, _) in bad.items()} == {3: "not_protobuf"}


def test_a_protobuf_message_that_its_columns_cannot_hold_is_a_bad_row(descriptors):
    """A time far out is a Timestamp, as is a Value that is no number: no column has room for it."""
    message = reading_class(descriptors)
    whole, late, infinite = (message(device=each) for each in ("whole", "late", "infinite"))
    late.at.seconds = 2**62
    infinite.free.update({"a": float("inf")})
    decoder = open_decoder("protobuf", descriptors, message="fleet.Reading")
    values = [each.SerializeToString() for each in (late, whole, infinite, whole)]
    good, bad = decode(decoder, *values, b"\x08\xff")
    assert [(row, each["device"]) for row, each in good] == [(1, "whole"), (3, "whole")]
    assert {row: error for row, (error, _) in bad.items()} == {
        0: "wrong_type",
        2: "wrong_type",
        4: "not_protobuf",
    }


def test_a_protobuf_message_that_no_table_holds_says_so(descriptors):
    with pytest.raises(OptionError, match="fleet.Tree.below is a fleet.Tree within itself"):
        open_decoder("protobuf", descriptors, message="fleet.Tree")
    with pytest.raises(OptionError, match="nix: --schema has fleet.Reading, fleet.Tree"):
        open_decoder("protobuf", descriptors, message="nix")
    with pytest.raises(OptionError, match="holds no descriptors"):
        open_decoder("protobuf", base64.b64encode(b"\xff\xff").decode(), message="x")


# -- Sparkplug B

TOPIC = b"spBv1.0/plant/DDATA/edge7/press"


def payload(*metrics, **fields):
    message = Payload(timestamp=1704067200000, seq=3, **fields)
    for metric in metrics:
        message.metrics.add(**metric)
    return message.SerializeToString()


def test_each_metric_is_a_row():
    value = payload(
        {"name": "temp", "datatype": 10, "double_value": 21.5, "timestamp": 1704067200000},
        {"alias": 9, "datatype": 3, "int_value": 2**32 - 5},
        {"name": "ok", "datatype": 11, "boolean_value": False},
        {"name": "note", "datatype": 12, "string_value": "hot"},
        {"name": "big", "datatype": 8, "long_value": 2**64 - 1},
        {"name": "when", "datatype": 13, "long_value": 1704067200000},
        {"name": "gone", "datatype": 3, "is_null": True},
    )
    good, bad = decode(open_decoder("sparkplug", ""), value, payload(), keys=[TOPIC, TOPIC])
    assert bad == {}
    assert [row for row, _ in good] == [0] * 7 + [1]
    rows = [row for _, row in good]
    assert {
        name: rows[0][name]
        for name in ("group_id", "message_type", "edge_node_id", "device_id", "seq", "payload_time")
    } == {
        "group_id": "plant",
        "message_type": "DDATA",
        "edge_node_id": "edge7",
        "device_id": "press",
        "seq": 3,
        "payload_time": AT,
    }
    assert (rows[0]["metric"], rows[0]["double_value"]) == ("temp", 21.5)
    assert rows[0]["metric_time"] == AT
    assert (rows[1]["alias"], rows[1]["long_value"], rows[1]["datatype"]) == (9, -5, "Int32")
    assert rows[2]["boolean_value"] is False
    assert rows[3]["string_value"] == "hot"
    assert (rows[4]["long_value"], rows[4]["string_value"]) == (None, str(2**64 - 1))
    assert rows[5]["time_value"] == AT
    assert (rows[6]["is_null"], rows[6]["long_value"]) == (True, None)
    assert (rows[7]["metric"], rows[7]["seq"]) == (None, 3)


def test_compressed_payloads_and_host_states():
    inner = payload({"name": "a", "datatype": 4, "long_value": 5})
    outer = Payload(uuid="SPBV1.0_COMPRESSED", seq=8, body=gzip.compress(inner)).SerializeToString()
    cut = Payload(uuid="SPBV1.0_COMPRESSED", body=gzip.compress(inner)[:-9]).SerializeToString()
    good, bad = decode(
        open_decoder("sparkplug", ""),
        outer,
        b'{"online":true}',
        None,
        cut,
        b"\xff",
        keys=[TOPIC, b"spBv1.0/STATE/host1", TOPIC, TOPIC, None],
    )
    assert (good[0][1]["metric"], good[0][1]["long_value"]) == ("a", 5)
    assert (good[1][1]["message_type"], good[1][1]["device_id"]) == ("STATE", "host1")
    assert good[1][1]["string_value"] == '{"online":true}'
    assert {row: error for row, (error, _) in bad.items()} == {
        2: "null_value",
        3: "not_sparkplug",
        4: "not_sparkplug",
    }


def test_a_record_with_one_bad_metric_is_bad_as_a_whole():
    value = payload({"name": "a"}, {"name": "b", "timestamp": 2**63 - 1})
    good, bad = decode(
        open_decoder("sparkplug", ""), value, payload({"name": "c"}), keys=[TOPIC] * 2
    )
    assert [row["metric"] for _, row in good] == ["c"]
    assert bad[0][0] == "wrong_type"
