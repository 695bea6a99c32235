"""Goal: a delayed publish that was acknowledged comes once, though the broker is killed before it
is due, when it is due, and after it was published.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import paho.mqtt.client as paho
import pytest

import lakemq
from tests.support.mqtt.faithful_paho import Paho
from tests.support.node.node import NodeProcess

pytestmark = pytest.mark.fault
COUNT = 40
WAIT_S = 60


def publish(port: int, delays_s: list[int]) -> None:
    """One publish for each delay, acknowledged when this returns."""
    client = Paho(paho.CallbackAPIVersion.VERSION2, client_id="sender")
    client.connect("127.0.0.1", port)
    client.loop_start()
    infos = [
        client.publish(f"$delayed/{delay_s}/t/{number % 3}", b"%d" % number, 1 + number % 2)
        for number, delay_s in enumerate(delays_s)
    ]
    for info in infos:
        info.wait_for_publish(WAIT_S)
    client.disconnect()
    client.loop_stop()


def stored(node: NodeProcess) -> Counter[bytes]:
    with lakemq.connect(node.native) as client:
        return Counter(record.value or b"" for record in client.consume("mqtt"))


def wait_for(node: NodeProcess, count: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while (found := stored(node).total()) < count:
        assert time.monotonic() < deadline, f"{found} of {count} came"
        time.sleep(0.1)


def test_acknowledged_delays_survive_kills(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "node").start()
    try:
        publish(node.mqtt_port, [2 + number % 4 for number in range(COUNT)])
        for pause_s in (0.0, 0.3):
            time.sleep(pause_s)
            node.kill()
            node.start()
        wait_for(node, COUNT)
        node.kill()
        node.start()
        publish(node.mqtt_port, [1, 1])  # what would come twice is due before these
        wait_for(node, COUNT + 2)
        assert stored(node) == Counter(map(b"%d".__mod__, [*range(COUNT), 0, 1]))
    finally:
        node.kill()
