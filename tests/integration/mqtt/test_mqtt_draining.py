"""Goal: clients of a node that is drained are sent to the other server, until it is not drained any
more.
"""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest

from lakemq.plugins.mqtt.ops.draining import SENT_AWAY_PER_TICK, Draining
from lakemq.plugins.mqtt.routing.hub import Limits
from lakemq.plugins.mqtt.wire.packets import V5, Connect, Disconnect
from lakemq.plugins.mqtt.wire.reasons import Reason
from tests.support.mqtt.bench import Bench
from tests.support.mqtt.memory_broker import MemoryBroker
from tests.support.node.node import PORTS_FREE, NodeProcess

OTHER = "b.example.org:1883"
WAIT_S = 60


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
