"""Goal: a node tells every metric of docs/metrics.md, and a load moves them."""

from __future__ import annotations

import asyncio
import re
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import aiomqtt
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from prometheus_client.parser import text_string_to_metric_families

import lakemq
from tests.support.node.admin_api import ask
from tests.support.node.node import PORTS_FREE, NodeProcess
from tools.metrics_page import attributes_of

CONFIG: Final = (
    PORTS_FREE.replace("[plugins.mqtt]", "[plugins.mqtt]\nqueue_count_max = 2")
    + """
[[plugins.bridge.links]]
name = "far"
url = "mqtt://127.0.0.1:1"
[[plugins.bridge.links.rules]]
direction = "out"
filter = "far/#"
"""
)
"""Small enough that limits are reached, and a bridge to where nothing listens."""
WITH_WILL: Final = bytes.fromhex("1018 0004 4d515454 04 0e 003c 0001 77 0006 642f77696c6c 0001 78")
"""MQTT 3.1.1, client `w` with the will `x` for `d/will`, QoS 1."""
CONNECT: Final = bytes.fromhex("100d 0004 4d515454 04 02 003c 0001 69")
"""MQTT 3.1.1, client `i`."""
NO_PACKET: Final = bytes.fromhex("0000")
Series = dict[str, dict[frozenset[tuple[str, str]], float]]
"""Name in Prometheus -> attributes -> value."""


ELSEWHERE: Final = {
    "what a plugin's interceptor does": ["interceptors."],
    "a bridge that reaches its remote broker": [
        "bridge.connected", "bridge.connects", "bridge.forwarded", "bridge.inflight",
        "bridge.lag", "bridge.lost", "bridge.received", "bridge.refused", "bridge.repeated",
        "bridge.unasked", "bridge.unreadable",
    ],
    "a configuration that is read again": ["node.config."],
    "several brokers": [
        "elections", "isr.", "partitions.", "replication.", "meta.partitions.",
        "meta.cluster.", "meta.raft.", "mqtt.connections.redirected", "mqtt.publishes.not_led",
    ],
    "damaged files, full disks and clients that repeat": [
        "corrupt_batches", "ledger.failures", "journal.damage", "journal.disk_reads",
        "journal.duplicates",
        "journal.failed_flushes", "journal.fenced_partitions", "journal.refused_appends",
        "journal.repaired_segments", "journal.scrubbed_bytes", "mqtt.batches.corrupt",
        "mqtt.records.unreadable", "mqtt.publishes.failed", "transactions.resumed",
    ],
    "users, rules and quotas": [
        "security.", "mqtt.credentials.ended", "mqtt.subscriptions.withdrawn",
        "mqtt.publishes.refused", "mqtt.connections.refused", "mqtt.delayed.refused",
    ],
    "moments, time that passes, and clients that are slow or silent": [
        "journal.unflushed_bytes", "meta.snapshot.age", "mqtt.connections.unauthenticated",
        "mqtt.delayed.published",
        "mqtt.dropped.expired", "mqtt.dropped.gone", "mqtt.dropped.qos_0",
        "mqtt.dropped.too_large", "mqtt.keep_alive.timeouts", "mqtt.replays",
        "mqtt.sessions.expired", "mqtt.subscribers.slow", "node.loop.", "transactions.applying",
        "transactions.expired", "transactions.fenced", "transactions.waiting.bytes",
    ],
    "more of something than a limit allows": ["native.group.lag.left_out", "mqtt.retained.refused"],
    "nothing: limits of the machine, and what is there from the start": [
        "process.file_descriptor.limit", "system.filesystem.limit", "meta.watchers",
        "process.memory.virtual", "process.thread.count",
    ],
}  # fmt: skip
"""What moves a metric that this load does not move -> its beginning, less `lakemq.`. The tests of
their rooms show these."""


def scraped(node: NodeProcess) -> Series:
    found: Series = {}
    for family in text_string_to_metric_families(ask(node, "GET", "/metrics").body):
        for sample in family.samples:
            labels = ((k, v) for k, v in sample.labels.items() if not k.startswith("otel_scope"))
            found.setdefault(sample.name, {})[frozenset(labels)] = sample.value
    return found


