"""Goal: a node tells every metric of docs/metrics.md, and a load moves them."""

from __future__ import annotations

import asyncio
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import aiomqtt
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

import lakemq
from tests.support.node.metrics import Series, listed, scraped
from tests.support.node.node import PORTS_FREE, NodeProcess
from tools.metrics_page import attributes_of

CONFIG: Final = (
    PORTS_FREE.replace(
        "[plugins.mqtt]",
        "[plugins.mqtt]\nqueue_count_max = 2\nretained_count_max = 1\nsystem_topics_interval_s = 0",
    )
    + """
[[plugins.bridge.links]]
name = "far"
url = "mqtt://127.0.0.1:1"
[[plugins.bridge.links.rules]]
direction = "out"
filter = "far/#"
"""
)
"""Small enough that limits are reached, without `$SYS`, whose values are retained; a bridge
to where nothing listens."""
WITH_WILL: Final = bytes.fromhex("1018 0004 4d515454 04 0e 003c 0001 77 0006 642f77696c6c 0001 78")
"""MQTT 3.1.1, client `w` with the will `x` for `d/will`, QoS 1."""
CONNECT: Final = bytes.fromhex("100d 0004 4d515454 04 02 003c 0001 69")
"""MQTT 3.1.1, client `i`."""
NO_PACKET: Final = bytes.fromhex("0000")
ACCESS: Final = "integration/telemetry/test_metrics_of_access.py"
BRIDGE: Final = "integration/telemetry/test_metrics_of_a_bridge.py"
CLUSTER: Final = "integration/telemetry/test_metrics_of_a_cluster.py"
RAFT: Final = "simulation/raft/test_raft_counters.py"
MISTAKES: Final = "integration/telemetry/test_metrics_of_mistakes.py"
JOURNAL: Final = "unit/journal/test_journal_plugin.py"
PROCESS: Final = "unit/test_process_metrics.py"
TRANSACTIONS: Final = "unit/broker_core/transactions/test_transaction_counters.py"
DELIVERY: Final = "unit/mqtt/session/test_mqtt_delivery.py"
DAMAGE: Final = "fault/cluster/test_damaged_disks.py"
QUARANTINE: Final = "integration/admin/test_plugin_quarantine.py"
REPLICATION: Final = "unit/broker_core/replication/test_replication_metrics.py"
EXPRESS: Final = "unit/mqtt/feeds/test_mqtt_express.py"
SESSIONS: Final = "fault/cluster/mqtt/test_mqtt_sessions.py"
CHANNELS: Final = "integration/cluster/test_channels.py"
WEBHOOKS: Final = "integration/webhook/test_webhooks.py"
ELSEWHERE: Final = {
    "bridge.connected": f"{BRIDGE}:bridge.connected",
    "bridge.connects": f"{BRIDGE}:bridge.connects",
    "bridge.forwarded": "unit/bridge/test_bridge_boxes.py:outbox.sent",
    "bridge.inflight": f"{BRIDGE}:bridge.inflight",
    "bridge.lag": f"{BRIDGE}:bridge.lag",
    "bridge.lost": f"{BRIDGE}:bridge.lost",
    "bridge.received": "unit/bridge/test_bridge_boxes.py:inbox.received",
    "bridge.refused": "unit/bridge/test_bridge_receiver.py:receiver.refused",
    "bridge.repeated": "unit/bridge/test_bridge_boxes.py:inbox.repeated",
    "bridge.unasked": "unit/bridge/test_bridge_receiver.py:receiver.unasked",
    "bridge.unreadable": "unit/bridge/test_bridge_boxes.py:reader.unreadable",
    "channels.dropped": f"{CHANNELS}:channels.dropped",
    "channels.received": f"{CHANNELS}:channels.received",
    "channels.received_bytes": f"{CHANNELS}:channels.received_bytes",
    "channels.sent": f"{CHANNELS}:channels.sent",
    "channels.sent_bytes": f"{CHANNELS}:channels.sent_bytes",
    "corrupt_batches": "integration/node/test_poisoned_batches.py:lakemq_corrupt_batches",
    "elections": f"{REPLICATION}:elections",
    "interceptors.calls": f"{MISTAKES}:interceptors.calls",
    "interceptors.failures": f"{MISTAKES}:interceptors.failures",
    "interceptors.quarantined": f"{QUARANTINE}:interceptors_quarantined",
    "interceptors.quarantines": f"{QUARANTINE}:interceptors_quarantines",
    "interceptors.slow": f"{MISTAKES}:interceptors.slow",
    "interceptors.time": f"{MISTAKES}:interceptors.time",
    "isr.changes": f"{REPLICATION}:isr.changes",
    "journal.damaged_segments": f"{DAMAGE}:damaged_segments",
    "journal.damages_found": f"{DAMAGE}:damages_found",
    "journal.disk_reads": f"{MISTAKES}:journal.disk_reads",
    "journal.duplicates": f"{MISTAKES}:journal.duplicates",
    "journal.failed_flushes": f"{JOURNAL}:failed_flushes",
    "journal.fenced_partitions": f"{JOURNAL}:fenced_partitions",
    "journal.refused_appends": f"{MISTAKES}:journal.refused_appends",
    "journal.repaired_segments": f"{DAMAGE}:repaired_segments",
    "journal.scrubbed_bytes": f"{DAMAGE}:scrubbed_bytes",
    "journal.unflushed_bytes": f"{JOURNAL}:unflushed_bytes",
    "ledger.failures": "unit/ledger/test_ledger_crashes.py:keeper.failures",
    "meta.cluster.nodes_wanted": "unit/meta_service/control/test_advice.py:nodes_wanted",
    "meta.partitions.eligible_used": f"{CLUSTER}:eligible_used",
    "meta.partitions.leaderless": "unit/meta_service/control/test_partition_health.py:leaderless",
    "meta.partitions.moving": "unit/meta_service/control/test_partition_counts.py:moving",
    "meta.partitions.under_min_in_sync": f"{CLUSTER}:under_min_in_sync",
    "meta.partitions.under_replicated": f"{CLUSTER}:under_replicated",
    "meta.raft.dropped": "unit/meta_service/cluster/test_raft_links.py:wire.dropped",
    "meta.raft.elections": f"{CLUSTER}:meta.raft.elections",
    "meta.raft.lag": f"{CLUSTER}:meta.raft.lag",
    "meta.raft.leader": f"{CLUSTER}:meta.raft.leader",
    "meta.raft.learners": "simulation/raft/test_raft_membership.py:learners",
    "meta.raft.read_rounds": f"{RAFT}:.rounds",
    "meta.raft.received": f"{CLUSTER}:meta.raft.received",
    "meta.raft.sent": f"{CLUSTER}:meta.raft.sent",
    "meta.raft.snapshots.installed": f"{RAFT}:snapshots_installed",
    "meta.raft.snapshots.sent": f"{RAFT}:snapshots_sent",
    "meta.raft.term": f"{CLUSTER}:meta.raft.term",
    "meta.raft.voters": f"{CLUSTER}:meta.raft.voters",
    "meta.raft.waiting": f"{RAFT}:.waiting",
    "meta.snapshot.age": f"{CLUSTER}:meta.snapshot.age",
    "meta.watchers": f"{CLUSTER}:meta.watchers",
    "mqtt.batches.corrupt": "unit/mqtt/state/test_mqtt_stored_records.py:batches_corrupt",
    "mqtt.connections.redirected": (
        "unit/mqtt/session/test_mqtt_authenticating.py:connections_redirected"
    ),
    "mqtt.connections.refused": "integration/mqtt/test_mqtt_limits.py:connections_refused",
    "mqtt.connections.unauthenticated": "integration/mqtt/test_mqtt_storm.py:let_in",
    "mqtt.credentials.ended": "unit/security/test_security_withdrawn.py:rights.ended",
    "mqtt.delayed.published": "unit/mqtt/routing/test_mqtt_delayed.py:delays.published",
    "mqtt.delayed.refused": "unit/mqtt/routing/test_mqtt_delayed.py:delays.refused",
    "mqtt.dropped.expired": f"{DELIVERY}:dropped_expired",
    "mqtt.dropped.gone": f"{DELIVERY}:dropped_gone",
    "mqtt.dropped.qos_0": "integration/mqtt/test_mqtt_robustness.py:dropped_qos_0",
    "mqtt.keep_alive.timeouts": f"{MISTAKES}:mqtt.keep_alive.timeouts",
    "mqtt.publishes.failed": f"{MISTAKES}:mqtt.publishes.failed",
    "mqtt.publishes.not_led": f"{CLUSTER}:mqtt.publishes.not_led",
    "mqtt.express.dropped": f"{EXPRESS}:express_dropped",
    "mqtt.express.received": f"{EXPRESS}:express_received",
    "mqtt.express.sent": f"{EXPRESS}:express_sent",
    "mqtt.records.unreadable": "unit/mqtt/state/test_mqtt_stored_records.py:records_unreadable",
    "mqtt.replays": "unit/mqtt/routing/test_mqtt_history.py:hub.histories",
    "mqtt.sessions.left": f"{SESSIONS}:sessions_left",
    "mqtt.sessions.taken": f"{SESSIONS}:sessions_taken",
    "mqtt.sessions.expired": "unit/mqtt/session/test_mqtt_sessions.py:sessions_expired",
    "mqtt.subscribers.slow": "unit/mqtt/session/test_mqtt_operating.py:slow.noted",
    "mqtt.subscriptions.withdrawn": "unit/security/test_security_withdrawn.py:rights.withdrawn",
    "native.group.lag.left_out": "integration/native/test_native_bounds.py:lakemq_native_group_lag",
    "node.config.reloads": "integration/cli/test_reload.py:reloads",
    "node.config.restart_pending": "integration/cli/test_reload.py:restart_pending",
    "node.loop.stalled": f"{MISTAKES}:node.loop.stalled",
    "node.loop.stalls": f"{MISTAKES}:node.loop.stalls",
    "partitions.followed": f"{REPLICATION}:partitions.followed",
    "partitions.leaderless": f"{REPLICATION}:partitions.leaderless",
    "partitions.led": f"{REPLICATION}:partitions.led",
    "partitions.under_min_isr": f"{REPLICATION}:partitions.under_min_isr",
    "partitions.under_replicated": f"{REPLICATION}:partitions.under_replicated",
    "process.file_descriptor.limit": f"{PROCESS}:file_descriptor.limit",
    "process.memory.virtual": f"{PROCESS}:memory.virtual",
    "process.thread.count": f"{PROCESS}:thread.count",
    "replication.lag_records": f"{REPLICATION}:replication.lag_records",
    "replication.lag_time": f"{REPLICATION}:replication.lag_time",
    "replication.received": f"{REPLICATION}:replication.received",
    "replication.sent": f"{REPLICATION}:replication.sent",
    "security.authorizers.failures": f"{ACCESS}:security.authorizers.failures",
    "security.authorizers.questions": "unit/security/test_security_questions.py:questions",
    "security.logins.hasty": f"{ACCESS}:security.logins.hasty",
    "security.logins.refused": f"{ACCESS}:security.logins.refused",
    "security.passwords.checked": f"{ACCESS}:security.passwords.checked",
    "security.passwords.turned_away": f"{ACCESS}:security.passwords.turned_away",
    "security.quota.waits": "integration/security/test_security_node.py:quota_waits",
    "system.filesystem.limit": f"{PROCESS}:filesystem.limit",
    "transactions.applying": f"{TRANSACTIONS}:counters.applying",
    "transactions.expired": f"{MISTAKES}:transactions.expired",
    "transactions.resumed": f"{TRANSACTIONS}:counters.resumed",
    "transactions.waiting.bytes": f"{MISTAKES}:transactions.waiting.bytes",
    "webhook.failures": f"{WEBHOOKS}:webhook_failures",
    "webhook.lost": f"{WEBHOOKS}:webhook_lost",
    "webhook.records": f"{WEBHOOKS}:webhook_records",
    "webhook.skipped": f"{WEBHOOKS}:webhook_skipped",
}
"""Metric that this load does not move, less `lakemq.` -> the test that does, and the name that it
has for it."""


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
    # The newer one of the same name ends what the older one began.
    with (
        pytest.raises(lakemq.LakeMQError),
        client.transactional_producer("f") as older,
        older.transaction() as pending,
    ):
        pending.send("t", b"1")
        with client.transactional_producer("f"):
            pass


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
        # There is room for one.
        await client.publish("kept/2", b"x", qos=0, retain=True)
        await client.publish("$SYS/mine", b"x", qos=0)
    small = Properties(PacketTypes.CONNECT)
    small.MaximumPacketSize = 100
    async with aiomqtt.Client(**there, properties=small) as client:
        await client.subscribe("big", qos=1)
        await client.publish("big", bytes(100), qos=1)
    # It goes without a DISCONNECT, so its will is published.
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(WITH_WILL)
    await asyncio.wait_for(reader.read(1), 20)
    writer.close()


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Series, Series]:
    """What a node tells before a small load, and at its end."""
    with NodeProcess(tmp_path_factory.mktemp("metrics"), CONFIG) as node:
        before = scraped(node.addresses["admin"])
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
                return before, scraped(node.addresses["admin"])


def test_every_metric_moves_that_a_load_can_move(told: tuple[Series, Series]) -> None:
    before, after = told
    names = {shown: name.removeprefix("lakemq.") for shown, name in listed().items()}
    still = {name for shown, name in names.items() if before.get(shown) == after.get(shown)}
    assert still - ELSEWHERE.keys() == set()


@pytest.mark.parametrize(("name", "where"), ELSEWHERE.items())
def test_what_moves_elsewhere_is_there(name: str, where: str) -> None:
    file, _, word = where.partition(":")
    assert word in (Path("tests") / file).read_text(), name


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
    assert ELSEWHERE.keys() <= names
