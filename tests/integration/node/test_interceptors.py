"""Goal: an interceptor that rewrites and fails as it likes leaves the broker's own state and other
clients' publishes alone, and whoever it does meet is told.
"""

from __future__ import annotations

import queue
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.support.node.node import PORTS_FREE, NodeProcess
from tests.support.node.plugins import plugin_path

PLUGIN = '''
from lakemq.broker_core.api.hooks import hookimpl

class Upper:
    """The worst of neighbours: upper case for all, an exception for topic `bad`."""
    def intercept(self, topic, columns, principal):
        if topic == "bad":
            raise KeyError("unit")
        return columns._replace(values=[value and value.upper() for value in columns.values])

@hookimpl
def register_interceptors(context):
    return HOOKS
'''
CONFIG = (
    PORTS_FREE
    + """
[[plugins.mqtt.bindings]]
filter = "bad/#"
topic = "bad"
[[plugins.mqtt.bindings]]
filter = "#"
topic = "good"
[interceptors]
failures_max = 0
[plugins.upper]
"""
)
WAIT_S = 30


def environment(folder: Path, hooks: str = "[Upper()]") -> dict[str, str]:
    return plugin_path(folder, "upper", PLUGIN.replace("HOOKS", hooks))


class Client:
    """A paho client that keeps what it is told."""

    def __init__(self, node: NodeProcess, client_id: str, version: int = paho.MQTTv5) -> None:
        self.client = paho.Client(
            paho.CallbackAPIVersion.VERSION2, client_id=client_id, protocol=version
        )
        self.connected: queue.Queue[bool] = queue.Queue()
        self.acknowledged: queue.Queue[tuple[int, str]] = queue.Queue()
        self.closed: queue.Queue[object] = queue.Queue()
        self.messages: queue.Queue[tuple[str, bytes]] = queue.Queue()
        self.client.on_connect = lambda c, u, flags, code, p: self.connected.put(
            flags.session_present
        )
        self.client.on_publish = lambda c, u, mid, code, p: self.acknowledged.put(
            (code.value, getattr(p, "ReasonString", ""))
        )
        self.client.on_disconnect = lambda c, u, flags, code, p: self.closed.put(code)
        self.client.on_message = lambda c, u, m: self.messages.put((m.topic, m.payload))
        self.client.reconnect_delay_set(60, 60)
        more = {}
        if version == paho.MQTTv5:
            properties = Properties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = 3600
            more = {"properties": properties, "clean_start": False}
        self.client.connect("127.0.0.1", node.mqtt_port, **more)
        self.client.loop_start()
        self.present = self.connected.get(timeout=WAIT_S)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def test_state_of_the_broker_and_other_clients_are_left_alone(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "node", CONFIG, environment(tmp_path / "plugin"))
    with node:
        keeper = Client(node, "keeper")
        keeper.client.subscribe("kept/#", 1)
        keeper.client.publish("kept/state", b"on", 1, retain=True)
        keeper.client.publish("$delayed/1/kept/later", b"later", 1)
        for _ in range(2):
            assert keeper.acknowledged.get(timeout=WAIT_S)[0] < 0x80
        assert keeper.messages.get(timeout=WAIT_S) == ("kept/state", b"ON")

        good, bad = Client(node, "good"), Client(node, "bad")
        for number in range(200):
            bad.client.publish("bad/x", b"%d" % number, 1)
            good.client.publish("good/x", b"%d" % number, 1)
        for _ in range(200):
            assert good.acknowledged.get(timeout=WAIT_S)[0] in (0x00, 0x10)
            reason, text = bad.acknowledged.get(timeout=WAIT_S)
            assert reason == 0x83
            assert "plugin upper: its interceptor failed: KeyError: 'unit'" in text
        old = Client(node, "old", paho.MQTTv311)
        old.client.publish("bad/x", b"1", 1)
        old.closed.get(timeout=WAIT_S)
        assert old.acknowledged.empty()
        for client in (keeper, good, bad, old):
            client.close()
    node.start()
    keeper = Client(node, "keeper")
    assert keeper.present
    assert keeper.messages.get(timeout=WAIT_S) == ("kept/later", b"LATER")
    other = Client(node, "other")
    other.client.subscribe("kept/state", 1)
    assert other.messages.get(timeout=WAIT_S) == ("kept/state", b"ON")
    for client in (keeper, other):
        client.close()
    assert node.stop() == 0
    assert "unreadable" not in node.log_file.read_text()


@pytest.mark.parametrize(
    ("hooks", "text"),
    [
        ("Upper()", "plugin upper: register_interceptors: it returned <upper_plugin.Upper"),
        ("1/0", "plugin upper: register_interceptors: ZeroDivisionError: division by zero"),
    ],
)
def test_a_hook_that_fails_is_named_at_the_start(tmp_path: Path, hooks: str, text: str) -> None:
    node = NodeProcess(tmp_path / "node", CONFIG, environment(tmp_path / "plugin", hooks))
    with pytest.raises(AssertionError) as raised:
        node.start()
    assert f"lakemq: {text}" in str(raised.value)
    assert "Traceback" not in str(raised.value)
