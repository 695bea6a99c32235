"""Goal: a value of a few bytes costs little, whatever Avro schema it is checked by: no dead
process, no memory without bound.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from lakemq.broker_core.api.errors import InvalidRequest, SchemaMismatch
from lakemq.broker_core.api.schemas.avro_shape import FREE_STEPS_MAX, AvroShape
from lakemq.broker_core.api.schemas.formats import AvroFormat

LINKED = {
    "type": "record",
    "name": "node",
    "namespace": "x",
    "fields": [{"name": "v", "type": "int"}, {"name": "next", "type": ["null", "node"]}],
}


def record(name: str, *kinds: Any) -> dict[str, Any]:
    fields = [{"name": f"f{place}", "type": kind} for place, kind in enumerate(kinds)]
    return {"type": "record", "name": name, "fields": fields}


def chain(links: int) -> dict[str, Any]:
    value: dict[str, Any] = {"v": 0, "next": None}
    for _ in range(links):
        value = {"v": 1, "next": value}
    return value


def test_values_of_a_schema_that_holds_itself() -> None:
    schema = AvroFormat(json.dumps(LINKED))
    assert schema.decode(schema.encode(chain(20))) == chain(20)
    with pytest.raises(SchemaMismatch, match="RecursionError"):
        schema.check(b"\x02\x02" * 100_000 + b"\x02\x00")
    with pytest.raises(SchemaMismatch, match="deeper than 500 levels"):
        schema.encode(chain(50_000))


@pytest.mark.parametrize(
    "items",
    [
        "null",
        {"type": "null"},
        {"type": "fixed", "name": "f", "size": 0},
        record("empty"),
        record("outer", record("inner", "null"), "inner"),
    ],
)
def test_arrays_of_what_takes_no_bytes_are_refused(items: Any) -> None:
    for schema in (
        {"type": "array", "items": items},
        record("r", {"type": "array", "items": items}),
    ):
        with pytest.raises(InvalidRequest, match="take no bytes"):
            AvroFormat(json.dumps(schema))


def test_records_that_double_with_each_level_are_refused() -> None:
    schema = record("r0", "null")
    for level in range(1, 30):
        schema = record(f"r{level}", schema, f"r{level - 1}")
    with pytest.raises(InvalidRequest, match="take no bytes"):
        AvroFormat(json.dumps(schema))


@pytest.mark.parametrize(
    "schema",
    [
        "null",
        record("r", "null", "null"),
        {"type": "array", "items": ["null", "int"]},
        {"type": "map", "values": "null"},
        record("r", *["null"] * (FREE_STEPS_MAX - 1)),
        {"type": "array", "items": {"type": "enum", "name": "e", "symbols": ["a"]}},
        {"type": "array", "items": record("r", "null", "int")},
        record("r", {"type": "fixed", "name": "f", "size": 1}, {"type": "array", "items": "f"}),
    ],
)
def test_schemas_whose_values_are_bounded_are_taken(schema: Any) -> None:
    shape = AvroShape(AvroFormat(json.dumps(schema)).schema)
    assert not shape.is_recursive
    assert not shape.is_boundless


@pytest.mark.parametrize(
    "schema",
    [
        LINKED,
        record("a", {"type": "array", "items": "a"}),
        record("a", {"type": "map", "values": "a"}),
        record("a", ["null", record("b", ["null", "a"])]),
    ],
)
def test_schemas_that_hold_themselves_are_known(schema: Any) -> None:
    shape = AvroShape(AvroFormat(json.dumps(schema)).schema)
    assert shape.is_recursive
    assert not shape.is_boundless
