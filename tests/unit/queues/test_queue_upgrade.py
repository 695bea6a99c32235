"""Goal: a node alone keeps the topic of queues that an older build made, and goes on from it."""

from __future__ import annotations

import random
from typing import Any

from lakemq.broker_core.api.queues.types import QueueDelivery, QueueSettings
from lakemq.broker_core.api.records.batch import encode, read_header
from lakemq.broker_core.api.types import ANONYMOUS, Acks, Columns
from lakemq.broker_core.queues.host import QueueHost
from lakemq.broker_core.queues.settings import encode_settings
from lakemq.broker_core.queues.snapshot import (
    QUEUES_TOPIC,
    DeliveryState,
    QueueKey,
    Run,
    Snapshot,
    encode_key,
    encode_snapshot,
)
from tests.support.cluster.simulated_brokers import SimulatedBroker, World
from tests.support.virtual_time import run_virtually

PARTITIONS = 4
"""Of the topic, as builds from before had it."""
HOME = 3
"""Where they put the queue of group `g` on `jobs`: murmur2 of both names modulo 4."""


async def upgraded() -> None:
    world = World(random.Random(1), ("a",))
    jobs = world.create("jobs", 1)
    world.create(QUEUES_TOPIC, PARTITIONS)
    broker: Any = SimulatedBroker(world, "a")
    records = encode(Columns([b"0", b"1", b"2", b"3"]), now_ms=1)
    await broker.partition("jobs", 0).append(records, read_header(records), Acks.LEADER)
    # Record 0 is settled, 1 has failed twice, 2 and 3 were never given.
    snapshot = Snapshot(jobs.topic_id, 1, (Run(1, DeliveryState(2)),))
    entries = {
        encode_key(QueueKey("g", "jobs")): encode_settings(QueueSettings(lock_ms=7_000)),
        encode_key(QueueKey("g", "jobs", 0)): encode_snapshot(snapshot),
    }
    stored = encode(Columns(list(entries.values()), list(entries)), now_ms=1)
    await broker.partition(QUEUES_TOPIC, HOME).append(stored, read_header(stored), Acks.LEADER)

    host = QueueHost(broker)
    await host.start()
    assert host.names() == [("g", "jobs")]
    consumer = await host.open("g", "jobs", principal=ANONYMOUS)
    said = await consumer.next()
    assert isinstance(said, QueueDelivery)
    assert said.attempts == [3, 1, 1]
    assert said.lock_ms == 7_000
    assert world.topics[QUEUES_TOPIC].partitions == PARTITIONS
    assert len(world.parts[QUEUES_TOPIC, HOME].stored) == 1
    await host.stop()
    await world.stop()


def test_the_queues_of_an_older_build_go_on() -> None:
    run_virtually(upgraded())
