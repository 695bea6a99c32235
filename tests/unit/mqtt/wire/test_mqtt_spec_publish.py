"""Goal: sections 3.3 to 3.7 and 4.3 to 4.6, 4.9 of the specifications, statement by statement."""

from __future__ import annotations

from typing import Any

import pytest

from lakemq.broker_core.api.errors import StorageFull, Unavailable
from lakemq.broker_core.api.types import Operation
from lakemq.plugins.mqtt.limits import Limits
from lakemq.plugins.mqtt.state.delivery import DeliveryLimits
from lakemq.plugins.mqtt.wire.decoding import _REASONS
from lakemq.plugins.mqtt.wire.packets import (
    V5,
    V311,
    Acknowledgement,
    Disconnect,
    PacketType,
    Ping,
    Properties,
    Publish,
)
from lakemq.plugins.mqtt.wire.reasons import Reason
from tests.support.mqtt.bench import Bench, Device, disconnected_with

versions = pytest.mark.parametrize("version", [V311, V5])
PUBACK, PUBREC = PacketType.PUBACK, PacketType.PUBREC
PUBREL, PUBCOMP = PacketType.PUBREL, PacketType.PUBCOMP
KEPT = Properties(session_expiry_s=1000)


def kept_client(bench: Bench, version: int, client_id: str = "d", **more: Any) -> Device:
    properties = more.pop("properties", KEPT if version == V5 else Properties())
    return bench.connect(client_id, version=version, clean=False, properties=properties, **more)


def feed(bench: Bench, count: int, qos: int = 1, topic: str = "t") -> None:
    """Other clients publish b"0", b"1", ...; stored."""
    sender = bench.connect("feeder")
    for number in range(count):
        sender.send(Publish(topic, b"%d" % number, qos, packet_id=number + 1 if qos else 0))
        bench.store()
        if qos == 2:
            sender.send(Acknowledgement(PUBREL, number + 1))


# -- flags


@versions
def test_dup_is_set_when_and_only_when_sent_again(version: int) -> None:
    """5.0 [MQTT-3.3.1-1] [MQTT-3.3.1-3] [MQTT-4.3.1-1] [MQTT-4.3.2-2] [MQTT-4.3.3-2],
    3.1.1 [MQTT-3.3.1-1] [MQTT-3.3.1-3] [MQTT-4.3.1-1] [MQTT-4.3.2-1] [MQTT-4.3.3-1]"""
    bench = Bench()
    device = kept_client(bench, version)
    device.subscribe("t", qos=2)
    sender = bench.connect("s")
    sender.send(Publish("t", b"0", 0))
    for qos in (1, 2):
        sender.send(Publish("t", b"%d" % qos, qos, dup=True, packet_id=qos))
    bench.store()
    first: Any = device.received()
    assert [(each.qos, each.dup) for each in first] == [(0, False), (1, False), (2, False)]
    device.lose()
    again: Any = kept_client(bench, version).received()
    assert [(each.qos, each.dup) for each in again] == [(1, True), (2, True)]


@versions
@pytest.mark.parametrize("data", [b"\x38\x03\0\1a", b"\x36\x05\0\1a\0\1"], ids=["DUP", "QoS 3"])
def test_flags_of_publish_that_are_wrong(version: int, data: bytes) -> None:
    """5.0 [MQTT-3.3.1-2] [MQTT-3.3.1-4], 3.1.1 [MQTT-3.3.1-2] [MQTT-3.3.1-4]"""
    device = Bench().connect("d", version=version)
    device.send_bytes(data)
    assert device.closed
    if version == V5:
        assert disconnected_with(device) == Reason.MALFORMED_PACKET


@versions
@pytest.mark.parametrize("name", ["a/#", "+/a", "#", "a+"])
def test_topic_names_hold_no_wildcards(version: int, name: str) -> None:
    """5.0 [MQTT-3.3.2-2] [MQTT-4.7.0-1], 3.1.1 [MQTT-3.3.2-2] [MQTT-4.7.1-1]"""
    device = Bench().connect("d", version=version)
    device.send(Publish(name, b"x"))
    assert device.closed
    if version == V5:
        assert disconnected_with(device) == Reason.TOPIC_NAME_INVALID


