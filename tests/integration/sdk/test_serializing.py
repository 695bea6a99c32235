"""Goal: producers and consumers work with values of the application's own kinds; what does not fit
is named, never lost, and can be passed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pydantic
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

import lakemq
from lakemq import NewRecord, TopicPartition
from tests.support.node.node import NodeProcess, unique

AVRO = json.dumps({"type": "record", "name": "R", "fields": [{"name": "t", "type": "double"}]})
JSON = json.dumps(
    {"type": "object", "properties": {"t": {"type": "number"}}, "additionalProperties": False}
)
PROTO = 'syntax = "proto3"; message Reading { double t = 1; }'


class Reading(pydantic.BaseModel):
    t: float
    room: str = "hall"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("values")) as node:
        yield node


def reverse(value: str) -> bytes:
    return value.encode()[::-1]


KINDS: dict[str, tuple[Any, Any, Any, bytes]] = {
    "json": ("json", "json", {"a": [1, "\u00e9"]}, '{"a":[1,"\u00e9"]}'.encode()),
    "string": ("string", "string", "text", b"text"),
    "function": (reverse, lambda data: data[::-1].decode(), "abc", b"cba"),
    "model": (Reading, Reading, Reading(t=1.5), b'{"t":1.5,"room":"hall"}'),
    "message": (Timestamp, Timestamp, Timestamp(seconds=5), b"\x08\x05"),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_values_come_as_they_went(node: NodeProcess, kind: str) -> None:
    serializer, deserializer, value, stored = KINDS[kind]
    topic = unique("values")
    async with lakemq.Client(node.native) as client:
        await client.create_topic(topic)
        async with await client.producer(
            key_serializer="string", value_serializer=serializer
        ) as producer:
            await producer.send(topic, value, key="k")
            await producer.send_batch(topic, [NewRecord(value, "k"), NewRecord(None)])
        with (
            lakemq.connect(node.native) as blocking,
            blocking.producer(key_serializer="string", value_serializer=serializer) as other,
        ):
            other.enqueue(topic, NewRecord(value, "k"))
        raw = [(each.key, each.value) async for each in client.consume(topic)]
        assert raw == [(b"k", stored), (b"k", stored), (None, None), (b"k", stored)]
        async with client.assign(
            [TopicPartition(topic, 0)],
            start="earliest", key_deserializer="string", value_deserializer=deserializer,
        ) as consumer:  # fmt: skip
            found = [(each.key, each.value) async for each in consumer.until_idle(1.0)]
    assert found == [("k", value), ("k", value), (None, None), ("k", value)]


@pytest.mark.parametrize(("kind", "text"), [("json-schema", JSON), ("avro", AVRO)])
def test_values_of_a_schema(node: NodeProcess, kind: str, text: str) -> None:
    topic = unique("checked")
    with lakemq.connect(node.native) as client:
        client.schemas.register(topic, kind, text)
        client.create_topic(topic, config={"schema": topic})
        with client.producer(value_serializer=client.schemas.serializer(topic)) as producer:
            producer.send(topic, {"t": 1.5})
            with pytest.raises(lakemq.SchemaMismatch):
                producer.send(topic, {"t": "warm"})

            class Model(pydantic.BaseModel):
                t: float

            producer.send(topic, Model(t=2.5))
        with client.subscribe(topic, group="g", value_deserializer="schema") as consumer:
            found = [each.value for each in consumer.until_idle(3.0)]
    assert found == [{"t": 1.5}, {"t": 2.5}]


async def test_messages_of_a_schema(node: NodeProcess) -> None:
    topic = unique("checked")
    async with lakemq.Client(node.native) as client:
        await client.schemas.register(topic, "protobuf", PROTO)
        await client.create_topic(topic, config={"schema": topic})
        to_bytes = await client.schemas.serializer(topic)
        async with await client.producer(value_serializer=to_bytes) as producer:
            await producer.send(topic, {"t": 1.5})
        async with client.subscribe(topic, group="g", value_deserializer="schema") as consumer:
            record = await consumer.poll(20)
    assert record is not None and record.value.t == 1.5


async def test_what_does_not_fit_is_told_and_can_be_passed(node: NodeProcess) -> None:
    topic = unique("poison")
    values = [b"1", b"2", b"{", b"4", b"5"]
    place = TopicPartition(topic, 0)
    async with lakemq.Client(node.native) as client:
        await client.create_topic(topic)
        async with await client.producer() as producer:
            await producer.send_batch(topic, [NewRecord(each) for each in values])
        async with client.subscribe(topic, group="g", value_deserializer="json") as consumer:
            found: list[Any] = []
            for _ in range(3):  # again and again: nothing is passed unseen
                with pytest.raises(
                    lakemq.DeserializationError, match="offset 2: its value"
                ) as told:
                    async for record in consumer:
                        found.append(record.value)
            assert (told.value.place, told.value.offset) == (place, 2)
            assert told.value.record.value == b"{"
            assert found == [1, 2] and consumer.positions() == {place: 2}
            with pytest.raises(lakemq.DeserializationError):
                await consumer.poll(5)
            with pytest.raises(lakemq.DeserializationError):
                await consumer.get_many(5, 5)
            await consumer.commit()
            await consumer.seek(place, told.value.offset + 1)
            assert [each.value for each in await consumer.get_many(5, 5)] == [4, 5]
            await consumer.seek(place, 0)
            assert [each.value for each in await consumer.get_many(5, 5)] == [1, 2]
        with lakemq.connect(node.native) as blocking:
            assert blocking.describe_group("g").lag == 3
            with blocking.subscribe(topic, group="h", value_deserializer="json") as other:
                some: list[Any] = []
                for _ in range(2):
                    with pytest.raises(lakemq.DeserializationError):
                        for record in other:
                            some.append(record.value)
                with pytest.raises(lakemq.DeserializationError):
                    other.poll(5)
                other.seek(place, 3)
                last = other.poll(5)
                assert some == [1, 2] and last is not None and last.value == 4


async def test_an_unknown_schema_is_the_records_own_fault(node: NodeProcess) -> None:
    topic = unique("unknown")
    async with lakemq.Client(node.native) as client:
        await client.create_topic(topic)
        async with await client.producer() as producer:
            await producer.send(topic, b"\0\xff\xff\xff\xff{}")
            await producer.send(topic, b"plain")
        async with client.subscribe(topic, group="g", value_deserializer="schema") as consumer:
            with pytest.raises(lakemq.DeserializationError, match="offset 0"):
                await consumer.poll(20)
            await consumer.seek(TopicPartition(topic, 0), 1)
            with pytest.raises(lakemq.DeserializationError, match="offset 1"):
                await consumer.poll(20)


async def test_mistakes_are_named(node: NodeProcess) -> None:
    topic = unique("wrong")
    async with lakemq.Client(node.native) as client:
        await client.create_topic(topic)
        with pytest.raises(lakemq.InvalidRequest, match="value_serializer is 'jsn'; it takes"):
            await client.producer(value_serializer="jsn")
        with pytest.raises(lakemq.InvalidRequest, match="key_deserializer is 7"):
            client.subscribe(topic, group="g", key_deserializer=7)  # type: ignore[arg-type]
        with pytest.raises(lakemq.InvalidRequest, match="value_serializer is <class 'dict'>"):
            await client.producer(value_serializer=dict)
        async with await client.producer(value_serializer=Reading) as producer:
            with pytest.raises(lakemq.InvalidRequest, match="it is a dict, not a Reading"):
                await producer.send(topic, {"t": 1})
        async with await client.producer(value_serializer="json") as producer:
            with pytest.raises(lakemq.InvalidRequest, match="a set is no JSON"):
                await producer.send(topic, {1})
            with pytest.raises(lakemq.InvalidRequest, match="value_serializer: ValueError"):
                await producer.send_batch(topic, [NewRecord(float("nan"))])
            await producer.send(topic, {"at": datetime(2026, 1, 2, tzinfo=UTC)})
        assert [each.value async for each in client.consume(topic)] == [
            b'{"at":"2026-01-02T00:00:00+00:00"}'
        ]
