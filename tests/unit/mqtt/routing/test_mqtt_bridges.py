"""Goal: a client that says that it is a bridge (bit 7 of the protocol level, as Mosquitto's bridges
do) gets nothing back that it published, and the retain flag as it was.
"""

from __future__ import annotations

from lakemq.plugins.mqtt.wire.encoding import encode
from lakemq.plugins.mqtt.wire.packets import V311, Connack, Connect, Publish
from tests.support.mqtt.bench import Bench, Device


def bridge(bench: Bench) -> Device:
    device = bench.dial()
    packet = Connect("far", bridge=True)
    assert encode(packet, V311)[8] == 0x84
    device.send(packet)
    device.connection.authenticated(bench.connect("x").connection.principal, bench.now_ms)
    assert device.one() == Connack()
    return device


def test_nothing_comes_back_to_a_bridge() -> None:
    bench = Bench()
    far, other = bridge(bench), bench.connect("other")
    far.subscribe("a/#", qos=1)
    far.send(Publish("a/b", b"mine", 1, packet_id=1))
    other.send(Publish("a/b", b"theirs", 1, packet_id=1))
    bench.store()
    assert far.publishes() == [("a/b", b"theirs")]


def test_a_bridge_sees_that_a_publish_is_retained() -> None:
    bench = Bench()
    far, near, other = bridge(bench), bench.connect("near"), bench.connect("other")
    far.subscribe("a", qos=1)
    near.subscribe("a", qos=1)
    other.send(Publish("a", b"x", 1, retain=True, packet_id=1))
    bench.store()
    assert [each.retain for each in far.received() if isinstance(each, Publish)] == [True]
    assert [each.retain for each in near.received() if isinstance(each, Publish)] == [False]


def test_shared_subscriptions_of_a_bridge_stand() -> None:
    bench = Bench()
    far = bridge(bench)
    assert far.subscribe("$share/g/a", qos=1) == (1,)
