"""Schemas that clients register, and values that are checked by them."""

from __future__ import annotations

import contextlib
import json

from google.protobuf import descriptor_pb2, timestamp_pb2

from lakemq.broker_core.api.errors import InvalidRequest, SchemaMismatch
from lakemq.broker_core.api.schemas.formats import AvroFormat, Format, JsonFormat, open_schema
from lakemq.broker_core.api.schemas.protobuf_source import parsed_descriptor, source_of
from lakemq.broker_core.schemas import _why as problems
from tests.fuzz.registry import Values, pieces, target

JSON = json.dumps(
    {
        "type": "object",
        "required": ["a"],
        "properties": {"a": {"type": "integer", "minimum": 0}, "b": {"enum": ["x", None]}},
        "additionalProperties": {"$ref": "#/properties/a"},
    }
)
AVRO = json.dumps(
    {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": "a", "type": "long"},
            {"name": "b", "type": ["null", "string"], "default": None},
            {"name": "c", "type": {"type": "array", "items": "r"}},
            {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4}},
        ],
    }
)
PROTOBUF = 'syntax = "proto3"; message R { int64 a = 1; repeated R b = 2; map<string, R> c = 3; }'
MARK = b"\xff\x00\xff"


def _opened(kind: str, text: bytes) -> Format | None:
    with contextlib.suppress(InvalidRequest):
        return open_schema(kind, text.decode("utf-8", "replace"))
    return None


@target("schemas.json", seeds=[
    JSON.encode() + MARK + b'{"a": 5, "b": "x"}', b'{"type": "array"}' + MARK + b"[" * 1500,
    b'{"maximum": 1e999}' + MARK + b"5", b"[" * 5000, b'{"$ref": "#"}' + MARK + b"1",
    b'{"multipleOf": 0.1}' + MARK + b"1e308", b'{"items": [true], "required": ["a"]}',
    b'{"$schema": "http://json-schema.org/draft-03/schema#", "required": true}' + MARK + b"{}",
], weight=4)  # fmt: skip
def json_schema(data: bytes) -> None:
    """A schema is InvalidRequest or checks; a value is SchemaMismatch or fits."""
    text, *values = pieces(data)
    _use(_opened("json-schema", text), _opened("json-schema", JSON.encode()), values)


@target("schemas.avro", seeds=[
    AVRO.encode() + MARK + b"\x02\x00\x00\x00",
    b'{"type": "record", "name": "r", "fields": [{"name": "n", "type": ["null", "r"]}]}' + MARK
    + b"\x02" * 20_000 + b"\x00",
    b'{"type": "array", "items": {"type": "fixed", "name": "f", "size": 0}}' + MARK
    + b"\xfe\xff\xff\xff\x0f\x00", b'"string"' + MARK + b"\x02a", b"[" * 5000,
    b'{"type": "fixed", "name": "f", "size": 2000000000}' + MARK + b"ab",
    b'{"type": "array", "items": "null"}' + MARK + b"\xfe\xff\xff\xff\x0f\x00",
    b'{"type": "enum", "name": "e", "symbols": ["a"]}' + MARK + b"\x04",
], weight=4)  # fmt: skip
def avro(data: bytes) -> None:
    """As for JSON Schema."""
    text, *values = pieces(data)
    _use(_opened("avro", text), _opened("avro", AVRO.encode()), values)


def _use(schema: Format | None, other: Format | None, values: list[bytes]) -> None:
    if schema is None:
        return
    for each in values:
        with contextlib.suppress(SchemaMismatch):
            schema.check(each)
    for each in (Values(b"".join(values)).value(), {"a": 5}):
        with contextlib.suppress(SchemaMismatch):
            schema.encode(each)
    for reader, writer in ((schema, other), (other, schema)):
        assert isinstance(reader, JsonFormat | AvroFormat)
        with contextlib.suppress(InvalidRequest):
            assert all(isinstance(each, str) for each in problems(reader, writer))


@target(
    "schemas.protobuf",
    seeds=[
        b"\x00\x08\x05\x12\x02\x08\x01",
        b"\x00" + b"\x12\x80\x01" * 200,
        b"\x01",
    ],
)
def protobuf(data: bytes) -> None:
    """A value of a compiled schema; schemas themselves are read by protoc, in its own process."""
    with contextlib.suppress(SchemaMismatch):
        found = _protobuf().decode(data)
        assert _protobuf().decode(_protobuf().encode(found)) == found
    with contextlib.suppress(SchemaMismatch):
        _protobuf().encode({"a": Values(data).value(), "b": [{"a": 1}]})


_made: list[Format] = []


def _protobuf() -> Format:
    if not _made:
        _made.append(open_schema("protobuf", PROTOBUF))
    return _made[0]


@target(
    "schemas.descriptor",
    seeds=[
        b"\x1a\x01\xff\x22\x0a\x0a\x01A\x12\x05\x0a\x01a\x18\x01",
        descriptor_pb2.DESCRIPTOR.serialized_pb,
        timestamp_pb2.DESCRIPTOR.serialized_pb,
    ],
)
def descriptor(data: bytes) -> None:
    """A descriptor of Confluent's clients is InvalidRequest or becomes a text for protoc."""
    with contextlib.suppress(InvalidRequest):
        file = parsed_descriptor(data)
        assert source_of(file).encode()
