"""Goal: `consume`, queues and schedules take serializers as producers and consumers do; what does
not fit is named, and can be settled."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

import lakemq
from lakemq import NewRecord
from tests.support.node.node import NodeProcess, unique

pytestmark = pytest.mark.partitions(2)
JSON: dict[str, Any] = {"key_deserializer": "string", "value_deserializer": "json"}
SCHEMA = json.dumps({"type": "object", "properties": {"t": {"type": "number"}}})


@pytest.fixture
def filled(client: lakemq.SyncClient, topic: str) -> str:
    for number in range(10):
        value = b'{"n":%d}' % number
        client.send_batch(topic, [NewRecord(value, b"k")], partition=number % 2)
    return topic


async def test_consume_makes_values(node: NodeProcess, filled: str) -> None:
    async with lakemq.Client(node.native) as client:
        found = [(each.key, each.value["n"]) async for each in client.consume(filled, **JSON)]  # type: ignore[index]
        placed = [
            (each.partition, each.offset, each.value["n"])
            async for each in client.consume_from(filled, {1: 2}, value_deserializer="json")
        ]
    assert sorted(found) == [("k", number) for number in range(10)]
    assert placed == [(1, offset, 2 * offset + 1) for offset in range(2, 5)]


def test_blocking_consume_makes_values(client: lakemq.SyncClient, filled: str) -> None:
    for follow in (False, True):
        found: list[tuple[Any, Any]] = []
        for each in client.consume(filled, follow=follow, **JSON):
            found.append((each.key, each.value["n"]))  # type: ignore[index]
            if len(found) == 10:
                break
        assert sorted(found) == [("k", number) for number in range(10)]
    made = client.consume_from(filled, {0: 4}, **JSON)
    assert [(each.topic, each.value) for each in made] == [(filled, {"n": 8})]


def test_values_of_a_schema_ask_for_it_once(node: NodeProcess) -> None:
    topic = unique("schemas")
    with lakemq.connect(node.native) as client:
        client.create_topic(topic)
        client.schemas.register(topic, "json-schema", SCHEMA)
        serializer = client.schemas.serializer(topic)
        client.send_batch(topic, [NewRecord(serializer({"t": each})) for each in range(3)])
    with lakemq.connect(node.native) as client:
        records = client.consume(topic, value_deserializer="schema")
        assert [each.value for each in records] == [{"t": 0}, {"t": 1}, {"t": 2}]
        with client.queue(topic, group=topic, value_deserializer="schema") as queue:
            found = []
            while len(found) < 3:
                found += queue.next_batch(3, timeout_s=30)
        assert [each.value for each in found] == [{"t": 0}, {"t": 1}, {"t": 2}]


async def test_consume_names_what_it_does_not_take(
    node: NodeProcess, client: lakemq.SyncClient, topic: str
) -> None:
    client.send_batch(topic, [NewRecord(b"1"), NewRecord(b"{"), NewRecord(b"3")], partition=0)
    async with lakemq.Client(node.native) as asked:
        found = []
        with pytest.raises(lakemq.DeserializationError, match="partition 0 offset 1") as told:
            async for each in asked.consume(topic, value_deserializer="json"):
                found.append(each.value)
        assert found == [1] and told.value.record.value == b"{"
    with pytest.raises(lakemq.DeserializationError, match="partition 0 offset 1"):
        list(client.consume(topic, value_deserializer="json"))


def test_a_queue_makes_values_and_lets_others_be_settled(client: lakemq.SyncClient) -> None:
    topic = unique("queue")
    client.create_topic(topic)
    values = (b"0", b"1", b"{", b"3")
    client.send_batch(topic, [NewRecord(each, b"k") for each in values])
    dead = unique("dead")
    with client.queue(topic, group=topic, dead_letter=dead, **JSON) as queue:
        found: list[Any] = []
        while len(found) < 3:
            try:
                records = queue.next_batch(10, timeout_s=30)
                queue.ack(records)
                found += [(each.key, each.value) for each in records]
            except lakemq.DeserializationError as error:
                assert len(found) == 2 and error.offset == 2, "what came before it comes first"
                error.queue_record.reject()
        assert found == [("k", 0), ("k", 1), ("k", 3)]
    letter = next(client.consume(dead, follow=True))
    assert letter.value == b"{"


async def test_a_queue_in_asyncio(node: NodeProcess, filled: str) -> None:
    async with (
        lakemq.Client(node.native) as client,
        client.queue(filled, group=filled, **JSON) as queue,
    ):
        found = []
        async for record in queue:
            await record.ack()
            found.append(record.value["n"])
            if len(found) == 10:
                break
    assert sorted(found) == list(range(10))


def test_schedules_take_serializers(client: lakemq.SyncClient, topic: str) -> None:
    soon: dict[str, Any] = {"delay": timedelta(milliseconds=1), "value_serializer": "json"}
    client.schedules.send(topic, {"n": 1}, key="k", key_serializer="string", partition=0, **soon)
    client.schedules.send_batch(topic, [NewRecord({"n": 2}), NewRecord(None)], partition=0, **soon)
    found = []
    for each in client.consume(topic, follow=True, partition=0):
        found.append((each.key, each.value))
        if len(found) == 3:
            break
    assert sorted(found, key=str) == [(None, None), (None, b'{"n":2}'), (b"k", b'{"n":1}')]
    with pytest.raises(lakemq.InvalidRequest, match="value_serializer: TypeError"):
        client.schedules.send(topic, object(), **soon)
