"""Goal: no packet is larger than its client takes: what may be left out of it is left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lakemq.plugins.mqtt.wire.encoding import encode
from lakemq.plugins.mqtt.wire.packets import (
    V5,
    Acknowledgement,
    Auth,
    Connack,
    Disconnect,
    PacketType,
    Properties,
    Publish,
    Suback,
    Unsuback,
)
from tests.support.mqtt.bench import Bench, Device

LONG = "x" * 100
PACKETS: list[Any] = [
    Connack(False, 0x87),
    Acknowledgement(PacketType.PUBACK, 1, 0x87),
    Acknowledgement(PacketType.PUBREC, 1, 0x87),
    Acknowledgement(PacketType.PUBREL, 1, 0x92),
    Acknowledgement(PacketType.PUBCOMP, 1, 0x92),
    Suback(1, (0x87,)),
    Unsuback(1, (0x87,)),
    Disconnect(0x87),
    Auth(0x18, Properties(authentication_method="M")),
]


def client(most: int) -> Device:
    bench = Bench()
    device = bench.connect("d", version=V5, properties=Properties(packet_max_bytes=100))
    device.connection.packet_max_bytes = most
    return device


@pytest.mark.parametrize("packet", PACKETS, ids=lambda one: type(one).__name__)
def test_reasons_and_user_properties_are_left_out_where_there_is_no_room(packet: Any) -> None:
    """5.0 [MQTT-3.2.2-19] [MQTT-3.2.2-20] [MQTT-3.4.2-2] [MQTT-3.4.2-3] [MQTT-3.5.2-2]
    [MQTT-3.5.2-3] [MQTT-3.6.2-2] [MQTT-3.6.2-3] [MQTT-3.7.2-2] [MQTT-3.7.2-3] [MQTT-3.9.2-1]
    [MQTT-3.9.2-2] [MQTT-3.11.2-1] [MQTT-3.11.2-2] [MQTT-3.14.2-3] [MQTT-3.14.2-4] [MQTT-3.15.2-2]
    [MQTT-3.15.2-3]"""
    bare = encode(packet, V5)
    for extra in ({"reason_string": LONG}, {"user_properties": (("name", LONG),)}):
        full = replace(packet, properties=replace(packet.properties, **extra))
        size = len(encode(full, V5))
        for most, expected in ((size, full), (size - 1, packet), (len(bare), packet)):
            device = client(most)
            device.connection.send(full)
            assert device.received() == [expected], (most, extra)
        device = client(len(bare) - 1)
        device.connection.send(full)
        assert device.received() == []


def test_a_copy_for_each_of_two_subscriptions_names_its_own() -> None:
    """5.0 [MQTT-3.3.4-5]: a replay beside a plain subscription gets copies of its own."""
    bench = Bench()
    sender = bench.connect("s")
    device = bench.connect("d", version=V5, properties=Properties(receive_maximum=1))
    for number in (1, 2):
        sender.send(Publish("t", b"%d" % number, 1, packet_id=number))
    bench.store()
    device.subscribe("t", qos=1, identifier=7)
    device.subscribe("$replay/earliest/t", qos=1, identifier=8)
    got: list[tuple[bytes, tuple[int, ...]]] = []
    sender.send(Publish("t", b"3", 1, packet_id=3))
    bench.store()
    while packets := device.received():
        for packet in packets:
            got.append((packet.payload, packet.properties.subscription_identifiers))
            device.send(Acknowledgement(PacketType.PUBACK, packet.packet_id))
    assert sorted(got) == [(b"1", (8,)), (b"2", (8,)), (b"3", (7,)), (b"3", (8,))]
