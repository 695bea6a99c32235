"""Goal: what MQTT clients were promised survives kill -9 of a real node.

Method: paho clients publish and subscribe while the node is killed and started again on the same
folder and port; the journal is what it is in production.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest

import lakemq
from tests.support.mqtt.faithful_paho import Paho
from tests.support.node.node import NodeProcess, ports_kept

pytestmark = pytest.mark.fault
WAIT_S = 60
LAST = 10_000


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    node = NodeProcess(tmp_path / "node", ports_kept("mqtt", checkpoint_ms=200)).start()
    try:
        yield node
    finally:
        node.kill()


def restart(node: NodeProcess) -> None:
    node.kill()
    node.start()


class Client:
    """A paho client with a session of its own that finds its way back."""

    def __init__(self, port: int, name: str) -> None:
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self.presents: queue.Queue[bool] = queue.Queue()
        self.subscribed = threading.Event()
        self.acknowledged: queue.Queue[int] = queue.Queue()
        client = Paho(paho.CallbackAPIVersion.VERSION2, client_id=name, clean_session=False)
        client.on_message = lambda c, u, message: self.messages.put(message)
        client.on_connect = lambda c, u, flags, code, p: self.presents.put(flags.session_present)
        client.on_subscribe = lambda *_: self.subscribed.set()
        client.on_publish = lambda c, u, mid, code, p: self.acknowledged.put(mid)
        client.reconnect_delay_set(0.05, 0.2)  # type: ignore[arg-type]
        client.max_queued_messages_set(0)
        client.max_inflight_messages_set(0)  # what lies behind its window it takes for unsent
        client.connect("127.0.0.1", port, keepalive=30)
        client.loop_start()
        self.client = client
        self.presents.get(timeout=WAIT_S)

    def subscribe(self, topic_filter: str, qos: int) -> None:
        self.subscribed.clear()
        self.client.subscribe(topic_filter, qos)
        assert self.subscribed.wait(WAIT_S)

    def take(self, into: dict[str, list[int]]) -> None:
        """Read one number."""
        message = self.messages.get(timeout=WAIT_S)
        into[message.topic].append(int(message.payload))

    def numbers(self, until: int) -> list[int]:
        """Numbers that came, up to and including `until`."""
        found: list[int] = []
        while until not in found:
            found.append(int(self.messages.get(timeout=WAIT_S).payload))
        return found

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def test_a_stream_survives_kills_while_it_runs(node: NodeProcess) -> None:
    """QoS 2 exactly once, QoS 1 at least once, from paho to paho through three kills."""
    reader = Client(node.mqtt_port, "reader")
    reader.subscribe("n/+", 2)
    sender = Client(node.mqtt_port, "sender")

    def publish() -> None:
        for number in range(600):
            sender.client.publish(f"n/{1 + number % 2}", b"%d" % number, 1 + number % 2)
            time.sleep(0.005)

    thread = threading.Thread(target=publish)
    thread.start()
    for _ in range(3):
        time.sleep(0.7)
        restart(node)
        assert reader.presents.get(timeout=WAIT_S)
        assert sender.presents.get(timeout=WAIT_S)
    thread.join()
    for _ in range(600):  # what paho took while it was not connected is sent later
        sender.acknowledged.get(timeout=WAIT_S)
    got: dict[str, list[int]] = {"n/1": [], "n/2": []}
    while len(set(got["n/1"])) < 300 or len(set(got["n/2"])) < 300:
        reader.take(got)
    for topic in got:  # what came twice came before these
        sender.client.publish(topic, b"%d" % LAST, 2)
    while not all(LAST in numbers for numbers in got.values()):
        reader.take(got)
    # paho sends what is published between its CONNECT and the CONNACK ahead of what it sends again,
    # so the numbers may be out of order in the log; the reader's order must be the log's.
    with lakemq.connect(node.native) as log:
        stored = [int(each.value or b"") for each in log.consume("mqtt") if each.key == b"n/2"]
    assert got["n/2"] == stored
    assert sorted(stored) == [*range(1, 600, 2), LAST]
    assert sorted(set(got["n/1"])) == [*range(0, 600, 2), LAST]
    for client in (reader, sender):
        client.close()


def test_what_was_promised_before_the_kill_is_there_after_it(node: NodeProcess) -> None:
    reader = Client(node.mqtt_port, "reader")
    reader.subscribe("wait/#", 1)
    reader.close()
    sender = Client(node.mqtt_port, "sender")
    for number in range(50):
        sender.client.publish("wait/x", b"%d" % number, 1)
    info = sender.client.publish("state", b"on", 1, retain=True)
    info.wait_for_publish(WAIT_S)
    restart(node)
    late = Client(node.mqtt_port, "late")
    late.subscribe("state", 1)
    message = late.messages.get(timeout=WAIT_S)
    assert (message.payload, message.retain) == (b"on", True)
    reader = Client(node.mqtt_port, "reader")
    assert reader.numbers(49) == list(range(50))
    for client in (reader, sender, late):
        client.close()
