"""Goal: what the standards forbid ends the connection with a reason they allow; what MQTT 3.1
allows and later versions do not is taken from clients of 3.1.
"""

from __future__ import annotations

import pytest

from lakemq.broker_core.api.types import ANONYMOUS
from lakemq.plugins.mqtt.wire.encoding import encode
from lakemq.plugins.mqtt.wire.packets import (
    V5,
    V31,
    V311,
    Acknowledgement,
    Connack,
    Connect,
    Filter,
    PacketType,
    Properties,
    Publish,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
)
from lakemq.plugins.mqtt.wire.reasons import CONNACK_REASONS, Reason, connack_reason
from tests.support.mqtt.bench import Bench, Device, disconnected_with

PUBACK, PUBREC, PUBCOMP = PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBCOMP
versions = pytest.mark.parametrize("version", [V31, V311, V5])


# -- CONNACK


def test_connack_says_only_what_it_may() -> None:
    """5.0 [MQTT-3.2.2-8]"""
    assert {connack_reason(reason) for reason in Reason} <= CONNACK_REASONS


def test_a_connect_that_another_one_overtakes_is_answered_with_a_legal_reason() -> None:
    """5.0 [MQTT-3.2.2-8]"""
    bench = Bench(durable=True)
    kept = Properties(session_expiry_s=60)
    devices = [bench.dial(V5) for _ in range(2)]
    for device in devices:
        device.send(Connect("d", V5, properties=kept))
        device.connection.authenticated(ANONYMOUS, bench.now_ms)
    first, _ = devices
    (answer,) = first.decoded()
    assert isinstance(answer, Connack)
    assert answer.code == Reason.SERVER_BUSY
    assert first.closed


def test_a_connack_that_the_client_does_not_take_ends_the_connection() -> None:
    """5.0 [MQTT-3.1.2-24]: it is refused in five bytes, and its will is not published."""
    bench = Bench()
    witness = bench.connect("w")
    witness.subscribe("will")
    device = bench.dial(V5)
    device.send(
        Connect("d", V5, will=Will("will", b"x"), properties=Properties(packet_max_bytes=8))
    )
    device.connection.authenticated(ANONYMOUS, bench.now_ms)
    assert device.one() == Connack(False, Reason.PACKET_TOO_LARGE)
    assert device.closed
    assert "d" not in bench.hub.sessions
    assert witness.received() == []


# -- acknowledgements


def receiving(version: int, qos: int) -> tuple[Bench, Device, int]:
    """A client with one publish to it that is not acknowledged; its packet identifier."""
    bench = Bench()
    device, sender = bench.connect("d", version=version), bench.connect("s")
    device.subscribe("t", qos=qos)
    sender.send(Publish("t", b"x", 2, packet_id=1))
    bench.store()
    return bench, device, device.one().packet_id


@versions
@pytest.mark.parametrize(("qos", "answers"), [
    (1, [PUBREC]), (1, [PUBCOMP]), (2, [PUBACK]), (2, [PUBCOMP]), (2, [PUBREC, PUBACK]),
])  # fmt: skip
def test_an_acknowledgement_of_the_wrong_kind_ends_the_connection(
    version: int, qos: int, answers: list[PacketType]
) -> None:
    """5.0 [MQTT-4.13.1-1], 3.1.1 [MQTT-4.8.0-1]"""
    bench, device, packet_id = receiving(version, qos)
    for answer in answers:
        assert not device.closed
        device.received()
        device.send(Acknowledgement(answer, packet_id))
        bench.store()
    assert device.closed
    if version == V5:
        assert disconnected_with(device) == Reason.PROTOCOL_ERROR


@versions
def test_acknowledgements_that_may_come_again_do(version: int) -> None:
    """A PUBREC sent twice is answered twice; what is not in flight any more is nothing wrong."""
    bench, device, packet_id = receiving(version, 2)
    for answer in (PUBREC, PUBREC, PUBCOMP, PUBCOMP, PUBACK):
        device.send(Acknowledgement(answer, packet_id))
    bench.store()
    assert not device.closed


