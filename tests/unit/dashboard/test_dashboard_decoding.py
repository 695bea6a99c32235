"""Goal: the message browser decodes what it can, says why where it can't; pages stay bounded."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Any

import pytest

from lakemq.broker_core.api.schemas.formats import open_schema
from lakemq.broker_core.api.schemas.sparkplug import Payload
from lakemq.broker_core.api.schemas.types import framed
from lakemq.plugins.admin.dashboard import decoding
from lakemq.plugins.admin.dashboard.client import ApiProblem
from lakemq.plugins.admin.dashboard.decoding import SCHEMAS_MAX, TEXT_MAX, RecordTexts
from lakemq.plugins.admin.dashboard.tables import Row

AVRO = json.dumps(
    {"type": "record", "name": "R", "fields": [
        {"name": "co", "type": "double"}, {"name": "raw", "type": "bytes"},
    ]}
)  # fmt: skip
PROTO = 'syntax = "proto3"; message Reading { double co = 1; string room_name = 2; }'
JSON = '{"type": "object"}'
DEVICE = "spBv1.0/plant/DDATA/edge/pump"
SCHEMAS = {1: ("avro", AVRO), 2: ("protobuf", PROTO), 3: ("json-schema", JSON)}


class Registry:
    """Answers as the admin API does."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def ask(self, schema_id: int) -> Mapping[str, Any]:
        self.asked.append(schema_id)
        if schema_id == 4:
            raise ApiProblem(403, "NOT_AUTHORIZED", "you need the right to read schema:x")
        if schema_id not in SCHEMAS:
            raise ApiProblem(404, "UNKNOWN_SCHEMA", "no such schema")
        kind, text = SCHEMAS[schema_id]
        return {"schema_type": kind, "text": text}


def record(value: bytes | None, key: str | None = "k", truncated: bool = False) -> Row:
    encoding, text = "text", None
    if value is not None:
        try:
            text = value.decode()
        except UnicodeDecodeError:
            encoding, text = "base64", base64.b64encode(value).decode()
    return {
        "offset": 0, "timestamp_ms": 0, "key": key, "key_encoding": "text", "value": text,
        "value_encoding": encoding, "value_bytes": len(value or b""), "truncated": truncated,
        "headers": [{"name": "h", "value": "/w==", "encoding": "base64"}],
    }  # fmt: skip


async def shown(*records: Row, registry: Registry | None = None) -> list[Row]:
    return list(await RecordTexts().shown(records, (registry or Registry()).ask))


async def test_values_are_decoded_by_the_schema_that_they_name() -> None:
    registry = Registry()
    avro, proto, by_json = (open_schema(*SCHEMAS[each]) for each in (1, 2, 3))
    found = await shown(
        record(framed(1, avro.encode({"co": 0.5, "raw": b"\xff\x00"}))),
        record(framed(2, proto.encode({"co": 0.5, "room_name": "7"}))),
        record(framed(3, by_json.encode({"co": 0.5}))),
        record(framed(1, avro.encode({"co": 1.5, "raw": b""}))),
        record(b'{"co": 0.5}'), record(b"21.5 C"), record(b"\xff\x01"), record(None),
        registry=registry,
    )  # fmt: skip
    assert [each["kind"] for each in found] == [
        "Avro", "Protobuf", "JSON", "Avro", "JSON", "text", "bytes", "null"
    ]  # fmt: skip
    assert [json.loads(each["value"]) for each in found[:5]] == [
        {"co": 0.5, "raw": "ff 00"}, {"co": 0.5, "room_name": "7"}, {"co": 0.5},
        {"co": 1.5, "raw": ""}, {"co": 0.5},
    ]  # fmt: skip
    assert [each["value"] for each in found[5:]] == ["21.5 C", "ff 01", "–"]
    assert {each["problem"] for each in found} == {""} and registry.asked == [1, 2, 3]
    assert found[0]["headers"] == ["h: ff"] and found[0]["key"] == "k"


def sparkplug(*values: int | bool | float | str) -> Any:
    payload = Payload(timestamp=1_700_000_000_000, seq=0)
    for number, value in enumerate(values):
        metric = payload.metrics.add(name=f"m{number}", datatype=3)
        kind = {bool: "boolean_value", int: "int_value", float: "double_value", str: "string_value"}
        setattr(metric, kind[type(value)], value)
    return payload


async def test_sparkplug_is_decoded_by_its_topic_name() -> None:
    data = sparkplug(0, False, 1.5, "on").SerializeToString()
    packed = Payload(uuid="SPBV1.0_COMPRESSED", body=zlib.compress(data)).SerializeToString()
    plain, compressed, elsewhere = await shown(
        record(data, DEVICE), record(packed, DEVICE), record(data)
    )
    first = json.loads(plain["value"])
    assert plain["kind"] == "Sparkplug B" and first["device_id"] == "pump" and first["seq"] == 0
    values = [
        each.get("long_value", each.get("boolean_value", each.get("double_value")))
        for each in first["metrics"]
    ]
    assert values == [0, False, 1.5, None] and first["metrics"][3]["string_value"] == "on"
    assert json.loads(compressed["value"]) == first
    assert elsewhere["kind"] in ("text", "bytes")
    (state,) = await shown(record(b'{"online": true}', "spBv1.0/STATE/scada"))
    assert state["kind"] == "JSON"


@pytest.mark.parametrize(
    ("one", "kind", "problem"),
    [
        (record(framed(1, b"\x01")), "text", "not decoded as Avro: not Avro of this schema"),
        (record(framed(2, b"\x00\xff\xff")), "bytes", "not decoded as Protobuf"),
        (record(framed(1, b"x"), truncated=True), "text", "the value is cut off here"),
        (record(framed(4, b"x")), "text", "schema 4: you need the right to read schema:x"),
        (record(framed(2**28 + 5, b"\xff")), "bytes", ""),
        (record(b"\x00\x01"), "text", ""),
        (record(b"\xff\xff", DEVICE), "bytes", "not decoded as Sparkplug B"),
    ],
)
async def test_what_can_not_be_decoded_says_why(one: Row, kind: str, problem: str) -> None:
    (found,) = await shown(one)
    assert found["kind"] == kind and problem in found["problem"]
    assert bool(problem) == bool(found["problem"])


async def test_a_page_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry()
    many = [record(framed(100 + number, b"\xff")) for number in range(SCHEMAS_MAX + 1)]
    found = await shown(*many, registry=registry)
    assert len(registry.asked) == SCHEMAS_MAX and "too many schemas" in found[-1]["problem"]
    bomb = Payload(uuid="SPBV1.0_COMPRESSED", body=zlib.compress(bytes(2**20)))
    long = sparkplug(*["x" * 100] * 1000).SerializeToString()
    refused, cut = await shown(record(bomb.SerializeToString(), DEVICE), record(long, DEVICE))
    assert "above 65536 bytes" in refused["problem"]
    assert len(cut["value"]) < TEXT_MAX + 20 and cut["value"].endswith("(cut off)")
    # A schema is asked for each time, by the rights of who looks, and opened once.
    opened = list[str]()
    monkeypatch.setattr(decoding, "open_schema", lambda kind, text: opened.append(kind))
    texts, asked = RecordTexts(), len(registry.asked)
    for _ in range(2):
        await texts.shown([record(framed(3, b"{}"))], registry.ask)
    assert opened == ["json-schema"] and len(registry.asked) == asked + 2
