"""Goal: nothing that should cross a bridge is lost, whatever breaks; QoS 2 crosses exactly once.

Method: a real node, bridged over a wire that can be cut to a Mosquitto (or a second node, or
amqtt's broker); cuts, kill -9 and restarts while records flow; then every payload is counted.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakemq import connect
from lakemq.plugins.native.sdk import NewRecord
from tests.support.node.node import PORTS_FREE, NodeProcess
from tests.support.node.ports import free_port
from tests.support.remote_brokers import (
    MOSQUITTO,
    BrokerProcess,
    Wire,
    amqtt,
    listening,
    mosquitto,
    publish_all,
    publishing,
)

pytestmark = pytest.mark.fault
needs_mosquitto = pytest.mark.skipif(
    MOSQUITTO is None, reason="Mosquitto is not installed (apt-get install mosquitto)"
)
LINK = """
[[plugins.bridge.links]]
name = "remote"
url = "mqtt://127.0.0.1:{port}"
retry_min_ms = 50
retry_max_ms = 200
ack_timeout_ms = 3000
inflight_max = 50
commit_ms = 100
start = "earliest"
{more}
[[plugins.bridge.links.rules]]
direction = "out"
filter = "out/#"
remote_prefix = "site/"
qos = {qos}
[[plugins.bridge.links.rules]]
direction = "in"
filter = "in/#"
local_prefix = "from/"
qos = {qos}
"""
COUNT = 600
BOTH = (1, 2) if os.environ.get("LAKEMQ_BRIDGE_FAULTS") else (2,)
"""What takes long is done with QoS 2 alone, unless `LAKEMQ_BRIDGE_FAULTS=1` asks for more."""


def bridged(folder: Path, port: int, qos: int, more: str = "") -> NodeProcess:
    return NodeProcess(folder, PORTS_FREE + LINK.format(port=port, qos=qos, more=more))


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = mosquitto(tmp_path / "mosquitto").start()
    try:
        yield broker
    finally:
        broker.stop(signal.SIGKILL)


def store(node: NodeProcess, first: int, count: int) -> None:
    """Records of devices, in the topic that the bridge reads."""
    with connect(node.native) as client:
        if "mqtt" not in {topic.name for topic in client.topics()}:
            client.create_topic("mqtt")
        records = [
            NewRecord(b"%d" % number, b"out/%d" % (number % 7))
            for number in range(first, first + count)
        ]
        client.send_batch("mqtt", records)


def expected(count: int = COUNT) -> Counter[tuple[str, bytes]]:
    return Counter((f"site/out/{number % 7}", b"%d" % number) for number in range(count))


def check(got: list[tuple[str, bytes]], qos: int, count: int = COUNT) -> None:
    found, wanted = Counter(got), expected(count)
    assert set(found) == set(wanted), f"lost {len(set(wanted) - set(found))}"
    if qos == 2:
        assert found == wanted, f"repeated {sum((found - wanted).values())}"


@needs_mosquitto
@pytest.mark.parametrize("qos", [1, 2])
def test_cut_links_and_killed_nodes_lose_nothing_outwards(
    tmp_path: Path, remote: BrokerProcess, qos: int
) -> None:
    seed = 5
    chance = random.Random(seed)
    with (
        Wire(remote.port) as wire,
        listening(remote.port, "site/#") as listener,
        bridged(tmp_path / "node", wire.port, qos) as node,
    ):
        for part in range(6):
            store(node, part * COUNT // 6, COUNT // 6)
            time.sleep(chance.uniform(0.0, 0.15))
            if part % 2:
                wire.cut()
            else:
                wire.bytes_until_cut = chance.randrange(200, 4000)
            if part in (2, 4):
                node.kill()
                node.start()
        check(listener.wait_for(COUNT, distinct=True), qos)
        time.sleep(0.5)  # were there repetitions, they would come now
        check(listener.got, qos)


@needs_mosquitto
@pytest.mark.parametrize("qos", BOTH)
def test_a_remote_broker_that_restarts_gets_everything(
    tmp_path: Path, remote: BrokerProcess, qos: int
) -> None:
    with (
        listening(remote.port, "site/#") as listener,
        bridged(tmp_path / "node", remote.port, qos) as node,
    ):
        store(node, 0, COUNT // 2)
        listener.wait_for(20)
        remote.stop()
        store(node, COUNT // 2, COUNT // 2)
        time.sleep(0.3)
        remote.start()
        check(listener.wait_for(COUNT, distinct=True), qos)


@pytest.mark.parametrize("qos", BOTH)
def test_a_remote_node_killed_again_and_again_gets_everything(tmp_path: Path, qos: int) -> None:
    """The remote broker is a node, so what it acknowledged outlives kill -9 there, too."""
    port = free_port()
    config = PORTS_FREE.replace("mqtt]\nport = 0", f"mqtt]\nport = {port}")
    far = NodeProcess(tmp_path / "far", config)
    far.start()
    try:
        with bridged(tmp_path / "node", port, qos) as node:
            for part in range(3):
                store(node, part * COUNT // 3, COUNT // 3)
                time.sleep(0.1 * part)
                far.kill()
                far.start()
            got = arrived(far, "mqtt", "site/")
            check(got, qos)
    finally:
        far.kill()


def arrived(
    node: NodeProcess, topic: str, prefix: str, count: int = COUNT
) -> list[tuple[str, bytes]]:
    """Waits until `count` different records whose key begins so are in a node's topic."""
    deadline = time.monotonic() + 60
    while True:
        with connect(node.native) as client:
            got = [
                (record.key.decode(), record.value or b"")
                for record in client.consume(topic)
                if record.key is not None
                and record.key.startswith(prefix.encode())
                and record.value != b"probe"
            ]
        if len(set(got)) >= count or time.monotonic() > deadline:
            return got
        time.sleep(0.1)


