"""Goal: amqtt's client, a second independent implementation of 3.1.1, works with the server."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # amqtt's own imports warn
    from amqtt.client import MQTTClient

from tests.support.mqtt.memory_broker import running_server

WAIT_S = 30


@asynccontextmanager
async def connected(port: int, client_id: str) -> AsyncIterator[MQTTClient]:
    client = MQTTClient(client_id, config={"auto_reconnect": False})
    await client.connect(f"mqtt://127.0.0.1:{port}/")
    try:
        yield client
    finally:
        await client.disconnect()


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_publish_and_subscribe(qos: int) -> None:
    async with (
        running_server() as (_, broker, port),
        connected(port, "reader") as reader,
        connected(port, "sender") as sender,
    ):
        assert await reader.subscribe([("a/+", qos)]) == [qos]
        for number in range(20):
            await sender.publish(f"a/{number}", b"%d" % number, qos)
        got = []
        for _ in range(20):
            message = await asyncio.wait_for(reader.deliver_message(), WAIT_S)
            assert message is not None
            got.append(message.data)
        assert got == [b"%d" % number for number in range(20)]
        assert len(broker.values("mqtt")) == (20 if qos else 0)
        await reader.unsubscribe(["a/+"])


async def test_retained() -> None:
    async with running_server() as (_, _, port), connected(port, "one") as one:
        await one.publish("state", b"on", 1, retain=True)
        await one.subscribe([("state", 1)])
        message = await asyncio.wait_for(one.deliver_message(), WAIT_S)
        assert message is not None
        assert bytes(message.data) == b"on"
        assert message.retain
