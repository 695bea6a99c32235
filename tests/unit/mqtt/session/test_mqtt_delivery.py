"""Goal: what subscribers get is in order, within their window, once per QoS, and bounded."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from lakemq.plugins.mqtt.state.delivery import ENTRY_BYTES, DeliveryLimits
from lakemq.plugins.mqtt.wire.messages import Place
from lakemq.plugins.mqtt.wire.packets import (
    NO_PROPERTIES,
    V5,
    V31,
    V311,
    Acknowledgement,
    Packet,
    PacketType,
    Properties,
    Publish,
)
from lakemq.plugins.mqtt.wire.reasons import Reason
from tests.support.mqtt.bench import Bench, Device, disconnected_with
from tests.support.seeds import seeds

PUBACK, PUBREC = PacketType.PUBACK, PacketType.PUBREC
PUBREL, PUBCOMP = PacketType.PUBREL, PacketType.PUBCOMP
versions = pytest.mark.parametrize("version", [V31, V311, V5])
FOREVER = Properties(session_expiry_s=0xFFFF_FFFF)


def publish(bench: Bench, sender: Device, count: int, qos: int = 1, topic: str = "t") -> None:
    """Publish payloads b"0", b"1", ... and have them stored."""
    for number in range(count):
        packet_id = number + 1 if qos else 0
        sender.send(Publish(topic, b"%d" % number, qos, packet_id=packet_id))
        bench.store()
        if qos == 2:
            sender.send(Acknowledgement(PUBREL, packet_id))
    sender.received()


def resume(bench: Bench, client_id: str, version: int, **more: Any) -> Device:
    properties = more.pop("properties", FOREVER if version == V5 else Properties())
    return bench.connect(client_id, version=version, clean=False, properties=properties, **more)


@versions
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("sent", [0, 1, 2])
def test_qos_is_the_lower_of_both(version: int, granted: int, sent: int) -> None:
    """5.0 [MQTT-3.8.4-8]"""
    bench = Bench()
    sender, reader = bench.connect("s"), bench.connect("r", version=version)
    assert reader.subscribe("t", qos=granted) == (granted,)
    publish(bench, sender, 1, sent)
    assert reader.one().qos == min(granted, sent)


@versions
def test_window_holds_back_and_acks_open_it(version: int) -> None:
    bench = Bench(delivery=DeliveryLimits(inflight_max=2))
    sender, reader = bench.connect("s"), bench.connect("r", version=version)
    reader.subscribe("t", qos=1)
    publish(bench, sender, 5)
    first = reader.received()
    assert [each.payload for each in first] == [b"0", b"1"]  # type: ignore[union-attr]
    reader.send(Acknowledgement(PUBACK, first[0].packet_id))  # type: ignore[union-attr]
    assert reader.one().payload == b"2"
    reader.send(Acknowledgement(PUBACK, 999))  # nobody's
    assert reader.received() == []


def test_receive_maximum_of_the_client_bounds_the_window() -> None:
    """5.0 [MQTT-3.3.4-9], seen from the server: [MQTT-4.9.0-2]"""
    bench = Bench()
    sender = bench.connect("s")
    reader = bench.connect("r", version=V5, properties=Properties(receive_maximum=1))
    reader.subscribe("t", qos=2)
    publish(bench, sender, 3, qos=2)
    got = reader.one()
    reader.send(Acknowledgement(PUBREC, got.packet_id))
    assert reader.one() == Acknowledgement(PUBREL, got.packet_id)
    reader.send(Acknowledgement(PUBCOMP, got.packet_id))
    assert reader.one().payload == b"1"


def test_a_refusing_pubrec_ends_the_delivery() -> None:
    """5.0 [MQTT-4.3.3-4]"""
    bench = Bench()
    sender = bench.connect("s")
    reader = bench.connect("r", version=V5, properties=Properties(receive_maximum=1))
    reader.subscribe("t", qos=2)
    publish(bench, sender, 2, qos=2)
    reader.send(Acknowledgement(PUBREC, reader.one().packet_id, Reason.QUOTA_EXCEEDED))
    assert reader.one().payload == b"1"


def test_pubrec_for_an_unknown_packet() -> None:
    bench = Bench()
    reader = bench.connect("r", version=V5)
    reader.send(Acknowledgement(PUBREC, 77))
    assert reader.one() == Acknowledgement(PUBREL, 77, Reason.PACKET_IDENTIFIER_NOT_FOUND)


@versions
def test_unacknowledged_publishes_are_sent_again_in_order(version: int) -> None:
    """5.0 [MQTT-4.4.0-1] [MQTT-4.6.0-1] [MQTT-3.3.1-1]"""
    bench = Bench()
    sender, reader = bench.connect("s"), resume(bench, "r", version)
    reader.subscribe("t", qos=1)
    publish(bench, sender, 4)
    first: Any = reader.received()
    reader.send(Acknowledgement(PUBACK, first[1].packet_id))
    reader.lose()
    reader = resume(bench, "r", version)
    again: Any = reader.received()
    assert [(each.payload, each.packet_id, each.dup) for each in again] == [
        (each.payload, each.packet_id, True) for each in (first[0], first[2], first[3])
    ]


@versions
def test_qos_2_resumes_with_pubrel_after_pubrec(version: int) -> None:
    """5.0 [MQTT-4.3.3-6]: after PUBREC the PUBLISH is never sent again."""
    bench = Bench()
    sender, reader = bench.connect("s"), resume(bench, "r", version)
    reader.subscribe("t", qos=2)
    publish(bench, sender, 2, qos=2)
    first: Any = reader.received()
    reader.send(Acknowledgement(PUBREC, first[0].packet_id))
    reader.lose()
    reader = resume(bench, "r", version)
    assert reader.received() == [
        Acknowledgement(PUBREL, first[0].packet_id),
        Publish("t", b"1", 2, dup=True, packet_id=first[1].packet_id),
    ]


@versions
def test_what_came_while_away_is_delivered_on_return(version: int) -> None:
    bench = Bench()
    sender, reader = bench.connect("s"), resume(bench, "r", version)
    reader.subscribe("t", qos=1)
    reader.lose()
    publish(bench, sender, 3)
    publish(bench, sender, 1, qos=0)
    reader = resume(bench, "r", version)
    assert reader.connack.session_present is (version != V31)  # type: ignore[attr-defined]
    assert reader.publishes() == [("t", b"0"), ("t", b"1"), ("t", b"2")]


def test_a_smaller_window_on_return_is_obeyed() -> None:
    bench = Bench()
    sender, reader = bench.connect("s"), resume(bench, "r", V5)
    reader.subscribe("t", qos=1)
    publish(bench, sender, 3)
    reader.received()
    reader.lose()
    small = Properties(session_expiry_s=60, receive_maximum=1)
    reader = resume(bench, "r", V5, properties=small)
    payloads = []
    for _ in range(3):
        got = reader.one()
        payloads.append(got.payload)
        reader.send(Acknowledgement(PUBACK, got.packet_id))
    assert payloads == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    ("policy", "kept"), [("drop_oldest", [b"2", b"3"]), ("drop_newest", [b"0", b"1"])]
)
def test_full_queue_of_an_absent_client(policy: str, kept: list[bytes]) -> None:
    limits = DeliveryLimits(queue_count_max=2, queue_full=policy)
    bench = Bench(delivery=limits)
    sender, reader = bench.connect("s"), resume(bench, "r", V311)
    reader.subscribe("t", qos=1)
    reader.lose()
    publish(bench, sender, 4)
    assert [payload for _, payload in resume(bench, "r", V311).publishes()] == kept
    assert limits.dropped_queue_full == 2


def test_full_queue_disconnects_where_it_shall() -> None:
    limits = DeliveryLimits(inflight_max=1, queue_max_bytes=300, queue_full="disconnect")
    bench = Bench(delivery=limits)
    sender, reader = bench.connect("s"), bench.connect("r", version=V5)
    reader.subscribe("t", qos=1)
    publish(bench, sender, 3)
    assert disconnected_with(reader) == Reason.QUOTA_EXCEEDED


def test_queue_is_bounded_in_bytes() -> None:
    """What lies in the journal counts as what is in memory does."""
    limits = DeliveryLimits(queue_max_bytes=2 * (ENTRY_BYTES + 100), inflight_max=1)
    bench = Bench(delivery=limits)
    sender, reader = bench.connect("s"), resume(bench, "r", V311)
    reader.subscribe("t", qos=1)
    for number in range(5):
        sender.send(Publish("t", bytes([number]) * 99, 1, packet_id=1))
        bench.store()
    outbound = bench.hub.sessions["r"].outbound
    assert outbound.queue_bytes == 2 * (ENTRY_BYTES + 100)
    assert outbound.queue is not None
    waiting = [each.message.payload[0] for each in outbound.queue if each.message is not None]
    assert waiting == [3, 4]
    assert limits.dropped_queue_full == 2


def test_the_bytes_of_an_absent_clients_queue_are_those_of_its_publishes() -> None:
    limits = DeliveryLimits(queue_max_bytes=1024 * 1024)
    bench = Bench(delivery=limits)
    sender, reader = bench.connect("s"), resume(bench, "r", V311)
    reader.subscribe("t", qos=1)
    reader.lose()
    for _ in range(300):
        sender.send(Publish("t", bytes(10_000), 1, packet_id=1))
        bench.store()
    outbound = bench.hub.sessions["r"].outbound
    assert outbound.queue is not None
    assert 1024 * 1024 - 10_300 < outbound.queue_bytes <= 1024 * 1024
    assert limits.dropped_queue_full == 300 - len(outbound.queue) > 190


def test_a_connected_clients_queue_is_not_bounded_in_count() -> None:
    """Nor is what came while it was here dropped because it leaves."""
    limits = DeliveryLimits(inflight_max=1, queue_count_max=10)
    bench = Bench(delivery=limits)
    sender, reader = bench.connect("s"), resume(bench, "r", V311)
    reader.subscribe("t", qos=1)
    publish(bench, sender, 50)
    reader.lose()
    publish(bench, sender, 5)  # each in place of an older one
    assert limits.dropped_queue_full == 5
    reader = resume(bench, "r", V311)
    publish(bench, sender, 20)
    assert limits.dropped_queue_full == 5
    assert bench.hub.sessions["r"].outbound.load == 1 + 49 + 20


def test_the_queue_of_an_absent_client_holds_places_not_payloads() -> None:
    bench = Bench()
    sender, reader = bench.connect("s"), resume(bench, "r", V311)
    reader.subscribe("t", qos=1)
    publish(bench, sender, 1)  # in flight when the connection breaks
    reader.lose()
    for number in range(1, 700):
        sender.send(Publish("t", b"%d" % number * 1000, 1, packet_id=1))
        bench.store()
    outbound = bench.hub.sessions["r"].outbound
    assert outbound.queue_bytes == sum(
        ENTRY_BYTES + 1 + 1000 * len(b"%d" % n) for n in range(1, 700)
    )
    assert outbound.queue is not None
    held = [*outbound.inflight.values(), *outbound.queue]
    assert [each.message for each in held] == [None] * 700
    reader = resume(bench, "r", V311)
    got = [each for each in reader.received() if isinstance(each, Publish)]
    assert [each.payload for each in got] == [b"%d" % n * (1000 if n else 1) for n in range(700)]
    assert outbound.queue_bytes == 0


def test_what_retention_took_is_counted_and_passed_over() -> None:
    limits = DeliveryLimits()
    bench = Bench(delivery=limits)
    sender, reader = bench.connect("s"), resume(bench, "r", V311)
    reader.subscribe("t", qos=1)
    publish(bench, sender, 1)
    reader.lose()
    publish(bench, sender, 4)
    for place in sorted(bench.messages)[:3]:
        del bench.messages[place]
    assert [payload for _, payload in resume(bench, "r", V311).publishes()] == [b"2", b"3"]
    assert limits.dropped_gone == 3


def test_a_blocked_socket_drops_qos_0_and_keeps_qos_1() -> None:
    limits = DeliveryLimits()
    bench = Bench(delivery=limits)
    sender, reader = bench.connect("s"), bench.connect("r")
    reader.subscribe("t", qos=1)
    reader.connection.blocked = True
    publish(bench, sender, 3, qos=0)
    publish(bench, sender, 2, qos=1)
    assert reader.received() == []
    assert limits.dropped_qos_0 == 3
    reader.connection.unblocked(bench.now_ms)
    assert reader.publishes() == [("t", b"0"), ("t", b"1")]


def test_message_expiry_counts_the_time_waited() -> None:
    """5.0 [MQTT-3.3.2-5] [MQTT-3.3.2-6]"""
    bench = Bench()
    sender, reader = bench.connect("s", version=V5), resume(bench, "r", V5)
    reader.subscribe("t", qos=1)
    reader.lose()
    for number, expiry_s in enumerate((5, 60)):
        properties = Properties(message_expiry_s=expiry_s)
        sender.send(Publish("t", b"%d" % number, 1, packet_id=1, properties=properties))
        bench.store()
    bench.pass_time(10)
    got = resume(bench, "r", V5).one()
    assert (got.payload, got.properties.message_expiry_s) == (b"1", 50)
    assert bench.hub.delivery.dropped_expired == 1


@pytest.mark.parametrize("qos", [0, 1])
def test_packets_larger_than_the_client_takes_are_not_sent(qos: int) -> None:
    """5.0 [MQTT-3.1.2-24] [MQTT-3.1.2-25]"""
    bench = Bench()
    sender = bench.connect("s")
    small = Properties(packet_max_bytes=50, receive_maximum=1)
    reader = bench.connect("r", version=V5, properties=small)
    reader.subscribe("t", qos=qos)
    for payload in (b"x" * 100, b"fits"):
        sender.send(Publish("t", payload, qos, packet_id=qos))
        bench.store()
    assert reader.publishes() == [("t", b"fits")]
    assert bench.hub.delivery.dropped_too_large == 1


@versions
def test_packet_identifiers_in_use_are_skipped(version: int) -> None:
    """5.0 [MQTT-2.2.1-4]"""
    bench = Bench(delivery=DeliveryLimits(inflight_max=65_535))
    sender, reader = bench.connect("s"), bench.connect("r", version=version)
    reader.subscribe("t", qos=1)
    publish(bench, sender, 3)
    first: Any = reader.received()
    reader.send(Acknowledgement(PUBACK, first[1].packet_id))
    bench.hub.sessions["r"].outbound._next_id = 65_535
    publish(bench, sender, 3)
    assert [each.packet_id for each in reader.received()] == [65_535, 2, 4]  # type: ignore[union-attr]


def test_identifiers_in_use_are_skipped_by_what_waited() -> None:
    """5.0 [MQTT-2.2.1-4]"""
    bench = Bench(delivery=DeliveryLimits(inflight_max=3))
    sender, reader = bench.connect("s"), bench.connect("r")
    reader.subscribe("t", qos=1)
    publish(bench, sender, 8)
    assert [each.packet_id for each in reader.received()] == [1, 2, 3]  # type: ignore[union-attr]
    bench.hub.sessions["r"].outbound._next_id = 65_535
    for answered, next_ids in (((2,), [65_535]), ((65_535,), [2]), ((2, 1), [4, 5])):
        reader.send(*(Acknowledgement(PUBACK, packet_id) for packet_id in answered))
        assert [each.packet_id for each in reader.received()] == next_ids  # type: ignore[union-attr]


def test_order_of_a_topic_is_kept_across_window_and_queue() -> None:
    """5.0 [MQTT-4.6.0-5]"""
    bench = Bench(delivery=DeliveryLimits(inflight_max=3))
    sender, reader = bench.connect("s"), bench.connect("r")
    reader.subscribe("t", qos=1)
    publish(bench, sender, 20)
    got: list[bytes] = []
    while packets := reader.received():
        for each in packets:
            assert isinstance(each, Publish)
            got.append(each.payload)
            reader.send(Acknowledgement(PUBACK, each.packet_id))
    assert got == [b"%d" % number for number in range(20)]


def test_what_waited_too_long_in_a_queue_is_dropped() -> None:
    bench = Bench(delivery=DeliveryLimits(queue_expiry_ms=10_000))
    device, sender = bench.connect("d", clean=False), bench.connect("s")
    device.subscribe("t", qos=1)
    device.lose()
    for number in range(3):
        sender.send(Publish("t", b"%d" % number, 1, packet_id=1))
        bench.store()
        bench.pass_time(4)
    device = bench.connect("d", clean=False)
    assert [payload for _, payload in device.publishes()] == [b"1", b"2"]
    assert bench.hub.delivery.dropped_expired == 1


def answers(packets: Sequence[Packet]) -> list[Acknowledgement]:
    """The PUBACK of each PUBLISH."""
    return [Acknowledgement(PUBACK, each.packet_id) for each in packets if type(each) is Publish]


def test_pubacks_that_come_together_open_the_window_by_as_many() -> None:
    """[MQTT-3.3.4-9] [MQTT-4.6.0-5]: in order, and never more than the window is out."""
    bench = Bench(delivery=DeliveryLimits(inflight_max=40))
    sender, reader = bench.connect("s"), bench.connect("r", version=V5)
    reader.subscribe("t", qos=1)
    publish(bench, sender, 500)
    outbound, got, out = bench.hub.sessions["r"].outbound, list[bytes](), list[Packet]()
    chance, pieces, answered = random.Random(7), len(reader.connection.out), 0
    while packets := reader.received():
        out += packets
        assert len(out) == len(outbound.inflight) == outbound.unacked <= 40
        got += [each.payload for each in packets if type(each) is Publish]
        count = chance.randrange(1, len(out) + 1)
        # what is nobody's, and what was finished before, changes nothing
        more = [Acknowledgement(PUBACK, 60_000), *answers(out[:1])]
        answered += count + len(more)
        reader.send(*answers(out[:count]), *more)
        del out[:count]
        pieces += len(reader.connection.out)
    assert reader.connection.traffic.packets_received == 2 + answered  # CONNECT, SUBSCRIBE
    reader.send(*answers(out))
    assert got == [b"%d" % number for number in range(500)]
    assert outbound.load == outbound.unacked == outbound.queue_bytes == 0
    traffic = reader.connection.traffic
    assert bench.hub.delivery.sent == traffic.sent[1] == pieces + traffic.packets_sent == 500


def test_a_puback_for_qos_2_among_others_ends_the_connection_behind_those_before_it() -> None:
    bench = Bench(durable=True)
    sender = bench.connect("s")
    reader = bench.connect("r", version=V5)
    reader.subscribe("one", qos=1, packet_id=1)
    reader.subscribe("two", qos=2, packet_id=2)
    publish(bench, sender, 2, topic="one")
    publish(bench, sender, 1, 2, topic="two")
    publish(bench, sender, 1, topic="one")
    packets = reader.received()
    assert [each.qos for each in packets if type(each) is Publish] == [1, 1, 2, 1]
    outbound = bench.hub.sessions["r"].outbound
    reader.send(*answers(packets))
    assert disconnected_with(reader) == Reason.PROTOCOL_ERROR
    assert [each.qos for each in outbound.inflight.values()] == [2, 1]


@versions
@pytest.mark.parametrize("seed", seeds(20))
def test_whatever_waits_comes_in_order_and_as_it_must(version: int, seed: int) -> None:
    """Small and large ones, of QoS 1 and 2, expired ones and those that the client or the journal
    does not have room for, under topic aliases too: each is dealt with in its turn."""
    chance = random.Random(seed)
    bench = Bench(delivery=DeliveryLimits(inflight_max=chance.choice([3, 50, 1000])))
    most = 6000 if version == V5 else 1 << 28
    asked = Properties(
        session_expiry_s=60, packet_max_bytes=most, topic_alias_maximum=chance.choice([0, 2])
    ) if version == V5 else NO_PROPERTIES  # fmt: skip
    sender, reader = bench.connect("s", version=V5), resume(bench, "r", version, properties=asked)
    reader.subscribe("#", qos=2)
    reader.lose()
    expected: list[tuple[str, bytes, int]] = []
    for number in range(120):
        kind = chance.choice(["small"] * 8 + ["large", "too large", "expired", "gone", "two"])
        size = {"large": 5000, "too large": 7000}.get(kind, 10)
        qos, name = 2 if kind == "two" else 1, chance.choice(["a", "b/" * 20, "c"])
        payload = b"%d" % number + bytes(size)
        properties = Properties(message_expiry_s=5) if kind == "expired" else NO_PROPERTIES
        sender.send(Publish(name, payload, qos, packet_id=1, properties=properties))
        place = Place("mqtt", 0, number)
        bench.store()
        if qos == 2:
            sender.send(Acknowledgement(PUBREL, 1))
        if kind == "gone":
            del bench.messages[place]
        elif kind != "expired" and (kind != "too large" or version != V5):
            expected.append((name, payload, qos))
    bench.pass_time(10)
    reader = resume(bench, "r", version, properties=asked)
    got, aliases = list[tuple[str, bytes, int]](), dict[int, str]()
    while packets := reader.received():
        for each in packets:
            if type(each) is Publish:
                alias = each.properties.topic_alias
                if alias and each.topic:
                    aliases[alias] = each.topic
                got.append((each.topic or aliases[alias or 0], each.payload, each.qos))
        reader.send(*[
            Acknowledgement(PUBCOMP if type(each) is Acknowledgement else
                            PUBACK if each.qos == 1 else PUBREC, each.packet_id)
            for each in packets if isinstance(each, Publish | Acknowledgement)
        ])  # fmt: skip
    assert got == expected
    outbound = bench.hub.sessions["r"].outbound
    assert outbound.load == outbound.unacked == outbound.queue_bytes == 0


def test_pubacks_of_what_was_not_sent_again_yet_do_not_widen_the_window() -> None:
    bench = Bench()
    sender, reader = bench.connect("s"), resume(bench, "r", V5)
    reader.subscribe("t", qos=1)
    publish(bench, sender, 5)
    first = reader.received()
    reader.lose()
    small = Properties(session_expiry_s=60, receive_maximum=2)
    reader = resume(bench, "r", V5, properties=small)
    assert len(reader.received()) == 2
    reader.send(*answers(first))
    publish(bench, sender, 4)
    assert [payload for _, payload in reader.publishes()] == [b"0", b"1"]


def test_deliveries_that_were_slow_and_acknowledged_together_are_each_counted() -> None:
    bench = Bench()
    slow = bench.hub.delivery.slow
    slow.limit(3000, 100, 300_000)
    sender, reader = bench.connect("s"), bench.connect("r")
    reader.subscribe("#", qos=1)
    for name in ("first", "second", "third"):
        publish(bench, sender, 1, topic=name)
        bench.pass_time(2)
    packets = reader.received()
    reader.send(*answers([packets[1], packets[0], packets[2]]))
    (found,) = slow.top(bench.now_ms)
    assert (found.topic, found.latency_ms, found.count) == ("first", 6000, 2)
    assert slow.noted == 2
