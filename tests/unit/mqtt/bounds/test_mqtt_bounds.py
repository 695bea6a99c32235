"""Goal: what a packet may hold is bounded, and its sender is told; nothing is gathered beyond."""

from __future__ import annotations

import pytest

from lakemq.broker_core.api.types import ANONYMOUS, Challenge, Credentials
from lakemq.plugins.mqtt.limits import Limits
from lakemq.plugins.mqtt.wire.codec import Decoder
from lakemq.plugins.mqtt.wire.decoding import FILTERS_MAX
from lakemq.plugins.mqtt.wire.encoding import encode
from lakemq.plugins.mqtt.wire.packets import (
    V5,
    V311,
    Auth,
    Connack,
    Connect,
    Filter,
    PacketType,
    Ping,
    Properties,
    Publish,
    Subscribe,
    Unsubscribe,
    Will,
)
from lakemq.plugins.mqtt.wire.properties import USER_PROPERTIES_MAX
from lakemq.plugins.mqtt.wire.reasons import Reason
from lakemq.plugins.mqtt.wire.topics import LEVELS_MAX, TopicTooDeep
from tests.support.mqtt.bench import Bench, disconnected_with

MANY = Properties(user_properties=(("k", "v"),) * (USER_PROPERTIES_MAX + 1))
ENOUGH = Properties(user_properties=(("k", "v"),) * USER_PROPERTIES_MAX)


# -- CONNECT


@pytest.mark.parametrize(
    "packet",
    [Connect("d", V5, properties=MANY), Connect("d", V5, will=Will("t", b"", 0, False, MANY))],
)
def test_too_many_user_properties_in_connect_are_refused(packet: Connect) -> None:
    device = Bench().dial(V5)
    device.send(packet)
    assert device.one().code == Reason.QUOTA_EXCEEDED
    assert device.closed


def test_as_many_user_properties_as_are_allowed() -> None:
    bench = Bench()
    device = bench.connect("d", version=V5, properties=ENOUGH)
    device.send(Publish("t", b"x", 1, packet_id=1, properties=ENOUGH))
    assert bench.store() == 1
    device.received()
    device.send(Publish("t", b"x", 1, packet_id=2, properties=MANY))
    assert disconnected_with(device) == Reason.QUOTA_EXCEEDED


@pytest.mark.parametrize(("version", "answer"), [
    (V5, Connack(False, Reason.PACKET_TOO_LARGE, Properties(
        reason_string="packet of 1027 bytes; 1000 is the most"))),
    (V311, Connack(False, 3)),
])  # fmt: skip
def test_a_connect_beyond_its_bound_is_refused_before_it_is_gathered(
    version: int, answer: Connack
) -> None:
    bench = Bench(limits=Limits(connect_max_bytes=1000))
    will = Will("t", b"", properties=Properties())
    size = 1027 - len(encode(Connect("d", version, will=will), version)) - 1
    will.payload = bytes(size)
    data = encode(Connect("d", version, will=will), version)
    assert len(data) == 1027
    device = bench.dial(version)
    device.send_bytes(data[:20])
    assert device.closed
    assert device.one() == answer
    assert device.connection.decoder.held_bytes == 0


def test_a_large_will_is_a_matter_of_configuration() -> None:
    packet = Connect("d", V5, username="u", password=bytes(50_000), will=Will("t", bytes(65_535)))
    for limits, code in ((Limits(connect_max_bytes=200_000), 0), (Limits(), 0x95)):
        bench = Bench(limits=limits)
        device = bench.dial(V5)
        device.send(packet)
        device.connection.authenticated(ANONYMOUS, bench.now_ms)
        assert device.one().code == code


def test_packets_of_a_client_that_was_let_in_have_their_own_bound() -> None:
    """One that does not wait for CONNACK is not refused for what it sends behind CONNECT."""
    bench = Bench(limits=Limits(connect_max_bytes=1000, packet_max_bytes=100_000))
    device = bench.dial()
    device.send(Connect("d", V311), Publish("t", bytes(50_000), 1, packet_id=1))
    assert not device.closed
    device.connection.authenticated(ANONYMOUS, bench.now_ms)
    assert bench.store() == 1


def test_packets_between_connect_and_connack_are_bounded_too() -> None:
    bench = Bench(limits=Limits(connect_max_bytes=1000, packet_max_bytes=100_000))
    bench.mechanisms["M"] = _Curious()
    device = bench.dial(V5)
    device.send(Connect("d", V5, properties=Properties(authentication_method="M")))
    assert isinstance(device.one(), Auth)
    more = Properties(authentication_method="M", authentication_data=bytes(2000))
    device.send(Auth(Reason.CONTINUE_AUTHENTICATION, more))
    assert device.one().code == Reason.PACKET_TOO_LARGE


