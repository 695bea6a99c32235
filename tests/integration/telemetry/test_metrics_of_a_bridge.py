"""Goal: metrics of a bridge tell how its link stands, and what waits for it or is lost."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import lakemq
from tests.support.node.metrics import Now, now, still, wait_for
from tests.support.node.node import PORTS_FREE, NodeProcess
from tests.support.remote_brokers import (
    MOSQUITTO,
    BrokerProcess,
    mosquitto,
    publish_all,
    publishing,
)

pytestmark = pytest.mark.skipif(
    MOSQUITTO is None, reason="Mosquitto is not installed (apt-get install mosquitto)"
)
LINK = """
[[plugins.bridge.links]]
name = "far"
url = "mqtt://127.0.0.1:{port}"
retry_min_ms = 50
retry_max_ms = 200
[[plugins.bridge.links.rules]]
direction = "out"
filter = "room/#"
"""


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = mosquitto(tmp_path / "mosquitto").start()
    try:
        yield broker
    finally:
        broker.stop(signal.SIGKILL)


def publish(node: NodeProcess, count: int) -> None:
    with publishing(node.mqtt_port) as client:
        publish_all(client, ["room/1"] * count, [b"x"] * count, 1)


def test_a_remote_broker_that_stalls_goes_and_comes_back(
    tmp_path: Path, remote: BrokerProcess
) -> None:
    with NodeProcess(tmp_path / "node", PORTS_FREE + LINK.format(port=remote.port)) as node:

        def told() -> Now:
            return now(node.addresses["admin"])

        up = wait_for(told, lambda has: has["bridge.connected"] == 1)
        assert up["bridge.connects"] == 1
        assert up["bridge.lag"] == up["bridge.inflight"] == 0
        remote.pause()
        publish(node, 10)
        wait_for(told, lambda has: has["bridge.inflight"] == 10 and has["bridge.lag"] == 10)
        remote.resume()
        wait_for(told, lambda has: has["bridge.inflight"] == 0 and has["bridge.lag"] == 0)

        remote.stop()
        wait_for(told, lambda has: has["bridge.connected"] == 0)
        publish(node, 5)
        with lakemq.connect(node.native, timeout_s=20) as client:
            client.admin.delete_records("mqtt", {0: 13})
        remote.start()
        again = wait_for(told, lambda has: has["bridge.connected"] == 1)
        assert not still(up, again, "bridge.connects")
        lost = wait_for(told, lambda has: has["bridge.forwarded"] == 12)
        assert lost["bridge.lost"] == 3