def listed() -> dict[str, str]:
    """Name in Prometheus -> name, of what nodes tell."""
    page = Path("docs/metrics.md").read_text().partition("\n## Exports")[0]
    return {p: name for name, p in re.findall(r"^\| `([^`]+)` \| `([^`]+)`", page, re.MULTILINE)}


def native_load(client: lakemq.SyncClient) -> None:
    for name in ("t", "dead"):
        client.create_topic(name)
    client.create_topic("counted", config={"ledger": "interval=1h"})
    client.send("counted", b"x", key=b"device")
    for _ in range(3):
        client.send("t", b"x" * 100)
    with client.subscribe("t", group="g", start="earliest") as consumer:
        next(iter(consumer))
        consumer.commit()
    with client.transactional_producer("p") as producer, producer.transaction() as transaction:
        transaction.send("t", b"1")
    for name in ("soon", "late", "never"):
        delay = timedelta(milliseconds=1) if name == "soon" else timedelta(hours=1)
        client.schedules.send("t", b"2", delay=delay, schedule_id=name)
    client.schedules.cancel("never")


def queue_load(queue: lakemq.SyncQueue) -> None:
    records = iter(queue)
    next(records).ack()
    next(records).reject()
    # Not settled: its lock runs out, and it comes again.
    first = next(records)
    while next(records).offset != first.offset:
        pass


async def mqtt_load(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(NO_PACKET)
    await asyncio.wait_for(reader.read(), 20)
    writer.close()
    lasting = Properties(PacketTypes.CONNECT)
    lasting.SessionExpiryInterval = 60
    there: dict[str, Any] = {
        "hostname": "127.0.0.1",
        "port": port,
        "protocol": aiomqtt.ProtocolVersion.V5,
    }
    async with aiomqtt.Client(**there, identifier="gone", properties=lasting) as gone:
        await gone.subscribe("d/#", qos=1)
    async with aiomqtt.Client(**there) as client:
        await client.subscribe("d/+", qos=1)
        for number in range(5):
            await client.publish("d/1", b"%d" % number, qos=1)
            await anext(aiter(client.messages))
        await client.publish("$delayed/3600/d/late", b"x", qos=1)
        await client.publish("kept/1", b"x", qos=1, retain=True)
    # It goes without a DISCONNECT, so its will is published.
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(WITH_WILL)
    await asyncio.wait_for(reader.read(1), 20)
    writer.close()


def moves_elsewhere(name: str) -> bool:
    beginnings = tuple(each for group in ELSEWHERE.values() for each in group)
    return name.removeprefix("lakemq.").startswith(beginnings)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Series, Series]:
    """What a node tells before a small load, and at its end."""
    with NodeProcess(tmp_path_factory.mktemp("metrics"), CONFIG) as node:
        before = scraped(node)
        with (
            lakemq.connect(node.native, timeout_s=20) as client,
            socket.create_connection(("127.0.0.1", node.mqtt_port)) as idle,
        ):
            native_load(client)
            asyncio.run(mqtt_load(node.mqtt_port))
            idle.sendall(CONNECT)
            assert idle.recv(4)
            options = lakemq.QueueOptions(
                lock_ms=1000, attempts_max=5, dead_letter="dead", start="earliest"
            )
            with client.queue("t", group="q", **options) as queue:
                queue_load(queue)
                return before, scraped(node)


def test_every_metric_moves_that_a_load_can_move(told: tuple[Series, Series]) -> None:
    before, after = told
    names = listed()
    still = {name for shown, name in names.items() if before.get(shown) == after.get(shown)}
    assert {name for name in still if not moves_elsewhere(name)} == set()
    assert len(names) - len(still) > 60


def test_what_a_node_tells_is_in_the_table(told: tuple[Series, Series]) -> None:
    names = listed()
    # Of interceptors and of traffic between members there is none.
    assert set(told[1]) - {"target_info"} <= set(names)
    for shown, series in told[1].items():
        for labels in series if shown in names else ():
            assert {key for key, _ in labels} == {
                each.replace(".", "_") for each in attributes_of(names[shown])
            }, shown


def test_exceptions_name_metrics_that_there_are() -> None:
    names = {name.removeprefix("lakemq.") for name in listed().values()}
    for group in ELSEWHERE.values():
        for beginning in group:
            assert any(name.startswith(beginning) for name in names), beginning