class _Curious:
    """Asks whatever is said."""

    name = "M"

    def begin(self, credentials: Credentials) -> _Curious:
        return self

    async def step(self, data: bytes) -> Challenge:
        return Challenge(b"?")


@pytest.mark.parametrize("version", [V311, V5])
def test_what_comes_behind_connect_waits_as_the_bytes_it_is(version: int) -> None:
    """No packet is made of it before its client is known, so it takes no more memory than it has
    bytes."""
    bench = Bench()
    device = bench.dial(version)
    pings = encode(Ping(PacketType.PINGREQ), version) * 1000
    device.send_bytes(encode(Connect("d", version), version) + pings)
    device.send_bytes(pings)
    assert device.connection.decoder.held_bytes == 2 * len(pings)
    assert not device.connection.pending
    device.connection.authenticated(ANONYMOUS, bench.now_ms)
    kinds = [type(each).__name__ for each in device.received()]
    assert kinds == ["Connack", *["Ping"] * 2000]
    assert device.connection.decoder.held_bytes == 0


# -- SUBSCRIBE and UNSUBSCRIBE


def test_filters_of_one_packet_are_bounded() -> None:
    bench = Bench()
    for packet in (
        Subscribe(1, (Filter("a"),) * (FILTERS_MAX + 1)),
        Unsubscribe(1, ("a",) * (FILTERS_MAX + 1)),
    ):
        device = bench.connect("d", version=V5)
        device.send(packet)
        assert disconnected_with(device) == Reason.QUOTA_EXCEEDED
    (packet,) = Decoder(1 << 20, version=V5).feed(
        encode(Subscribe(1, (Filter("a"),) * FILTERS_MAX), V5)
    )
    assert isinstance(packet, Subscribe)


# -- levels

DEEP = "/".join("x" * (LEVELS_MAX + 1))
AT_MOST = DEEP[:-2]


@pytest.mark.parametrize("version", [V311, V5])
def test_names_and_filters_have_as_many_levels_as_is_said(version: int) -> None:
    bench = Bench()
    device = bench.connect("d", version=version, will=Will(AT_MOST, b""))
    assert device.subscribe(AT_MOST, qos=1) == (1,)
    assert device.subscribe(DEEP, qos=1) == (0x8F if version == V5 else 0x80,)
    device.send(Publish(AT_MOST, b"x", 1, packet_id=1))
    assert bench.store() == 1
    assert (AT_MOST, b"x") in device.publishes()
    few = Bench(limits=Limits(topic_levels_max=8))
    assert few.connect("d", version=V5).subscribe("a/" * 8, "a/" * 7, qos=1) == (0x8F, 1)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_publish_to_a_name_that_is_too_deep_is_refused_alone(qos: int) -> None:
    bench = Bench()
    device = bench.connect("d", version=V5)
    device.send(Publish(DEEP, b"x", qos, packet_id=7 if qos else 0))
    assert not device.closed
    assert bench.store() == 0
    assert bench.hub.counters.publishes_refused == 1
    if qos:
        assert device.one().reason == Reason.TOPIC_NAME_INVALID
    device.send(Publish("t", b"x", 1, packet_id=1))
    assert bench.store() == 1


def test_a_publish_that_is_too_deep_is_told_to_old_clients_as_any_refusal() -> None:
    """By the end of the connection, or not at all."""
    bench = Bench()
    device = bench.connect("d")
    device.send(Publish(DEEP, b"x", 1, packet_id=7))
    assert device.closed
    tolerant = Bench(limits=Limits(refused_publish_disconnects=False))
    device = tolerant.connect("d")
    device.send(Publish(DEEP, b"x", 1, packet_id=7))
    assert not device.closed
    assert device.raw() == b"\x40\x02\x00\x07"
    assert tolerant.store() == 0


@pytest.mark.parametrize("version", [V311, V5])
def test_a_will_that_is_too_deep_is_refused(version: int) -> None:
    device = Bench().dial(version)
    device.send(Connect("d", version, will=Will(DEEP, b"")))
    assert device.one().code == (Reason.TOPIC_NAME_INVALID if version == V5 else 3)
    assert device.closed


def test_records_of_names_that_are_too_deep_are_not_delivered() -> None:
    """They may come from native producers."""
    bench = Bench()
    with pytest.raises(TopicTooDeep, match="more than 256 levels"):
        bench.hub.names[DEEP.encode()]
    assert bench.hub.names[AT_MOST.encode()] == AT_MOST
