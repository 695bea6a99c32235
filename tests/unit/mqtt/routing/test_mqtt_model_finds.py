"""Goal: what `test_mqtt_model.py` finds by seeds, each by its name."""

from __future__ import annotations

import pytest

from lakemq.plugins.mqtt.state import delivery
from lakemq.plugins.mqtt.state.delivery import DeliveryLimits
from lakemq.plugins.mqtt.wire.messages import Message
from lakemq.plugins.mqtt.wire.packets import (
    NO_LOCAL,
    RETAIN_AS_PUBLISHED,
    V5,
    V311,
    Acknowledgement,
    Disconnect,
    Filter,
    Packet,
    PacketType,
    Properties,
    Publish,
    Subscribe,
    Unsubscribe,
)
from tests.support.mqtt.bench import Bench, Device
from tests.support.mqtt.crash import CrashBench

PUBACK, PUBREC = PacketType.PUBACK, PacketType.PUBREC
PUBREL, PUBCOMP = PacketType.PUBREL, PacketType.PUBCOMP
HOUR = Properties(session_expiry_s=3600)


def publishes(packets: list[Packet]) -> list[Publish]:
    return [each for each in packets if isinstance(each, Publish)]


def test_an_identifier_that_awaits_pubcomp_is_not_given_to_another_publish(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """5.0 [MQTT-2.2.1-4]: identifiers wrap while a QoS 2 delivery waits for its PUBCOMP."""
    monkeypatch.setattr(delivery, "PACKET_ID_MAX", 4)
    bench = Bench(delivery=DeliveryLimits(inflight_max=3))
    sender, reader = bench.connect("s"), bench.connect("r")
    reader.subscribe("t", qos=2)
    sender.send(Publish("t", b"slow", 2, packet_id=9))
    bench.store()
    (slow,) = publishes(reader.received())
    reader.send(Acknowledgement(PUBREC, slow.packet_id))
    assert reader.one().type is PUBREL
    for number in range(10):
        sender.send(Publish("t", b"%d" % number, 1, packet_id=1))
        bench.store()
        (publish,) = publishes(reader.received())
        assert publish.packet_id != slow.packet_id
        reader.send(Acknowledgement(PUBACK, publish.packet_id))


@pytest.mark.parametrize(("cleared", "kept"), [("a/b", "a/c"), ("a", "a/c"), ("a/b/c", "a/b")])
def test_clearing_a_retained_message_leaves_its_neighbours(cleared: str, kept: str) -> None:
    """5.0 [MQTT-3.3.1-6]"""
    bench = Bench()
    sender = bench.connect("s")
    for topic in (cleared, kept):
        sender.send(Publish(topic, topic.encode(), 0, True))
    sender.send(Publish(cleared, b"", 0, True))
    reader = bench.connect("r")
    reader.subscribe("#")
    assert reader.publishes() == [(kept, kept.encode())]


def a_group(bench: CrashBench, first: int, second: int) -> tuple[Device, Device]:
    """Two members of a shared group, with these options; both have kept sessions."""
    members = []
    for name, options in (("one", first), ("two", second)):
        member = bench.connect(name, version=V5, clean=False, properties=HOUR)
        member.send(Subscribe(1, (Filter("$share/g/t", options),)))
        bench.settle()
        member.received()
        members.append(member)
    return members[0], members[1]


def test_a_qos_2_publish_that_was_not_sent_goes_to_another_member() -> None:
    """5.0 4.8.2: the session ends while the packet identifier is not kept yet."""
    bench = CrashBench()
    one, two = a_group(bench, 2, 2)
    bench.connect("s").send(Publish("t", b"x", 2, packet_id=1))
    bench.write_records()
    assert one.decoded() == []
    assert two.decoded() == []
    one.send(Disconnect(properties=Properties(session_expiry_s=0)))
    bench.settle()
    assert [each.payload for each in publishes(two.received())] == [b"x"]


def test_what_is_handed_on_comes_as_its_new_member_asked_for() -> None:
    """5.0 [MQTT-3.8.4-8]: at no more than the QoS that was granted."""
    bench = CrashBench()
    one, two = a_group(bench, 2, 1 | RETAIN_AS_PUBLISHED)
    bench.connect("s").send(Publish("t", b"x", 2, retain=True, packet_id=1))
    bench.write_records()
    one.send(Disconnect(properties=Properties(session_expiry_s=0)))
    bench.settle()
    (publish,) = publishes(two.received())
    assert (publish.qos, publish.retain) == (1, True)


def test_what_is_handed_on_goes_to_members_that_keep_it() -> None:
    bench = CrashBench()
    one, two = a_group(bench, 1, 0)
    third = bench.connect("three", version=V5, clean=False, properties=HOUR)
    third.send(Subscribe(1, (Filter("$share/g/t", 1),)))
    bench.settle()
    third.received()
    for number in range(6):
        bench.connect("s").send(Publish("t", b"%d" % number, 1, packet_id=1))
        bench.settle()
    mine = {each.payload for each in publishes(one.received())}
    third.received()
    two.received()
    one.send(Disconnect(properties=Properties(session_expiry_s=0)))
    bench.settle()
    assert {each.payload for each in publishes(third.received())} == mine
    assert publishes(two.received()) == []


def test_what_only_the_journal_holds_is_not_handed_on_at_qos_0() -> None:
    """It would have to wait until it is read, and what waits has a packet identifier."""
    bench = CrashBench()
    one, two = a_group(bench, 1, 0)
    two.send(Unsubscribe(2, ("$share/g/t",)))
    one.lose()
    bench.connect("s").send(Publish("t", b"x", 1, packet_id=1))
    bench.settle()
    two.send(Subscribe(3, (Filter("$share/g/t", 0),)))
    bench.settle()
    two.received()
    dropped = bench.hub.delivery.dropped_qos_0
    bench.connect("one", version=V5, clean=True)
    bench.settle()
    assert publishes(two.received()) == []
    assert bench.hub.delivery.dropped_qos_0 == dropped + 1


def test_each_subscriber_is_told_its_own_remaining_expiry() -> None:
    """5.0 [MQTT-3.3.2-6]: one retained message, two subscribers, at two times."""
    bench = Bench()
    sender = bench.connect("s", version=V5)
    named = Properties(message_expiry_s=60)
    sender.send(Publish("t", b"x", 0, True, properties=named))
    for name, expected in (("one", 60), ("two", 50)):
        reader = bench.connect(name, version=V5)
        reader.subscribe("t")
        (publish,) = publishes(reader.received())
        assert publish.properties.message_expiry_s == expected
        bench.pass_time(10)


def test_a_message_remembers_no_packet_with_a_time_in_it() -> None:
    message = Message("t", b"x", 0, False, 0, b"", 60)
    first = message.wire(V5, 0, False, (), 0)
    assert message.wire(V5, 0, False, (), 10_000) != first
    assert message.wire(V311, 0, False, (), 10_000) == message.wire(V311, 0, False, (), 0)


@pytest.mark.parametrize("count", [1, 3])
def test_no_local_holds_for_plain_qos_0_in_a_row(count: int) -> None:
    """5.0 [MQTT-3.8.3-3]: from the second one on they take the express path."""
    bench = Bench()
    own, other = bench.connect("own", version=V5), bench.connect("other", version=V5)
    own.subscribe("t", options=NO_LOCAL)
    other.subscribe("t", options=NO_LOCAL)
    for _ in range(3):
        own.send(*[Publish("t", b"x")] * count)
    assert own.publishes() == []
    assert other.publishes() == [("t", b"x")] * 3 * count


@pytest.mark.parametrize("order", [("a/+", "a/#"), ("a/#", "a/+")])
def test_no_local_on_two_filters_that_overlap(order: tuple[str, str]) -> None:
    """5.0 [MQTT-3.8.3-3]"""
    bench = Bench()
    own, other = bench.connect("own", version=V5), bench.connect("other", version=V5)
    for text in order:
        own.subscribe(text, options=NO_LOCAL)
    for qos in (0, 1):
        own.send(Publish("a/b", b"mine", qos, packet_id=qos))
        other.send(Publish("a/b", b"theirs", qos, packet_id=qos))
        bench.store()
    assert {payload for _, payload in own.publishes()} == {b"theirs"}


def test_no_local_beside_two_filters_without_it() -> None:
    """Its own publishes come as the other two say, taken together."""
    bench = Bench()
    own = bench.connect("own", version=V5)
    own.subscribe("a/+", options=NO_LOCAL, identifier=1)
    own.subscribe("a/#", qos=1, identifier=2)
    own.subscribe("a/b", identifier=3)
    own.send(Publish("a/b", b"x", 1, packet_id=1))
    bench.store()
    (publish,) = publishes(own.received())
    assert sorted(publish.properties.subscription_identifiers) == [2, 3]
    assert publish.qos == 1


def test_a_publish_that_expires_while_its_identifier_is_kept_is_not_sent() -> None:
    """5.0 [MQTT-3.3.2-5]"""
    limits = DeliveryLimits()
    bench = CrashBench(delivery=limits)
    reader = bench.connect("r", version=V5, clean=False, properties=HOUR)
    reader.send(Subscribe(1, (Filter("t", 2),)))
    bench.settle()
    reader.received()
    sender, named = bench.connect("s", version=V5), Properties(message_expiry_s=3)
    sender.send(Publish("t", b"late", 2, packet_id=1, properties=named))
    bench.write_records()
    bench.pass_time(4)
    bench.settle()
    assert reader.received() == []
    assert limits.dropped_expired == 1
    sender.send(Publish("t", b"next", 2, packet_id=2))
    bench.settle()
    assert [each.payload for each in publishes(reader.received())] == [b"next"]