@needs_mosquitto
@pytest.mark.parametrize("qos", BOTH)
def test_what_the_remote_broker_publishes_is_stored_over_cuts_and_kills(
    tmp_path: Path, remote: BrokerProcess, qos: int
) -> None:
    seed = 7
    chance = random.Random(seed)
    names = [f"in/{number % 7}" for number in range(COUNT)]
    payloads = [b"%d" % number for number in range(COUNT)]
    wanted = Counter((f"from/{name}", data) for name, data in zip(names, payloads, strict=True))
    with Wire(remote.port) as wire, bridged(tmp_path / "node", wire.port, qos) as node:
        wait_for_subscription(remote.port, node)
        with publishing(remote.port) as client:
            for part in range(6):
                some = slice(part * COUNT // 6, (part + 1) * COUNT // 6)
                wire.bytes_until_cut = chance.randrange(100, 4000)
                publish_all(client, names[some], payloads[some], qos)
                if part in (2, 4):
                    node.kill()
                    node.start()
        arrived(node, "mqtt", "from/")
        time.sleep(0.5)  # were there repetitions, they would come now
        found = Counter(arrived(node, "mqtt", "from/"))
    assert set(found) == set(wanted), f"lost {len(set(wanted) - set(found))}"
    if qos == 2:
        repeated = (found - wanted).total()
        assert repeated <= wire.released.sent_again, f"repeated {repeated}"


def wait_for_subscription(port: int, node: NodeProcess) -> None:
    """Until a publish at the remote broker comes in."""
    with publishing(port, "probe") as client:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            client.publish("in/probe", b"probe", 1).wait_for_publish(5)
            time.sleep(0.1)
            with connect(node.native) as reader:
                if any(record.key == b"from/in/probe" for record in reader.consume("mqtt")):
                    break


@needs_mosquitto
def test_a_silent_remote_broker_is_found_out(tmp_path: Path, remote: BrokerProcess) -> None:
    """It takes bytes and answers nothing: the link ends, and nothing is lost when it comes to
    itself."""
    with (
        listening(remote.port, "site/#") as listener,
        bridged(tmp_path / "node", remote.port, 2, "keep_alive_s = 2") as node,
    ):
        store(node, 0, 100)
        listener.wait_for(100)
        remote.pause()
        store(node, 100, 100)
        deadline = time.monotonic() + 60
        while "no answer to a ping within" not in (text := node.log_file.read_text()):
            assert time.monotonic() < deadline, text
            time.sleep(0.05)
        remote.resume()
        check(listener.wait_for(200), 2, 200)


def test_amqtt_as_remote_broker_gets_everything_over_cut_links(tmp_path: Path) -> None:
    far = amqtt(tmp_path / "amqtt").start()
    try:
        with (
            Wire(far.port) as wire,
            listening(far.port, "site/#", 1) as listener,
            bridged(tmp_path / "node", wire.port, 1) as node,
        ):
            for part in range(3):
                wire.bytes_until_cut = 1500 * (part + 1)
                store(node, part * 50, 50)
                time.sleep(0.3)
            check(listener.wait_for(150, distinct=True), 1, 150)
    finally:
        far.stop(signal.SIGKILL)
