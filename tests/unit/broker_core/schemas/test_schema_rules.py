"""Goal: what the rules call compatible can really be read, and what they refuse is named."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemq.broker_core.api.errors import InvalidRequest, SchemaMismatch
from lakemq.broker_core.api.schemas import formats as schema_formats
from lakemq.broker_core.api.schemas.formats import (
    AvroFormat,
    JsonFormat,
    ProtobufFormat,
    open_schema,
)
from lakemq.broker_core.api.schemas.rules import (
    avro_problems,
    directions,
    json_problems,
    protobuf_problems,
)
from lakemq.broker_core.api.schemas.types import framed, unframed
from tests.support.seeds import examples

CLOSED = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("new", "problem"),
    [
        (CLOSED, ""),
        ({**CLOSED, "properties": {"a": {"type": "number"}}}, ""),
        ({**CLOSED, "properties": {"a": {"type": "string"}}}, "$.a: type"),
        ({**CLOSED, "required": ["a"]}, "$.a: is required"),
        ({**CLOSED, "properties": {}}, "$.a: nothing is allowed"),
        ({**CLOSED, "properties": {**CLOSED["properties"], "b": {"type": "string"}}}, ""),  # type: ignore[dict-item]  # a dict
        ({**CLOSED, "properties": {"a": {"type": "integer", "minimum": 0}}}, "minimum"),
        ({**CLOSED, "properties": {"a": {"type": "integer", "enum": [1]}}}, "enum"),
        ({"type": "object"}, ""),
        (False, "nothing is allowed"),
    ],
)  # fmt: skip
def test_what_a_new_json_schema_breaks(new: Any, problem: str) -> None:
    found = list(json_problems(new, CLOSED))
    assert bool(found) == bool(problem), found
    assert not problem or problem in " ".join(found)


def test_a_property_that_comes_to_an_open_object_may_have_been_anything() -> None:
    old = {"type": "object", "properties": {"a": {"type": "integer"}}}
    new = {"type": "object", "properties": {**old["properties"], "b": {"type": "string"}}}  # type: ignore[dict-item]  # a dict
    assert list(json_problems(new, old)) and not list(json_problems(old, new))


leaves = st.sampled_from(
    [
        {"type": "integer"}, {"type": "number"}, {"type": "string"}, {"type": ["null", "integer"]},
        {"type": "integer", "minimum": 0}, {"type": "string", "maxLength": 2}, {"enum": [1, "x"]},
        {"type": "array", "items": {"type": "integer"}}, {}, True, {"const": 1},
    ]
)  # fmt: skip
objects = st.builds(
    lambda properties, required, rest: {
        "type": "object", "properties": properties, "additionalProperties": rest,
        "required": sorted(required & properties.keys()),
    },
    st.dictionaries(st.sampled_from("abc"), leaves, max_size=3),
    st.sets(st.sampled_from("abc")),
    st.sampled_from([True, False, {"type": "integer"}]),
)  # fmt: skip
values = st.recursive(
    st.none() | st.integers(-2, 3) | st.sampled_from(["", "x", "long"]) | st.just(1.5),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3)
    ),
    max_leaves=5,
)


@settings(max_examples=examples(400), deadline=None)
@given(leaves | objects, leaves | objects, st.lists(values, max_size=12))
def test_what_passes_is_readable(new: Any, old: Any, tried: list[Any]) -> None:
    if list(json_problems(new, old)):
        return
    for value in tried:
        if jsonschema.Draft202012Validator(old).is_valid(value):
            assert jsonschema.Draft202012Validator(new).is_valid(value), (new, old, value)


def record(*fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": list(fields)}


A, B = {"name": "a", "type": "int"}, {"name": "b", "type": "string"}


def test_avro_as_apache_has_it_and_fastavro_reads() -> None:
    with_default = record(A, {**B, "default": "x"})
    assert list(avro_problems(with_default, record(A))) == []
    assert "missing default" in " ".join(avro_problems(record(A, B), record(A)))
    assert list(avro_problems(record({"name": "a", "type": "long"}), record(A))) == []
    assert list(avro_problems(record({"name": "a", "type": "string"}), record(A)))
    payload = AvroFormat(json.dumps(record(A))).encode({"a": 7})
    read = fastavro.schemaless_reader(
        io.BytesIO(payload), fastavro.parse_schema(record(A)), fastavro.parse_schema(with_default)
    )
    assert read == {"a": 7, "b": "x"}


def proto(body: str) -> ProtobufFormat:
    return ProtobufFormat('syntax = "proto3"; message M {' + body + "}")


def test_protobuf_numbers_keep_their_meaning() -> None:
    old = proto("int32 a = 1; string b = 2;")
    for body, problem in (
        ("int64 a = 1; string b = 2; bool c = 3;", ""),
        ("int32 a = 1;", ""),
        ("string a = 1; string b = 2;", "number 1"),
        ("int32 a = 1; repeated string b = 2;", "repeated"),
        ("sint32 a = 1; string b = 2;", "number 1"),
    ):
        found = list(protobuf_problems(proto(body).file, old.file))
        assert bool(found) == bool(problem) and problem in " ".join(found), (body, found)
    other = ProtobufFormat('syntax = "proto3"; message N {int32 a = 1;}')
    assert "first message" in " ".join(protobuf_problems(other.file, old.file))


def test_values_come_back_and_what_is_wrong_is_named() -> None:
    json_format = JsonFormat(json.dumps({"properties": {"t": {"type": "number"}}}))
    assert json_format.decode(json_format.encode({"t": 1.5})) == {"t": 1.5}
    with pytest.raises(SchemaMismatch, match=r"\$\.t"):
        json_format.check(b'{"t": "warm"}')
    with pytest.raises(SchemaMismatch, match="JSON"):
        json_format.check(b"{")
    avro = AvroFormat(json.dumps(record(A, B)))
    assert avro.decode(avro.encode({"a": 1, "b": "x"})) == {"a": 1, "b": "x"}
    with pytest.raises(SchemaMismatch, match="a"):
        avro.encode({"a": "no", "b": "x"})
    for wrong in (b"", b"\x02", avro.encode({"a": 1, "b": "x"}) + b"y"):
        with pytest.raises(SchemaMismatch):
            avro.check(wrong)
    message = proto("int32 a = 1;")
    assert message.decode(message.encode({"a": 5})).a == 5
    with pytest.raises(SchemaMismatch, match="nope"):
        message.encode({"nope": 1})
    for wrong in (b"", b"\x01\x02", b"\x00\xff"):
        with pytest.raises(SchemaMismatch):
            message.check(wrong)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json-schema", "{"), ("json-schema", '{"type": "nonsense"}'), ("avro", '{"type": "x"}'),
        ("avro", "[]{"), ("protobuf", "message"), ("protobuf", 'syntax = "proto3";'),
        ("protobuf", 'syntax = "proto3"; import "/etc/passwd"; message M {}'), ("xml", "<a/>"),
        ("json-schema", '"' + "x" * 300_000 + '"'),
    ],
)  # fmt: skip
def test_texts_that_are_no_schema_are_refused(kind: str, text: str) -> None:
    with pytest.raises(InvalidRequest):
        open_schema(kind, text)


def test_a_schema_fetches_nothing() -> None:
    elsewhere = JsonFormat('{"$ref": "http://127.0.0.1:1/schema.json"}')
    with pytest.raises(SchemaMismatch, match="followed"):
        elsewhere.check(b"1")


def test_frames() -> None:
    assert framed(258, b"x") == b"\x00\x00\x00\x01\x02x"
    assert unframed(b"\x00\x00\x00\x01\x02x") == (258, b"x")
    for wrong in (b"", b"\x00\x00\x00\x01", b"\x01\x00\x00\x01\x02x"):
        with pytest.raises(SchemaMismatch):
            unframed(wrong)


def test_rules_by_name() -> None:
    assert directions("none") == (False, False, False)
    assert directions("backward") == (True, False, False)
    assert directions("forward-transitive") == (False, True, True)
    assert directions("full") == (True, True, False)


def test_a_protoc_that_takes_long_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_formats, "_PROTOC_S", 0.001)
    with pytest.raises(InvalidRequest, match="protoc took more than 0.001 s"):
        ProtobufFormat('syntax = "proto3"; message M {}')
