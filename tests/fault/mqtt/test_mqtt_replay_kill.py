"""Goal: a replay goes on where it was when the broker is killed in the middle of it.

Method: a real node holds numbered records; a persistent session replays them at QoS 2 and QoS 1
while more are published; the node is killed with SIGKILL while history is on its way, and again.
"""

from __future__ import annotations

import queue
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
HISTORY = 6000
LATER = 600


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    config = ports_kept("mqtt", checkpoint_ms=200, inflight_max=50)
    node = NodeProcess(tmp_path / "node", config).start()
    try:
        yield node
    finally:
        node.kill()


class Reader:
    """Replays everything in a session of its own, and finds its way back."""

    def __init__(self, port: int, qos: int) -> None:
        self.found: queue.Queue[int] = queue.Queue()
        client = Paho(
            paho.CallbackAPIVersion.VERSION2, client_id=f"reader-{qos}", clean_session=False
        )
        client.on_message = lambda c, u, message: self.found.put(int(message.payload))
        client.on_connect = lambda c, *_: c.subscribe("$replay/earliest/n/#", qos)
        client.reconnect_delay_set(0.05, 0.2)  # type: ignore[arg-type]
        client.connect("127.0.0.1", port, keepalive=30)
        client.loop_start()
        self.client = client
        self.taken: list[int] = []

    def take(self, until: int) -> None:
        """Read until that many different numbers have come."""
        seen, deadline = set(self.taken), time.monotonic() + WAIT_S
        while len(seen) < until:
            number = self.found.get(timeout=max(0.1, deadline - time.monotonic()))
            self.taken.append(number)
            seen.add(number)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def write(node: NodeProcess, first: int, count: int) -> None:
    with lakemq.connect(node.native) as client:
        for start in range(first, first + count, 500):
            numbers = range(start, min(start + 500, first + count))
            records = [
                lakemq.NewRecord(b"%d" % one, b"n/1", (("mqtt.qos", b"2"),)) for one in numbers
            ]
            client.send_batch("mqtt", records)


def test_a_killed_broker_goes_on_with_the_replay(node: NodeProcess) -> None:
    write(node, 0, HISTORY)
    readers = [Reader(node.mqtt_port, qos) for qos in (1, 2)]
    try:
        for part in (HISTORY // 4, HISTORY // 2):
            for reader in readers:
                reader.take(part)
            node.kill()
            node.start()
        write(node, HISTORY, LATER)
        for reader in readers:
            reader.take(HISTORY + LATER)
        write(node, HISTORY + LATER, 10)
        everything = list(range(HISTORY + LATER + 10))
        for reader in readers:
            reader.take(len(everything))
        at_least_once, exactly_once = readers
        assert list(dict.fromkeys(at_least_once.taken)) == everything
        assert exactly_once.taken == everything
    finally:
        for reader in readers:
            reader.close()