# -- retained


@versions
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_retained_messages(version: int, qos: int) -> None:
    """5.0 [MQTT-3.3.1-5] [MQTT-3.3.1-6] [MQTT-3.3.1-7] [MQTT-3.3.1-8] [MQTT-3.3.1-9],
    3.1.1 [MQTT-3.3.1-5] [MQTT-3.3.1-6] [MQTT-3.3.1-7] [MQTT-3.3.1-8] [MQTT-3.3.1-10]
    [MQTT-3.3.1-11] [MQTT-3.3.1-12]"""
    bench = Bench()
    sender, watcher = bench.connect("s", version=version), bench.connect("w", version=version)
    watcher.subscribe("t", qos=2)
    identifier = iter(range(1, 100))

    def publish(payload: bytes, *, retain: bool) -> None:
        sender.send(Publish("t", payload, qos, retain, packet_id=next(identifier) if qos else 0))
        bench.store()
        assert watcher.publishes() == [("t", payload)]

    def retained() -> list[tuple[bytes, bool, int]]:
        device = bench.connect("new", version=version)
        device.subscribe("t", qos=2)
        return [(each.payload, each.retain, each.qos) for each in device.received()]  # type: ignore[union-attr]

    publish(b"old", retain=True)
    publish(b"new", retain=True)
    publish(b"passing", retain=False)
    assert retained() == [(b"new", True, qos)]
    publish(b"", retain=False)
    assert retained() == [(b"new", True, qos)]
    publish(b"", retain=True)
    assert retained() == []
    assert bench.hub.retained.count == 0


# -- QoS 1


@versions
def test_qos_1_is_answered_once_stored_and_then_forgotten(version: int) -> None:
    """5.0 [MQTT-3.3.4-1] [MQTT-4.3.2-4] [MQTT-4.3.2-5],
    3.1.1 [MQTT-3.3.4-1] [MQTT-4.3.2-2]"""
    bench = Bench()
    device = bench.connect("d", version=version)
    for dup in (False, True):
        device.send(Publish("t", b"x", 1, dup=dup, packet_id=5))
        assert device.received() == []
        assert bench.store() == 1
        assert device.received() == [Acknowledgement(PUBACK, 5)]
    device.send(Publish("t", b"x", 0))
    assert device.received() == []


@versions
def test_answers_come_in_the_order_of_the_publishes(version: int) -> None:
    """5.0 [MQTT-4.6.0-2] [MQTT-4.6.0-3] [MQTT-4.6.0-4],
    3.1.1 [MQTT-4.6.0-2] [MQTT-4.6.0-3] [MQTT-4.6.0-4]"""
    bench = Bench()
    device = bench.connect("d", version=version)
    order = [9, 3, 77, 4, 1]
    for qos, answer in ((1, PUBACK), (2, PUBREC)):
        device.send(*(Publish(f"t/{n % 3}", b"x", qos, packet_id=n) for n in order))
        bench.store()
        assert device.received() == [Acknowledgement(answer, n) for n in order]
    reader = bench.connect("r", version=version)
    reader.subscribe("t", qos=2)
    feed(bench, 4, qos=2)
    sent: Any = reader.received()
    reader.send(*(Acknowledgement(PUBREC, each.packet_id) for each in reversed(sent)))
    assert reader.received() == [Acknowledgement(PUBREL, each.packet_id) for each in reversed(sent)]


