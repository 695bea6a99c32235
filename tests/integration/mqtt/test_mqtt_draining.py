"""Goal: a server that stops answers what it has taken before it disconnects its clients, who would
send it again to the next one, which would store it twice. Clients of a node that is drained are
sent to the other server, until it is not drained any more.
"""

from __future__ import annotations

import asyncio
import queue
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest

from lakemq.broker_core.api.records.batch import RecordBatch
from lakemq.broker_core.api.types import Operation
from lakemq.plugins.journal.segment.files import DiskFiles
from lakemq.plugins.journal.segment.walk import BatchAt
from lakemq.plugins.journal.tools.offline import partition_folders, read_segments
from lakemq.plugins.mqtt.limits import Limits
from lakemq.plugins.mqtt.ops.draining import SENT_AWAY_PER_TICK, Draining
from lakemq.plugins.mqtt.server import engine as engine_module
from lakemq.plugins.mqtt.wire.codec import Decoder
from lakemq.plugins.mqtt.wire.encoding import encode
from lakemq.plugins.mqtt.wire.packets import (
    V5,
    V311,
    Acknowledgement,
    Connack,
    Connect,
    Disconnect,
    PacketType,
    Publish,
)
from lakemq.plugins.mqtt.wire.reasons import Reason
from tests.support.mqtt.bench import Bench
from tests.support.mqtt.memory_broker import MemoryBroker, MqttServer, running_server, until
from tests.support.mqtt.raw_clients import WAIT_S, Pair, dial, other, rest_of
from tests.support.node.node import PORTS_FREE, NodeProcess

pytestmark = pytest.mark.usefixtures("raw_clients")

OTHER = "b.example.org:1883"
IN_FLIGHT = 20
"""Publishes of one client that are not acknowledged."""

# -- a node that stops


async def publishing(
    server: MqttServer, port: int, name: str, version: int = V5, qos: int = 1
) -> Pair:
    """A client whose publish the server has taken."""
    taken = server.hub.counters.publishes_received
    publish = encode(Publish(name, b"value", qos, packet_id=7), version)
    pair = await dial(port, encode(Connect("d", version), version) + publish)
    await until(
        lambda: (
            server.hub.counters.publishes_received > taken
            or any(each.asking for each in server.hub.connections)
        )
    )
    return pair


async def answers(reader: asyncio.StreamReader, version: int) -> list[Any]:
    """What came behind CONNACK until the end."""
    first, *others = Decoder(1 << 20, version=version).feed(await rest_of(reader))
    assert isinstance(first, Connack)
    return others


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize(
    ("qos", "name", "answer"),
    [(1, "t", "PUBACK"), (2, "t", "PUBREC"), (1, "$delayed/60/t", "PUBACK")],
)
async def test_what_was_taken_is_answered_before_the_goodbye(
    version: int, qos: int, name: str, answer: str
) -> None:
    async with running_server() as (server, broker, port):
        broker.held = asyncio.Event()
        reader, writer = await publishing(server, port, name, version, qos)
        stopping = asyncio.create_task(server.stop())
        await asyncio.sleep(0)
        # Not read any more, so neither stored nor answered.
        writer.write(encode(Publish("t", b"late", 1, packet_id=8), version))
        await asyncio.sleep(0.05)
        assert not stopping.done()
        broker.held.set()
        told, *goodbye = await answers(reader, version)
        assert told == Acknowledgement(PacketType[answer], 7)
        reasons = [each.reason for each in goodbye if isinstance(each, Disconnect)]
        assert reasons == ([Reason.SERVER_SHUTTING_DOWN] if version == V5 else [])
        assert len(goodbye) == len(reasons)
        assert broker.values("mqtt") == ([b"value"] if name == "t" else [])
        writer.close()
        await stopping


async def test_what_an_authorizer_is_asked_about_is_stored_and_answered() -> None:
    async with running_server() as (server, broker, port):
        broker.undecided.add((Operation.WRITE, "t"))
        reader, writer = await publishing(server, port, "t")
        stopping = asyncio.create_task(server.stop())
        await asyncio.sleep(0.05)
        broker.answers.set()
        assert (await answers(reader, V5))[0] == Acknowledgement(PacketType.PUBACK, 7)
        assert broker.values("mqtt") == [b"value"]
        writer.close()
        await stopping


async def test_storage_that_answers_never_does_not_keep_it_from_stopping(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_module, "CLOSE_LINGER_S", 0.05)
    async with running_server(durable=False) as (server, broker, port):
        broker.held = asyncio.Event()
        reader, _ = await publishing(server, port, "t")
        await asyncio.wait_for(server.stop(), 10)
        (goodbye,) = await answers(reader, V5)
        assert isinstance(goodbye, Disconnect)


async def test_the_answer_waits_for_a_client_that_reads_late() -> None:
    """The socket is not closed at once, although the client still sends."""
    async with running_server(**other()) as (server, broker, _):
        broker.held = asyncio.Event()
        reader, writer = await publishing(server, server.port("other"), "t")
        stopping = asyncio.create_task(server.stop())
        await asyncio.sleep(0.05)
        broker.held.set()
        await asyncio.sleep(0.2)
        assert not stopping.done()
        writer.write(encode(Publish("t", b"late", 1, packet_id=8), V5))
        told = await answers(reader, V5)
        assert [type(each) for each in told] == [Acknowledgement, Disconnect]
        writer.close()
        await stopping


