"""Goal: what MQTT devices skip, repeat and send late is what `lakemq ledger` and the admin API
tell, and a node that is killed counts on without counting twice.

Method: paho clients publish numbered readings to a real node; the command line and HTTP ask it.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
import typer
from typer.testing import CliRunner

import lakemq
from lakemq.plugins.ledger.cli import ledger
from lakemq.plugins.native.sdk import InvalidRequest
from tests.support.mqtt.faithful_paho import Paho
from tests.support.node.admin_api import ask
from tests.support.node.node import NodeProcess, ports_kept

WAIT_S = 60
RULE = "device=client; sequence=$.seq; time=$.at"
SETTINGS = "[plugins.ledger]\nlook_ms = 20\ncheckpoint_ms = 150\n"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    node = NodeProcess(tmp_path / "node", ports_kept("mqtt", "native") + SETTINGS).start()
    try:
        yield node
    finally:
        node.kill()


class Device:
    """A device that numbers its readings."""

    def __init__(self, node: NodeProcess, name: str) -> None:
        client = Paho(paho.CallbackAPIVersion.VERSION2, client_id=name, clean_session=False)
        connected = threading.Event()
        client.on_connect = lambda *_: connected.set()
        client.reconnect_delay_set(0.05, 0.2)  # type: ignore[arg-type]
        client.max_queued_messages_set(0)
        client.connect("127.0.0.1", node.mqtt_port)
        client.loop_start()
        assert connected.wait(WAIT_S)
        self.client = client
        self.name = name

    def send(self, *numbers: int, at_ms: int = 1_700_000_000_000) -> None:
        for number in numbers:
            value = json.dumps({"seq": number, "at": at_ms + 1000 * number})
            self.client.publish(f"air/{self.name}", value, qos=1).wait_for_publish(WAIT_S)

    def end(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def until(found: Callable[[], Any], wanted: object) -> None:
    deadline = time.monotonic() + WAIT_S
    while (got := found()) != wanted:
        assert time.monotonic() < deadline, f"{got} is not {wanted}"
        time.sleep(0.05)


def command(node: NodeProcess, *arguments: str) -> str:
    app = typer.Typer()
    app.command()(ledger)
    shown = CliRunner().invoke(app, [*arguments, "--admin", node.addresses["admin"]])
    assert shown.exit_code == 0, shown.output
    return shown.output


def counted(node: NodeProcess) -> int:
    return sum(row["records"] for row in ask(node, "GET", "ledger/partitions").data)


def test_devices_that_skip_repeat_and_come_late(node: NodeProcess) -> None:
    with lakemq.connect(node.native) as client:
        with pytest.raises(InvalidRequest, match="ledger: give either"):
            client.admin.alter_topic("mqtt", config={"ledger": "device=client"})
        client.admin.alter_topic("mqtt", config={"ledger": RULE})
    played = {
        "good": [1, 2, 3, 4, 5],
        "skips": [1, 2, 5, 6, 9],
        "repeats": [1, 2, 2, 3, 2],
        "late": [1, 4, 2, 5, 3],
    }
    devices = [Device(node, name) for name in played]
    for device in devices:
        device.send(*played[device.name])
    devices[0].client.publish("air/good", b"no reading", qos=1).wait_for_publish(WAIT_S)
    until(lambda: counted(node), 21)
    rows = {row["device"]: row for row in json.loads(command(node, "mqtt", "--json"))}
    kinds = ("records", "missing", "gaps", "late", "duplicates", "last_number")
    assert {name: [row[kind] for kind in kinds] for name, row in rows.items()} == {
        "good": [5, 0, 0, 0, 0, 5],
        "skips": [5, 4, 2, 0, 0, 9],
        "repeats": [5, 0, 0, 0, 2, 3],
        "late": [5, 0, 1, 2, 0, 5],
    }
    row = rows["late"]
    assert row["delay_max_ms"] > row["delay_ms"] > 0
    (partition,) = json.loads(command(node, "--json"))
    assert (partition["topic"], partition["rule"]) == ("mqtt", RULE)
    assert (partition["devices"], partition["unread"], partition["lag"]) == (4, 1, 0)
    (one,) = json.loads(command(node, "mqtt", "--device", "skips", "--json"))
    assert one == rows["skips"]
    table = command(node, "mqtt", "--sort", "-missing")
    assert table.splitlines()[1].split()[:4] == ["mqtt", "skips", "5", "4"]
    assert "skips" in command(node, "--match", "kip")
    assert "mqtt" in command(node)
    for device in devices:
        device.end()


def test_a_node_that_is_killed_counts_nothing_twice(node: NodeProcess) -> None:
    with lakemq.connect(node.native) as client:
        client.admin.alter_topic("mqtt", config={"ledger": RULE})
    device = Device(node, "d")
    for life in range(2):
        device.send(*range(30 * life, 30 * life + 20))
        sending = threading.Thread(
            target=device.send, args=tuple(range(30 * life + 20, 30 * life + 30))
        )
        sending.start()
        node.kill()
        node.start()
        sending.join(WAIT_S)
        assert not sending.is_alive()
    with lakemq.connect(node.native) as client:
        stored = Counter(
            json.loads(record.value or b"")["seq"] for record in client.consume("mqtt")
        )
    records = sum(stored.values())
    until(lambda: counted(node), records)
    (row,) = ask(node, "GET", "ledger/devices?topic=mqtt").data
    assert row["records"] == records
    assert (row["missing"], row["last_number"]) == (60 - len(stored), 59) == (0, 59)
    assert row["duplicates"] == records - 60
    assert node.stop() == 0
    node.start()
    assert ask(node, "GET", "ledger/devices").data == [{**row, "overdue": None}]
    device.end()