@versions
def test_qos_1_to_a_client_is_unacknowledged_until_puback(version: int) -> None:
    """5.0 [MQTT-2.2.1-4] [MQTT-4.3.2-1] [MQTT-4.3.2-3] [MQTT-4.4.0-1],
    3.1.1 [MQTT-2.3.1-4] [MQTT-4.3.2-1] [MQTT-4.4.0-1]"""
    bench = Bench()
    device = kept_client(bench, version)
    device.subscribe("t", qos=1)
    feed(bench, 3)
    sent: Any = device.received()
    assert len({each.packet_id for each in sent} - {0}) == 3
    bench.pass_time(500)
    assert device.received() == []  # sent again on a new connection, at no other time
    device.send(Acknowledgement(PUBACK, sent[1].packet_id))
    for _ in range(2):
        device.lose()
        device = kept_client(bench, version)
        again: Any = device.received()
        assert [(each.packet_id, each.payload) for each in again] == [
            (sent[0].packet_id, b"0"), (sent[2].packet_id, b"2"),
        ]  # fmt: skip


# -- QoS 2


@versions
def test_qos_2_from_a_client(version: int) -> None:
    """5.0 [MQTT-4.3.3-8] [MQTT-4.3.3-10] [MQTT-4.3.3-11] [MQTT-4.3.3-12],
    3.1.1 [MQTT-4.3.3-2]"""
    bench = Bench()
    device, watcher = bench.connect("d", version=version), bench.connect("w")
    watcher.subscribe("t", qos=0)
    for payload in (b"first", b"second"):
        for dup in (False, True, True):
            device.send(Publish("t", payload, 2, dup=dup, packet_id=5))
            bench.store()
            assert device.received() == [Acknowledgement(PUBREC, 5)]
        assert watcher.publishes() == [("t", payload)]
        device.send(Acknowledgement(PUBREL, 5))
        assert device.received() == [Acknowledgement(PUBCOMP, 5)]


def test_qos_2_from_a_client_that_was_refused_is_new_when_it_comes_again() -> None:
    """5.0 [MQTT-4.3.3-9] [MQTT-3.5.2-1]"""
    bench = Bench()
    device = bench.connect("d", version=V5)
    device.send(Publish("t", b"x", 2, packet_id=5))
    bench.store(StorageFull("full"))
    assert device.one().reason == Reason.QUOTA_EXCEEDED
    device.send(Publish("t", b"x", 2, packet_id=5))
    assert bench.store() == 1
    assert device.one() == Acknowledgement(PUBREC, 5)


def test_qos_2_goes_on_although_the_message_expired() -> None:
    """5.0 [MQTT-4.3.3-7] [MQTT-4.3.3-13]"""
    bench = Bench()
    reader = kept_client(bench, V5)
    reader.subscribe("t", qos=2)
    device = bench.connect("s", version=V5)
    expiring = Properties(message_expiry_s=5)
    device.send(Publish("t", b"x", 2, packet_id=5, properties=expiring))
    bench.store()
    sent = reader.one()
    reader.lose()
    bench.pass_time(10)
    device.received()
    device.send(Acknowledgement(PUBREL, 5))
    assert device.one() == Acknowledgement(PUBCOMP, 5)
    again = kept_client(bench, V5).one()  # sent before it expired, so it is finished
    assert (again.payload, again.dup, again.packet_id) == (b"x", True, sent.packet_id)


@versions
def test_qos_2_to_a_client(version: int) -> None:
    """5.0 [MQTT-4.3.3-1] [MQTT-4.3.3-3] [MQTT-4.3.3-4] [MQTT-4.3.3-5] [MQTT-4.3.3-6],
    3.1.1 [MQTT-4.3.3-1]"""
    bench = Bench()
    device = kept_client(bench, version)
    device.subscribe("t", qos=2)
    feed(bench, 1, qos=2)
    identifier = device.one().packet_id
    device.lose()
    device = kept_client(bench, version)
    assert device.one() == Publish("t", b"0", 2, dup=True, packet_id=identifier)
    device.send(Acknowledgement(PUBREC, identifier))
    assert device.one() == Acknowledgement(PUBREL, identifier)
    device.lose()
    device = kept_client(bench, version)
    assert device.one() == Acknowledgement(PUBREL, identifier)
    device.send(Acknowledgement(PUBCOMP, identifier))
    device.lose()
    assert kept_client(bench, version).received() == []


