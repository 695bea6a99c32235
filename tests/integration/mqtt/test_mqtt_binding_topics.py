"""Goal: a binding's topic is created as the binding says, and one that exists stays as it is."""

from __future__ import annotations

from lakemq.broker_core.api.types import TopicConfig
from tests.support.mqtt.memory_broker import MemoryBroker, running_server


async def test_a_binding_says_what_its_topic_is_made_of() -> None:
    broker = MemoryBroker()
    await broker.create_topic("old", 7, None)
    bindings = [
        {
            "filter": "a/#",
            "topic": "new",
            "partitions": 3,
            "retention_ms": -1,
            "cleanup": "compact",
        },
        {"filter": "b/#", "topic": "new", "partitions": 9},  # the first one counts
        {"filter": "c/#", "topic": "old", "partitions": 3},
        {"filter": "#", "topic": "plain", "retention_bytes": 1000},
    ]
    async with running_server(broker, bindings=bindings):
        pass
    defaults = TopicConfig()
    assert broker.created["new"] == (3, TopicConfig(retention_ms=None, cleanup="compact"))
    assert broker.created["old"] == (7, None)
    partitions, config = broker.created["plain"]
    assert (partitions, config) == (None, TopicConfig(retention_bytes=1000))
    assert config is not None
    assert config.retention_ms == defaults.retention_ms