class Publisher:
    """A client that publishes as fast as it is acknowledged, until its connection ends."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.under_way: dict[int, bytes] = {}
        self.acknowledged: set[bytes] = set()

    async def run(self, port: int) -> None:
        reader, writer = await dial(port, encode(Connect(self.name), V311))
        decoder = Decoder(1 << 20, version=V311)
        sent = 0
        while data := await reader.read(65_536):
            for packet in decoder.feed(data):
                if isinstance(packet, Acknowledgement):
                    self.acknowledged.add(self.under_way.pop(packet.packet_id))
            while len(self.under_way) < IN_FLIGHT:
                sent += 1
                packet_id, value = sent % 65_535 + 1, b"%s-%d" % (self.name.encode(), sent)
                self.under_way[packet_id] = value
                writer.write(encode(Publish("t", value, 1, packet_id=packet_id), V311))
        writer.close()


async def test_a_node_that_is_terminated_under_load_stores_nothing_unanswered(
    tmp_path: Path,
) -> None:
    """What is stored and not acknowledged its client publishes again: it would be there twice."""
    node = NodeProcess(tmp_path / "node", PORTS_FREE)
    try:
        node.start()
        publishers = [Publisher(f"p{number}") for number in range(8)]
        running = [asyncio.create_task(each.run(node.mqtt_port)) for each in publishers]
        await until(lambda: all(len(each.acknowledged) > 100 for each in publishers))
        assert await asyncio.to_thread(node.stop) == 0
        await asyncio.wait_for(asyncio.gather(*running), WAIT_S)
        assert any(each.under_way for each in publishers)
    finally:
        node.kill()
    acknowledged = set[bytes | None]().union(*(each.acknowledged for each in publishers))
    sent = acknowledged.union(*(each.under_way.values() for each in publishers))
    files = DiskFiles()
    stored = Counter(
        value
        for folder in partition_folders(files, node.data_dir)
        for batch in read_segments(files, folder, 0)
        if isinstance(batch, BatchAt)
        for value in RecordBatch(batch.data).values()
        if value in sent
    )
    assert stored == dict.fromkeys(acknowledged, 1)


# -- a node that is drained


async def test_it_sends_away_some_at_a_time_and_takes_them_in_again() -> None:
    bench = Bench(limits=Limits(server_reference=OTHER))
    broker = MemoryBroker()
    draining = Draining(bench.hub, broker)
    devices = [bench.connect(f"c{n}", version=V5) for n in range(SENT_AWAY_PER_TICK + 5)]
    await draining.look()
    draining.send_away(bench.now_ms)
    assert not any(device.closed for device in devices)
    broker.state = "draining"
    await draining.look()
    draining.send_away(bench.now_ms)
    assert sum(device.closed for device in devices) == SENT_AWAY_PER_TICK
    draining.send_away(bench.now_ms)
    assert all(device.closed for device in devices)
    goodbye = devices[0].one()
    assert isinstance(goodbye, Disconnect) and goodbye.reason == Reason.USE_ANOTHER_SERVER
    assert goodbye.properties.server_reference == OTHER
    late = bench.dial(V5).send(Connect("late", V5))
    assert late.one().code == Reason.USE_ANOTHER_SERVER and late.closed
    broker.state = "active"
    await draining.look()
    assert not bench.connect("again", version=V5).closed


async def test_without_another_server_nobody_is_sent_away() -> None:
    bench = Bench()
    draining = Draining(bench.hub, MemoryBroker())
    assert not any(draining.due() for _ in range(20))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    mqtt = f'[plugins.mqtt]\nserver_reference = "{OTHER}"'
    node = NodeProcess(tmp_path / "node", PORTS_FREE.replace("[plugins.mqtt]", mqtt))
    try:
        yield node.start()
    finally:
        node.kill()


def test_lakemq_meta_drain_reaches_real_clients(node: NodeProcess) -> None:
    said: queue.Queue[tuple[int, Any, Any]] = queue.Queue()

    def client(version: int) -> paho.Client:
        made = paho.Client(
            paho.CallbackAPIVersion.VERSION2,
            client_id=f"c{version}",
            protocol=paho.MQTTProtocolVersion(version),
            reconnect_on_failure=False,
        )
        made.on_disconnect = lambda c, u, flags, code, properties: said.put(
            (version, code.value, getattr(properties, "ServerReference", None))
        )
        connected = threading.Event()
        made.on_connect = lambda *_: connected.set()
        made.connect("127.0.0.1", node.mqtt_port)
        made.loop_start()
        assert connected.wait(WAIT_S)
        return made

    clients = [client(version) for version in (4, 5)]
    drain = [sys.executable, "-m", "lakemq", "node", "drain", "node-1"]
    subprocess.run([*drain, "--address", node.addresses["meta"]], check=True, timeout=WAIT_S)
    found = sorted([said.get(timeout=WAIT_S) for _ in clients], key=lambda one: one[0])
    assert [version for version, _, _ in found] == [4, 5]
    assert found[1] == (5, Reason.USE_ANOTHER_SERVER, OTHER)
    for each in clients:
        each.loop_stop()