@pytest.mark.parametrize("qos", [1, 2])
def test_a_delivery_that_the_client_refused_is_over(qos: int) -> None:
    """5.0 [MQTT-4.4.0-2]"""
    bench = Bench()
    device = kept_client(bench, V5)
    device.subscribe("t", qos=qos)
    feed(bench, 1, qos)
    sent = device.one()
    answer = PUBACK if qos == 1 else PUBREC
    device.send(Acknowledgement(answer, sent.packet_id, Reason.UNSPECIFIED_ERROR))
    device.lose()
    assert kept_client(bench, V5).received() == []


# -- order


@versions
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_order_is_kept(version: int, qos: int) -> None:
    """5.0 [MQTT-4.6.0-1] [MQTT-4.6.0-5] [MQTT-4.6.0-6],
    3.1.1 [MQTT-4.6.0-1] [MQTT-4.6.0-5] [MQTT-4.6.0-6]"""
    bench = Bench(delivery=DeliveryLimits(inflight_max=5))
    device = kept_client(bench, version)
    device.subscribe("t", qos=2)
    feed(bench, 12, qos)
    got: list[bytes] = []
    for _ in range(12):
        packets: Any = device.received()
        for each in packets:
            if isinstance(each, Publish):
                got += [each.payload] if each.payload not in got else []
                if each.qos:
                    answer = PUBACK if each.qos == 1 else PUBREC
                    device.send(Acknowledgement(answer, each.packet_id))
            else:
                device.send(Acknowledgement(PUBCOMP, each.packet_id))
        if len(got) == 7 and qos:
            device.lose()
            device = kept_client(bench, version)
    assert got == [b"%d" % n for n in range(12)]


# -- properties


def test_properties_go_on_unaltered() -> None:
    """5.0 [MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-18]
    [MQTT-3.3.2-20], through memory and through storage"""
    bench = Bench()
    sender, reader = bench.connect("s", version=V5), bench.connect("r", version=V5)
    reader.subscribe("t", qos=2)
    for payload_format in (0, 1, None):
        sent = Properties(
            payload_format=payload_format, content_type="c\u00e9", response_topic="a/b",
            correlation_data=bytes(range(256)),
            user_properties=(("b", "1"), ("a", "2"), ("", ""), ("b", "1")),
        )  # fmt: skip
        for qos in range(3):
            sender.send(Publish("t", b"x", qos, packet_id=qos, properties=sent))
            bench.store()
            sender.send(Acknowledgement(PUBREL, 2))
            got = reader.one().properties
            assert got == sent


def test_message_expiry() -> None:
    """5.0 [MQTT-3.3.2-5] [MQTT-3.3.2-6]"""
    bench = Bench()
    device = kept_client(bench, V5)
    device.subscribe("t", qos=1)
    device.lose()
    sender = bench.connect("s", version=V5)
    for expiry_s in (10, 11, 100):
        properties = Properties(message_expiry_s=expiry_s)
        sender.send(Publish("t", b"x", 1, packet_id=1, properties=properties))
        bench.store()
    bench.pass_time(10)
    got: Any = kept_client(bench, V5).received()
    assert [each.properties.message_expiry_s for each in got] == [1, 90]


@pytest.mark.parametrize("topic", ["a/#", "+"])
def test_response_topics_hold_no_wildcards(topic: str) -> None:
    """5.0 [MQTT-3.3.2-14]"""
    device = Bench().connect("d", version=V5)
    device.send(Publish("t", b"", properties=Properties(response_topic=topic)))
    assert device.closed


def test_aliases_end_with_their_connection() -> None:
    """5.0 [MQTT-3.3.2-7]"""
    bench = Bench()
    device = kept_client(bench, V5)
    device.send(Publish("t", b"", properties=Properties(topic_alias=1)))
    device.lose()
    device = kept_client(bench, V5)
    device.send(Publish("", b"", properties=Properties(topic_alias=1)))
    assert disconnected_with(device) == Reason.PROTOCOL_ERROR


