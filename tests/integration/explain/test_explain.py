"""Goal: `lakemq explain` tells where each message of real devices ended, and why."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions
from typer.testing import CliRunner

import lakemq
from lakemq.cli.commands import app
from tests.support.node.node import PORTS_FREE, NodeProcess

CONFIG = (
    PORTS_FREE.replace("[plugins.mqtt]", "[plugins.mqtt]\nqueue_count_max = 2")
    + """
[[plugins.mqtt.bindings]]
filter = "air/#"
topic = "readings"
partitions = 2

[security]
unmatched = "allow"

[[security.rules]]
who = ["any"]
operations = ["publish"]
resources = ["topic_name:air/secret"]
allow = false
"""
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("explain"), CONFIG) as started:
        yield started


@contextlib.contextmanager
def connected(node: NodeProcess, client_id: str, *, keep: bool = False) -> Iterator[paho.Client]:
    """A client of version 5; `keep`: its session outlives its connection."""
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id, protocol=paho.MQTTv5)
    properties = Properties(PacketTypes.CONNECT)
    if keep:
        properties.SessionExpiryInterval = 600
    client.connect("127.0.0.1", node.mqtt_port, clean_start=False, properties=properties)
    client.loop_start()
    _until(client.is_connected)
    try:
        yield client
    finally:
        client.disconnect()
        client.loop_stop()


def _until(done: Any) -> None:
    deadline = time.monotonic() + 20
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def subscribed(client: paho.Client, topic_filter: str, options: Any = None) -> None:
    codes: list[Any] = []
    client.on_subscribe = lambda c, u, mid, reasons, p: codes.extend(reasons)
    client.subscribe(topic_filter, 0 if options else 1, options)
    _until(lambda: codes)


def publish(client: paho.Client, name: str, qos: int = 1, expiry_s: int | None = None) -> None:
    properties = Properties(PacketTypes.PUBLISH)
    if expiry_s is not None:
        properties.MessageExpiryInterval = expiry_s
    client.publish(name, b"21.5", qos, properties=properties).wait_for_publish(20)


def explained(node: NodeProcess, *arguments: str) -> list[dict[str, Any]]:
    """Messages that `lakemq explain` found."""
    given = ["explain", *arguments, "--json", "--admin", node.addresses["admin"]]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)["messages"]
    return found


def stations(message: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [each for each in message["stations"] if each["station"] == name]


def test_a_delivered_publish_and_its_record(node: NodeProcess) -> None:
    with connected(node, "reader") as reader, connected(node, "device-1") as device:
        got: list[bytes] = []
        reader.on_message = lambda c, u, message: got.append(message.payload)
        subscribed(reader, "air/co")
        publish(device, "air/co")
        _until(lambda: got)
        (message,) = explained(node, "--topic-name", "air/co", "--client", "device-1")
        assert (message["topic"], message["offset"]) == ("readings", 0)
        place = f"readings/{message['partition']}/0"
        (again,) = explained(node, "--record", place)
        assert again["stations"] == message["stations"]
        assert [each["station"] for each in message["stations"]] == [
            "published", "authorized", "bound", "stored", "durable", "delivered"
        ]  # fmt: skip
        assert all(each["state"] == "ok" for each in message["stations"])
        published, authorized, bound, _, durable, delivered = message["stations"]
        assert "device-1 published to air/co at QoS 1" in published["what"]
        assert "security.unmatched" in authorized["what"]
        assert "air/# -> topic readings" in bound["what"]
        assert "on disk of" in durable["what"]
        assert delivered["who"] == "reader"
        with (
            lakemq.connect(node.native, timeout_s=10) as native,
            native.subscribe("readings", group="night") as consumer,
        ):
            assert next(iter(consumer)).value == b"21.5"
            consumer.commit()
        (message,) = explained(node, "--record", place)
        (group,) = stations(message, "group")
        assert (group["who"], group["state"]) == ("night", "ok")
        table = CliRunner().invoke(
            app, ["explain", "--record", place, "--admin", node.addresses["admin"]]
        )
        assert "group night is past it" in table.stdout


def test_what_a_rule_denied(node: NodeProcess) -> None:
    with connected(node, "device-2") as device:
        publish(device, "air/secret")
        (message,) = explained(node, "--topic-name", "air/secret", "--client", "device-2")
    assert message["topic"] == ""
    (denied,) = stations(message, "authorized")
    assert denied["state"] == "failed"
    assert "denies any to publish topic_name:air/secret" in denied["what"]


def test_a_publish_without_a_subscriber(node: NodeProcess) -> None:
    with connected(node, "device-3") as device:
        publish(device, "air/lonely")
        publish(device, "elsewhere/x")
    (stored,) = explained(node, "--topic-name", "air/lonely")
    (delivered,) = stations(stored, "delivered")
    assert delivered["what"].startswith("no subscriber")
    (gone,) = explained(node, "--topic-name", "elsewhere/x", "--client", "device-3")
    assert "no topic that stores it" in stations(gone, "delivered")[0]["what"]


def test_a_full_queue_and_an_expired_publish(node: NodeProcess) -> None:
    with connected(node, "sleeper", keep=True) as sleeper:
        subscribed(sleeper, "air/queue")
    with connected(node, "device-4") as device:
        publish(device, "air/queue")
        publish(device, "air/queue")
        publish(device, "air/queue", expiry_s=1)
    messages = explained(node, "--topic-name", "air/queue", "--client", "device-4")
    states = [stations(each, "delivered")[0]["state"] for each in messages]
    assert states == ["failed", "waiting", "waiting"]
    assert "its queue was full" in stations(messages[0], "delivered")[0]["what"]
    time.sleep(1.1)
    with connected(node, "sleeper", keep=True):
        for index, shown in (1, "sent"), (2, "expired"):

            def told(index: int = index, shown: str = shown) -> bool:
                found = explained(node, "--topic-name", "air/queue", "--client", "device-4")
                return shown in stations(found[index], "delivered")[0]["what"]

            _until(told)


def test_who_subscribed_later_and_who_said_no_local(node: NodeProcess) -> None:
    with connected(node, "device-5") as device:
        publish(device, "air/later")
        subscribed(device, "air/later")
        subscribed(device, "air/own", SubscribeOptions(qos=1, noLocal=True))
        publish(device, "air/own")
        (message,) = explained(node, "--topic-name", "air/later")
        (own,) = explained(node, "--topic-name", "air/own")
    late, nobody = stations(message, "delivered")
    assert late["state"] == "failed"
    assert "subscribed after the publish" in late["what"]
    assert nobody["what"].startswith("no subscriber")
    (local,) = stations(own, "delivered")
    assert (local["state"], local["who"]) == ("failed", "device-5")
    assert "asked for no local" in local["what"]


def test_nothing_found_tells_what_would_happen(node: NodeProcess) -> None:
    given = ["explain", "--topic-name", "air/never", "--admin", node.addresses["admin"]]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 1
    assert "air/# -> topic readings" in result.stdout
    beyond = explained(node, "--record", "readings/0/99999")
    assert "not there yet" in beyond[0]["stations"][0]["what"]


def test_a_subscription_that_has_ended_since(node: NodeProcess) -> None:
    with connected(node, "visitor") as visitor, connected(node, "device-6") as device:
        subscribed(visitor, "air/visit/#")
        publish(device, "air/visit/x")
        visitor.unsubscribe("air/visit/#")
        _until(lambda: _delivered(node, "air/visit/x")["state"] == "unknown")
        told = _delivered(node, "air/visit/x")
    assert told["who"] == "visitor"
    assert "its subscription has ended" in told["what"]


def _delivered(node: NodeProcess, topic_name: str) -> dict[str, Any]:
    (message,) = explained(node, "--topic-name", topic_name)
    return stations(message, "delivered")[0]