def test_a_release_of_the_clients_own_publish_is_not_taken_for_an_answer() -> None:
    """Both sides choose packet identifiers by themselves."""
    bench, device, packet_id = receiving(V311, 1)
    device.send(Publish("other", b"x", 2, packet_id=packet_id))
    bench.store()
    device.send(Acknowledgement(PacketType.PUBREL, packet_id))
    device.send(Acknowledgement(PUBACK, packet_id))
    assert not device.closed


# -- MQTT 3.1

AGAIN = 0x08


def test_old_clients_may_mark_requests_as_sent_again() -> None:
    """MQTT V3.1, section 2.1: DUP."""
    bench = Bench()
    device = bench.connect("d", version=V31)
    for packet in (Subscribe(1, (Filter("t"),)), Unsubscribe(2, ("t",))):
        data = encode(packet, V31)
        device.send_bytes(bytes((data[0] | AGAIN,)) + data[1:])
    device.send(Publish("t", b"x", 2, packet_id=3))
    bench.store()
    device.send_bytes(b"\x6a\x02\x00\x03")
    assert not device.closed
    assert [type(each) for each in device.received()] == [
        Suback,
        Unsuback,
        Acknowledgement,
        Acknowledgement,
    ]


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("data", [b"\x6a\x02\x00\x03", b"\x8a\x06\x00\x01\x00\x01t\x00"])
def test_later_clients_may_not(version: int, data: bytes) -> None:
    """5.0 [MQTT-2.1.3-1], 3.1.1 [MQTT-2.2.2-1] [MQTT-2.2.2-2]"""
    device = Bench().connect("d", version=version)
    device.send_bytes(data)
    assert device.closed


def test_flags_that_old_clients_have_no_use_for_are_not_looked_at() -> None:
    bench = Bench()
    device = bench.connect("d", version=V31)
    device.send_bytes(b"\xcf\x00")
    assert device.raw() == b"\xd0\x00"
    for flags in (0x03, 0x3A):  # reserved; will QoS and retain without a will
        other = bench.dial(V31)
        other.send_bytes(b"\x10\x0f\0\6MQIsdp\3" + bytes((flags,)) + b"\0\0\0\1e")
        other.connection.authenticated(ANONYMOUS, bench.now_ms)
        assert other.one() == Connack()


@pytest.mark.parametrize("version", [V311, V5])
def test_later_clients_may_not_set_the_reserved_flag(version: int) -> None:
    """5.0 [MQTT-3.1.2-3], 3.1.1 [MQTT-3.1.2-3]"""
    device = Bench().dial(version)
    more = b"\0" if version == V5 else b""
    device.send_bytes(
        b"\x10"
        + bytes((13 + len(more),))
        + b"\0\4MQTT"
        + bytes((version, 3))
        + b"\0\0"
        + more
        + b"\0\1d"
    )
    assert device.closed


@pytest.mark.parametrize("clean", [True, False])
def test_old_clients_must_say_who_they_are(clean: bool) -> None:
    """MQTT V3.1, section 3.1: a client identifier has 1 to 23 characters."""
    device = Bench().dial(V31)
    device.send(Connect("", V31, clean))
    assert device.raw() == b"\x20\x02\x00\x02"
    assert device.closed


@pytest.mark.parametrize("version", [V31, V311])
def test_bridges_of_both_old_versions(version: int) -> None:
    bench = Bench()
    device = bench.dial(version)
    device.send(Connect("far", version, bridge=True))
    device.connection.authenticated(ANONYMOUS, bench.now_ms)
    assert device.one() == Connack()
    assert device.connection.bridge
    assert device.connection.version == version
    device.subscribe("a", qos=1)
    device.send(Publish("a", b"mine", 1, packet_id=1))
    bench.store()
    assert device.publishes() == []