@pytest.mark.parametrize(("asked", "granted"), [(None, 0), (0, 0), (2, 2), (500, 3)])
def test_the_server_sends_aliases_up_to_the_maximum_of_the_client(
    asked: int | None, granted: int
) -> None:
    """5.0 [MQTT-3.1.2-26] [MQTT-3.1.2-27] [MQTT-3.3.2-11]"""
    bench = Bench(limits=Limits(sent_topic_alias_max=3))
    device = bench.connect("d", version=V5, properties=Properties(topic_alias_maximum=asked))
    device.subscribe("#", qos=1)
    for _ in range(2):
        for number in range(5):
            feed(bench, 1, qos=number % 2, topic=f"name/{number}")
    got: Any = device.received()
    aliases: dict[int, str] = {}
    names = []
    for each in got:
        alias = each.properties.topic_alias
        if alias is not None and each.topic:
            aliases[alias] = each.topic
        names.append(each.topic or aliases[alias])
    assert names == [f"name/{number}" for _ in range(2) for number in range(5)]
    assert sorted(aliases) == list(range(1, granted + 1))
    assert [each.topic for each in got[5:]].count("") == granted


def test_an_alias_that_was_not_sent_is_not_used() -> None:
    bench = Bench()
    taken = Properties(topic_alias_maximum=5, packet_max_bytes=40)
    device = bench.connect("d", version=V5, properties=taken)
    device.subscribe("t")
    sender = bench.connect("s")
    sender.send(Publish("t", b"x" * 60, retain=True), Publish("t", b"y"), Publish("t", b"z"))
    first, second = device.received()
    assert (first.topic, first.properties.topic_alias) == ("t", 1)  # type: ignore[union-attr]
    assert (second.topic, second.properties.topic_alias) == ("", 1)  # type: ignore[union-attr]


def test_clients_send_no_subscription_identifiers() -> None:
    """5.0 [MQTT-3.3.4-6]"""
    device = Bench().connect("d", version=V5)
    device.send(Publish("t", b"", properties=Properties(subscription_identifiers=(1,))))
    assert disconnected_with(device) == Reason.PROTOCOL_ERROR


# -- flow control


def test_the_client_keeps_to_the_receive_maximum() -> None:
    """5.0 [MQTT-3.3.4-7]"""
    bench = Bench(limits=Limits(receive_max=3, receive_maximum_exceeded="disconnect"))
    device = bench.connect("d", version=V5)
    device.send(*(Publish("t", b"", 1 + n % 2, packet_id=n) for n in (1, 2, 3)))
    bench.store()
    assert len(device.received()) == 3
    assert not device.closed  # two PUBACKs; one PUBREC, not finished
    device.send(*(Publish("t", b"", 1, packet_id=n) for n in (4, 5, 6)))
    assert disconnected_with(device) == Reason.RECEIVE_MAXIMUM_EXCEEDED


def test_the_server_keeps_to_the_receive_maximum_and_answers_other_packets() -> None:
    """5.0 [MQTT-3.3.4-9] [MQTT-3.3.4-10] [MQTT-4.9.0-1] [MQTT-4.9.0-2] [MQTT-4.9.0-3]"""
    bench = Bench()
    device = bench.connect("d", version=V5, properties=Properties(receive_maximum=2))
    device.subscribe("t", qos=2)
    feed(bench, 3, qos=2)
    feed(bench, 3, qos=0)
    sent: Any = device.received()
    assert [each.qos for each in sent] == [2, 2, 0, 0, 0]
    device.send(Ping(PacketType.PINGREQ), Publish("other", b"", 1, packet_id=1))
    bench.store()
    assert device.received() == [Ping(PacketType.PINGRESP), Acknowledgement(PUBACK, 1)]
    device.send(Acknowledgement(PUBREC, sent[0].packet_id))
    assert device.received() == [Acknowledgement(PUBREL, sent[0].packet_id)]
    device.send(Acknowledgement(PUBCOMP, sent[0].packet_id))
    assert device.one().payload == b"2"


# -- reasons and refusals


def test_only_reason_codes_of_the_packet_are_used() -> None:
    """5.0 [MQTT-3.4.2-1] [MQTT-3.5.2-1] [MQTT-3.6.2-1] [MQTT-3.7.2-1]"""
    for error in (None, Unavailable("x"), StorageFull("x")):
        bench = Bench()
        bench.forbidden = {(Operation.WRITE, "locked")}
        device = bench.connect("d", version=V5)
        device.send(*(Publish(name, b"", qos, packet_id=10 * qos + place)
                      for place, name in enumerate(("t", "locked")) for qos in (1, 2)))  # fmt: skip
        bench.store(error)
        device.send(Acknowledgement(PUBREL, 999), Acknowledgement(PUBREC, 999))
        answers: Any = device.received()
        assert len(answers) == 6
        assert all(each.reason in _REASONS[each.type] for each in answers)


@pytest.mark.parametrize(
    ("kind", "first"), [("PUBACK", 0x40), ("PUBREC", 0x50), ("PUBREL", 0x62), ("PUBCOMP", 0x70)]
)
def test_other_reason_codes_are_malformed(kind: str, first: int) -> None:
    """5.0 [MQTT-3.4.2-1] [MQTT-3.5.2-1] [MQTT-3.6.2-1] [MQTT-3.7.2-1]"""
    device = Bench().connect("d", version=V5)
    device.send_bytes(bytes((first, 3, 0, 1, 0x8D)))
    assert disconnected_with(device) == Reason.MALFORMED_PACKET


@pytest.mark.parametrize("disconnects", [True, False])
def test_a_publish_without_permission(disconnects: bool) -> None:
    """3.1.1 [MQTT-3.3.5-2]"""
    bench = Bench(limits=Limits(refused_publish_disconnects=disconnects))
    bench.forbidden = {(Operation.WRITE, "locked")}
    device = bench.connect("d")
    device.send(Publish("locked", b"x", 1, packet_id=3))
    assert bench.store() == 0
    assert device.closed is disconnects
    assert len(device.received()) == int(not disconnects)


def test_a_transient_error_closes_the_connection() -> None:
    """3.1.1 [MQTT-4.8.0-2]"""
    bench = Bench()
    device = bench.connect("d")
    device.send(Publish("t", b"x", 1, packet_id=3))
    bench.store(Unavailable("no leader"))
    assert (device.closed, device.received()) == (True, [])


# -- PINGREQ, DISCONNECT


@versions
def test_ping(version: int) -> None:
    """5.0 [MQTT-3.12.4-1], 3.1.1 [MQTT-3.12.4-1]"""
    device = Bench().connect("d", version=version)
    device.send(Ping(PacketType.PINGREQ))
    assert device.raw() == b"\xd0\0"


@versions
def test_nothing_counts_after_disconnect(version: int) -> None:
    """5.0 [MQTT-3.14.4-1] [MQTT-3.14.4-2], 3.1.1 [MQTT-3.14.4-2]"""
    bench = Bench()
    device = bench.connect("d", version=version)
    device.send(Disconnect(), Publish("t", b"x", 1, packet_id=1), Ping(PacketType.PINGREQ))
    assert (device.closed, device.raw(), bench.store()) == (True, b"", 0)


def test_disconnect_of_the_server() -> None:
    """5.0 [MQTT-3.14.2-1] [MQTT-3.14.2-2] [MQTT-4.13.2-1]"""
    bench = Bench()
    endings: list[Any] = [
        lambda device: device.send_bytes(b"\0\0"),
        lambda device: device.send(Publish("a+", b"")),
        lambda device: device.connection.timed_out(bench.now_ms),
        lambda device: device.connection.close(Reason.SERVER_SHUTTING_DOWN, "", bench.now_ms),
        lambda device: bench.connect("d", version=V5),
    ]
    for end in endings:
        device = kept_client(bench, V5)
        end(device)
        (goodbye,) = device.received()
        assert isinstance(goodbye, Disconnect)
        assert goodbye.reason in _REASONS[PacketType.DISCONNECT]
        assert goodbye.properties.session_expiry_s is None
        assert device.closed
