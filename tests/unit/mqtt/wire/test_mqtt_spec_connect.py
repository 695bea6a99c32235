"""Goal: chapters 1, 2 and sections 3.1, 3.2 of the specifications, statement by statement."""

from __future__ import annotations

from typing import Any

import pytest

from lakemq.broker_core.api.errors import Unavailable
from lakemq.broker_core.api.types import ANONYMOUS
from lakemq.plugins.mqtt.limits import Limits
from lakemq.plugins.mqtt.wire.encoding import encode
from lakemq.plugins.mqtt.wire.packets import (
    V5,
    V311,
    Acknowledgement,
    Connack,
    Connect,
    Disconnect,
    Filter,
    PacketType,
    Ping,
    Properties,
    Publish,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
)
from lakemq.plugins.mqtt.wire.reasons import Reason
from tests.support.mqtt.bench import Bench, Device, disconnected_with

versions = pytest.mark.parametrize("version", [V311, V5])
BAD_UTF8 = {"truncated": b"\xc3", "overlong": b"\xc0\x80", "surrogate": b"\xed\xa0\x80",
            "beyond": b"\xf4\x90\x80\x80"}  # fmt: skip
KEPT = Properties(session_expiry_s=100)


def refused(device: Device, version: int) -> int | None:
    """The connection is closed; the reason code that version 5 was told."""
    assert device.closed
    return disconnected_with(device) if version == V5 else None


def raw_connect(
    version: int, flags: int, *fields: bytes, client_id: bytes = b"d", level: int | None = None
) -> bytes:
    """CONNECT with arbitrary flags and payload fields, each with its length in front."""
    body = b"\0\4MQTT" + bytes((level or version, flags, 0, 0)) + (b"\0" if version == V5 else b"")
    for each in (client_id, *fields):
        body += len(each).to_bytes(2, "big") + each
    return b"\x10" + bytes((len(body),)) + body


def try_connect(version: int, data: bytes) -> tuple[Device, int | None]:
    """Send a raw CONNECT; its CONNACK code, or None if there is none."""
    device = Bench().dial(version)
    device.send_bytes(data)
    if device.connection.credentials is not None:
        device.connection.authenticated(ANONYMOUS, device.bench.now_ms)
    packets: list[Any] = device.received()
    return device, packets[0].code if packets else None


def publish_bytes(version: int, name: bytes) -> bytes:
    body = len(name).to_bytes(2, "big") + name + (b"\0" if version == V5 else b"")
    return bytes((0x30, len(body))) + body


# -- strings


@versions
@pytest.mark.parametrize("bad", BAD_UTF8.values(), ids=BAD_UTF8)
def test_strings_that_are_not_utf_8_close_the_connection(version: int, bad: bytes) -> None:
    """5.0 [MQTT-1.5.4-1] [MQTT-3.3.2-1] [MQTT-3.8.3-1] [MQTT-3.10.3-1] [MQTT-3.1.3-4],
    3.1.1 [MQTT-1.5.3-1] [MQTT-3.3.2-1] [MQTT-3.8.3-1] [MQTT-3.10.3-1] [MQTT-3.1.3-4]"""
    field = len(bad).to_bytes(2, "big") + bad
    head = b"\0\1" + (b"\0" if version == V5 else b"")
    for data in (
        publish_bytes(version, bad),
        bytes((0x82, len(head + field) + 1)) + head + field + b"\0",
        bytes((0xA2, len(head + field))) + head + field,
    ):
        device = Bench().connect("d", version=version)
        device.send_bytes(data)
        assert refused(device, version) in (None, Reason.MALFORMED_PACKET)
    device, code = try_connect(version, raw_connect(version, 0x02, client_id=bad))
    assert device.closed
    assert code == (Reason.MALFORMED_PACKET if version == V5 else None)


@versions
def test_strings_with_a_null_character_close_the_connection(version: int) -> None:
    """5.0 [MQTT-1.5.4-2] [MQTT-4.7.3-2], 3.1.1 [MQTT-1.5.3-2] [MQTT-4.7.3-2]"""
    device = Bench().connect("d", version=version)
    device.send_bytes(publish_bytes(version, b"a\0b"))
    assert refused(device, version) in (None, Reason.MALFORMED_PACKET)
    device = Bench().connect("d", version=version)
    device.send(Subscribe(1, (Filter("a\0b"),)))
    assert refused(device, version) in (None, Reason.MALFORMED_PACKET)


@versions
def test_a_byte_order_mark_is_a_character(version: int) -> None:
    """5.0 [MQTT-1.5.4-3], 3.1.1 [MQTT-1.5.3-3]"""
    device = Bench().connect("d", version=version)
    device.subscribe("\ufeffa", "a")
    device.send(Publish("\ufeffa", b"x"))
    assert device.publishes() == [("\ufeffa", b"x")]


def test_variable_byte_integers_must_be_shortest() -> None:
    """5.0 [MQTT-1.5.5-1]"""
    for data in (b"\xc0\x80\x00", b"\x30\x07\x00\x01a\x82\x00\x01\x01"):
        device = Bench().connect("d", version=V5)
        device.send_bytes(data)
        assert refused(device, V5) == Reason.MALFORMED_PACKET


@pytest.mark.parametrize("pair", [(b"\xff", b"v"), (b"k", b"\xff"), (b"k", b"\0"), (b"\0", b"v")])
def test_both_strings_of_a_user_property_are_checked(pair: tuple[bytes, bytes]) -> None:
    """5.0 [MQTT-1.5.7-1]"""
    fields = b"".join(len(each).to_bytes(2, "big") + each for each in pair)
    body = b"\0\1a" + bytes((1 + len(fields),)) + b"\x26" + fields
    device = Bench().connect("d", version=V5)
    device.send_bytes(bytes((0x30, len(body))) + body)
    assert refused(device, V5) == Reason.MALFORMED_PACKET


@pytest.mark.parametrize(
    ("identifier", "label"), [(0x08, "response topic"), (0x03, "content type")]
)
def test_strings_among_the_properties_are_checked(identifier: int, label: str) -> None:
    """5.0 [MQTT-3.3.2-13] [MQTT-3.3.2-19]"""
    device = Bench().connect("d", version=V5)
    device.send_bytes(b"\x30\x08\0\1a\4" + bytes((identifier,)) + b"\0\1\xff")
    assert refused(device, V5) == Reason.MALFORMED_PACKET


# -- flags and packet identifiers


@versions
@pytest.mark.parametrize(
    "first", [0x00, 0x0F, 0x11, 0x41, 0x51, 0x60, 0x63, 0x72, 0x80, 0x83, 0xA0, 0xC1, 0xE1, 0xF1]
)
def test_reserved_flags_must_be_as_listed(version: int, first: int) -> None:
    """5.0 [MQTT-2.1.3-1] [MQTT-3.6.1-1] [MQTT-3.8.1-1] [MQTT-3.10.1-1] [MQTT-3.14.1-1]
    [MQTT-3.15.1-1], 3.1.1 [MQTT-2.2.2-1] [MQTT-2.2.2-2] [MQTT-3.6.1-1] [MQTT-3.8.1-1]
    [MQTT-3.10.1-1] [MQTT-3.14.1-1]"""
    device = Bench().connect("d", version=version)
    device.send_bytes(bytes((first, 2, 0, 1)))
    assert refused(device, version) in (None, Reason.MALFORMED_PACKET)


@versions
@pytest.mark.parametrize("packet", [
    Publish("a", b"x", 1, packet_id=0), Publish("a", b"x", 2, packet_id=0),
    Subscribe(0, (Filter("a"),)), Unsubscribe(0, ("a",)),
], ids=lambda packet: type(packet).__name__)  # fmt: skip
def test_packet_identifiers_are_not_zero(version: int, packet: Any) -> None:
    """5.0 [MQTT-2.2.1-3], 3.1.1 [MQTT-2.3.1-1]"""
    device = Bench().connect("d", version=version)
    device.send(packet)
    assert refused(device, version) in (None, Reason.MALFORMED_PACKET)


@versions
def test_qos_0_has_no_packet_identifier(version: int) -> None:
    """5.0 [MQTT-2.2.1-2] [MQTT-2.2.2-1], 3.1.1 [MQTT-2.3.1-5]: the bytes behind the topic name
    (and the property length, which is there even without properties) are payload."""
    device = Bench().connect("d", version=version)
    device.subscribe("a")
    device.send(Publish("a", b"\0\1x"))
    tail = b"\0\0\1x" if version == V5 else b"\0\1x"
    assert device.raw() == bytes((0x30, 3 + len(tail))) + b"\0\1a" + tail


@versions
def test_answers_carry_the_identifier_of_their_request(version: int) -> None:
    """5.0 [MQTT-2.2.1-5] [MQTT-2.2.1-6] [MQTT-3.8.4-2] [MQTT-3.10.4-5],
    3.1.1 [MQTT-2.3.1-6] [MQTT-2.3.1-7] [MQTT-3.8.4-2] [MQTT-3.10.4-4]"""
    bench = Bench()
    device = bench.connect("d", version=version)
    device.send(
        Subscribe(11, (Filter("a"),)), Unsubscribe(12, ("a",)), Publish("a", b"", 1, packet_id=13),
        Publish("a", b"", 2, packet_id=14),
    )  # fmt: skip
    bench.store()
    device.send(Acknowledgement(PacketType.PUBREL, 14))
    got = [(type(each), each.packet_id) for each in device.received()]  # type: ignore[union-attr]
    assert got == [(Suback, 11), (Unsuback, 12), *[(Acknowledgement, n) for n in (13, 14, 14)]]


# -- CONNECT


@versions
def test_the_first_packet_is_connect_and_the_only_one(version: int) -> None:
    """5.0 [MQTT-3.1.0-1] [MQTT-3.1.0-2] [MQTT-3.2.0-2], 3.1.1 [MQTT-3.1.0-1] [MQTT-3.1.0-2]"""
    early = Bench().dial(version)
    early.send(Ping(PacketType.PINGREQ))
    assert (early.closed, early.raw()) == (True, b"")
    twice = Bench().connect("d", version=version)
    twice.send(Connect("d", version))
    assert twice.closed
    assert not any(isinstance(each, Connack) for each in twice.received())


@pytest.mark.parametrize(("name", "level"), [(b"MQTX", 5), (b"mqtt", 4), (b"MQTT", 2)])
def test_other_protocols_and_versions_are_turned_away(name: bytes, level: int) -> None:
    """5.0 [MQTT-3.1.2-1] [MQTT-3.1.2-2], 3.1.1 [MQTT-3.1.2-1] [MQTT-3.1.2-2]"""
    device = Bench().dial()
    device.send_bytes(b"\x10\x0d\0\4" + name + bytes((level,)) + b"\2\0\0\0\1d")
    assert (device.raw(), device.closed) == (b"\x20\2\0\1", True)


def test_a_version_that_is_not_there_yet_is_told_in_the_form_of_version_5() -> None:
    """5.0 [MQTT-3.1.2-2]"""
    device, code = try_connect(V5, raw_connect(V5, 0x02, level=6))
    assert (code, device.closed) == (Reason.UNSUPPORTED_PROTOCOL_VERSION, True)


@versions
@pytest.mark.parametrize(("flags", "fields"), [
    (0x03, ()),  # reserved flag
    (0x0A, ()), (0x12, ()), (0x22, ()),  # will QoS or retain without the will flag
    (0x1E, (b"t", b"m")),  # will QoS 3
    (0x06, (b"t",)), (0x06, ()),  # no will payload, no will topic
    (0x02, (b"user",)),  # a user name without its flag
    (0x82, ()),  # the flag without a user name
    (0x82, (b"user", b"password")),  # a password without its flag
    (0xC2, (b"user",)),  # the flag without a password
    (0x06, (b"\xff", b"m")),  # will topic not UTF-8
    (0x82, (b"\xff",)),  # user name not UTF-8
])  # fmt: skip
def test_a_connect_that_does_not_conform(
    version: int, flags: int, fields: tuple[bytes, ...]
) -> None:
    """5.0 [MQTT-3.1.2-3] [MQTT-3.1.2-9] [MQTT-3.1.2-11] [MQTT-3.1.2-12] [MQTT-3.1.2-13]
    [MQTT-3.1.2-16] [MQTT-3.1.2-17] [MQTT-3.1.2-18] [MQTT-3.1.2-19] [MQTT-3.1.3-11]
    [MQTT-3.1.3-12] [MQTT-3.1.4-1] [MQTT-4.13.1-1] [MQTT-4.13.2-1] [MQTT-3.2.2-7],
    3.1.1 [MQTT-3.1.2-3] [MQTT-3.1.2-9] [MQTT-3.1.2-11] [MQTT-3.1.2-13] [MQTT-3.1.2-14]
    [MQTT-3.1.2-15] [MQTT-3.1.2-18] [MQTT-3.1.2-19] [MQTT-3.1.2-20] [MQTT-3.1.2-21]
    [MQTT-3.1.3-10] [MQTT-3.1.3-11] [MQTT-3.1.4-1] [MQTT-3.2.2-6] [MQTT-4.8.0-1]"""
    will = b"\0" if version == V5 and flags & 4 else b""  # the will's properties
    data = raw_connect(version, flags)
    data += will + b"".join(len(each).to_bytes(2, "big") + each for each in fields)
    device, code = try_connect(version, data[:1] + bytes((len(data) - 2,)) + data[2:])
    assert device.closed
    assert code == (Reason.MALFORMED_PACKET if version == V5 else None)


def test_a_password_without_a_user_name() -> None:
    """3.1.1 [MQTT-3.1.2-22]; version 5 allows it."""
    device, code = try_connect(V311, raw_connect(V311, 0x42, b"password"))
    assert (device.closed, code) == (True, None)
    device, code = try_connect(V5, raw_connect(V5, 0x42, b"password"))
    assert (device.closed, code) == (False, 0)


@versions
def test_fields_of_connect_come_in_their_order(version: int) -> None:
    """5.0 [MQTT-3.1.3-1] [MQTT-3.1.3-3], 3.1.1 [MQTT-3.1.3-1] [MQTT-3.1.3-3]"""
    device = Bench().dial(version)
    device.send(Connect("id", version, True, 0, "user", b"pw", Will("topic", b"payload", 2, True)))
    credentials, connect = device.connection.credentials, device.connection.connect
    assert credentials is not None
    assert connect is not None
    assert (credentials.client_id, credentials.username, credentials.password) == (
        "id", "user", b"pw",
    )  # fmt: skip
    assert connect.will == Will("topic", b"payload", 2, True)


@versions
def test_the_client_identifier_is_what_a_session_is_known_by(version: int) -> None:
    """5.0 [MQTT-3.1.3-2] [MQTT-3.1.3-5], 3.1.1 [MQTT-3.1.3-2] [MQTT-3.1.3-5]"""
    bench = Bench()
    letters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    names = [letters[:23], letters[23:46], letters[-16:], "a", "A"]
    for name in names:
        kept = KEPT if version == V5 else Properties()
        bench.connect(name, version=version, clean=False, properties=kept)
    assert sorted(bench.hub.sessions) == sorted(names)


@versions
def test_an_empty_client_identifier_gets_one_that_nobody_has(version: int) -> None:
    """5.0 [MQTT-3.1.3-6] [MQTT-3.1.3-7] [MQTT-3.2.2-16], 3.1.1 [MQTT-3.1.3-6]"""
    bench = Bench()
    found = {bench.connect("", version=version).connection.client_id for _ in range(3)}
    assert len(found) == 3
    assert "" not in found
    assert set(bench.hub.sessions) == found
    if version == V5:
        device = bench.connect("", version=V5)
        told = device.connack.properties.assigned_client_id  # type: ignore[attr-defined]
        assert told == device.connection.client_id


def test_an_empty_client_identifier_needs_a_clean_session() -> None:
    """3.1.1 [MQTT-3.1.3-7] [MQTT-3.1.3-8] [MQTT-3.2.2-4] [MQTT-3.2.2-5]"""
    device = Bench().dial()
    device.send(Connect("", V311, False))
    assert (device.raw(), device.closed) == (b"\x20\2\0\2", True)


@versions
def test_a_client_identifier_that_is_refused(version: int) -> None:
    """5.0 [MQTT-3.1.3-8] [MQTT-3.2.2-6] [MQTT-3.2.2-8], 3.1.1 [MQTT-3.1.3-9]"""
    device = Bench(limits=Limits(client_id_max_bytes=30)).dial(version)
    device.send(Connect("x" * 31, version))
    expected = Reason.CLIENT_IDENTIFIER_NOT_VALID if version == V5 else 2
    connack = device.one()
    assert (connack.code, connack.session_present, device.closed) == (expected, False, True)


@versions
def test_a_refused_client_gets_nothing_done(version: int) -> None:
    """5.0 [MQTT-3.1.4-2] [MQTT-3.1.4-6] [MQTT-3.14.0-1] [MQTT-4.12.0-4],
    3.1.1 [MQTT-3.1.4-5] [MQTT-3.2.2-5]"""
    bench = Bench()
    device = bench.dial(version)
    device.send(Connect("d", version), Subscribe(1, (Filter("a"),)), Publish("a", b"x"))
    device.connection.refused(Reason.NOT_AUTHORIZED, "no", bench.now_ms)
    device.send(Publish("a", b"y", 1, packet_id=1))
    (connack,) = device.received()
    assert isinstance(connack, Connack)
    assert connack.code == (Reason.NOT_AUTHORIZED if version == V5 else 5)
    assert (bench.store(), bench.hub.index.count, device.closed) == (0, 0, True)


@versions
def test_connack_comes_first_and_says_success(version: int) -> None:
    """5.0 [MQTT-3.1.4-5] [MQTT-3.2.0-1] [MQTT-3.2.2-1] [MQTT-4.12.0-6],
    3.1.1 [MQTT-3.1.4-4] [MQTT-3.2.0-1]"""
    bench = Bench()
    device = bench.dial(version)
    device.send(Connect("d", version), Ping(PacketType.PINGREQ))
    assert device.raw() == b""
    device.connection.authenticated(ANONYMOUS, bench.now_ms)
    first, second = device.received()
    assert isinstance(first, Connack)
    assert (first.code, first.properties.authentication_method) == (0, None)
    assert second == Ping(PacketType.PINGRESP)
    again = bench.connect("e", version=version)
    raw = encode(again.connack, version)  # type: ignore[attr-defined]
    assert raw[2] == 0  # flags: session present 0, the rest reserved


# -- sessions


@versions
def test_clean_start_discards_and_the_session_present_flag_tells(version: int) -> None:
    """5.0 [MQTT-3.1.2-4] [MQTT-3.1.2-5] [MQTT-3.1.2-6] [MQTT-3.1.4-4] [MQTT-3.2.2-2]
    [MQTT-3.2.2-3] [MQTT-3.1.2-23] [MQTT-4.1.0-1],
    3.1.1 [MQTT-3.1.2-4] [MQTT-3.1.2-6] [MQTT-3.1.4-3] [MQTT-3.2.2-1] [MQTT-3.2.2-2]
    [MQTT-3.2.2-3] [MQTT-4.1.0-1] [MQTT-4.1.0-2]"""
    bench = Bench()
    kept = KEPT if version == V5 else Properties()

    def present(clean: bool) -> bool:
        device = bench.connect("d", version=version, clean=clean, properties=kept)
        found = bool(device.connack.session_present)  # type: ignore[attr-defined]
        bench.pass_time(50)
        assert bench.hub.sessions["d"].connection is device.connection
        device.send(Disconnect())
        return found

    assert [present(clean) for clean in (False, False, True)] == [False, True, False]
    assert present(False) is (version == V5)  # 3.1.1: a clean session keeps nothing
    if version == V5:
        bench.connect("d", version=V5, clean=False).send(Disconnect())  # expiry interval 0
        assert bench.hub.sessions == {}


def test_the_session_ends_when_its_expiry_has_passed() -> None:
    """5.0 [MQTT-4.1.0-2] [MQTT-3.1.2-23]"""
    bench = Bench()
    device = bench.connect("d", version=V5, properties=KEPT)
    device.subscribe("a")
    bench.pass_time(1000)  # connected: does not count
    device.lose()
    bench.pass_time(99)
    assert "d" in bench.hub.sessions
    bench.pass_time(1)
    assert (bench.hub.sessions, bench.hub.index.count) == ({}, 0)


@versions
def test_messages_wait_for_a_session_that_is_away(version: int) -> None:
    """5.0 [MQTT-4.5.0-1], 3.1.1 [MQTT-3.1.2-5] [MQTT-4.5.0-1]"""
    bench = Bench()
    kept = KEPT if version == V5 else Properties()
    device = bench.connect("d", version=version, clean=False, properties=kept)
    device.subscribe("a", qos=2)
    device.lose()
    sender = bench.connect("s")
    for qos in (1, 2):
        sender.send(Publish("a", b"%d" % qos, qos, packet_id=qos))
    bench.store()
    back = bench.connect("d", version=version, clean=False, properties=kept)
    assert back.publishes() == [("a", b"1"), ("a", b"2")]


@versions
def test_a_second_connection_takes_over(version: int) -> None:
    """5.0 [MQTT-3.1.4-3] [MQTT-3.14.4-1] [MQTT-3.14.4-2], 3.1.1 [MQTT-3.1.4-2]"""
    bench = Bench()
    old = bench.connect("d", version=version)
    old.subscribe("a")
    bench.connect("d", version=version)
    assert old.closed
    if version == V5:
        assert disconnected_with(old) == Reason.SESSION_TAKEN_OVER
    bench.connect("s").send(Publish("a", b"x"))
    old.send(Ping(PacketType.PINGREQ))
    assert old.raw() == b""


# -- wills


@versions
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_will_is_published_as_it_was_asked_for(version: int, qos: int, retain: bool) -> None:
    """5.0 [MQTT-3.1.2-7] [MQTT-3.1.2-8] [MQTT-3.1.2-10] [MQTT-3.1.2-14] [MQTT-3.1.2-15],
    3.1.1 [MQTT-3.1.2-8] [MQTT-3.1.2-10] [MQTT-3.1.2-16] [MQTT-3.1.2-17]"""
    bench = Bench()
    watcher = bench.connect("w")
    watcher.subscribe("gone", qos=2)
    kept = KEPT if version == V5 else Properties()
    will = Will("gone", b"bye", qos, retain)
    bench.connect("d", version=version, clean=False, will=will, properties=kept).lose()
    bench.store()
    got = watcher.one()
    assert (got.payload, got.qos, got.retain) == (b"bye", qos, False)
    assert bench.hub.retained.count == int(retain)
    bench.connect("d", version=version, clean=False, properties=kept).lose()
    bench.pass_time(1000)
    bench.store()
    assert watcher.publishes() == []


@versions
def test_a_protocol_error_publishes_the_will_and_disconnect_does_not(version: int) -> None:
    """5.0 [MQTT-3.1.2-8] [MQTT-3.14.4-3], 3.1.1 [MQTT-3.1.2-8] [MQTT-3.14.4-3]"""
    bench = Bench()
    watcher = bench.connect("w")
    watcher.subscribe("gone")
    bench.connect("d", version=version, will=Will("gone", b"bye")).send(Disconnect())
    assert watcher.publishes() == []
    bench.connect("d", version=version, will=Will("gone", b"bye")).send_bytes(b"\0\0")
    assert watcher.publishes() == [("gone", b"bye")]


def test_without_a_will_none_is_published() -> None:
    """3.1.1 [MQTT-3.1.2-12]"""
    bench = Bench()
    watcher = bench.connect("w")
    watcher.subscribe("#")
    bench.connect("d").lose()
    assert (watcher.publishes(), bench.store()) == ([], 0)


def test_the_delayed_will_is_kept_back_by_coming_back() -> None:
    """5.0 [MQTT-3.1.3-9] [MQTT-3.1.2-8]"""
    bench = Bench()
    watcher = bench.connect("w")
    watcher.subscribe("gone")
    will = Will("gone", b"bye", properties=Properties(will_delay_s=10))
    for away_s, expected in ((9, []), (10, [("gone", b"bye")])):
        bench.connect("d", version=V5, clean=False, will=will, properties=KEPT).lose()
        bench.pass_time(away_s)
        bench.connect("d", version=V5, clean=False, properties=KEPT).send(Disconnect())
        assert watcher.publishes() == expected


def test_the_will_has_its_properties_in_their_order() -> None:
    """5.0 [MQTT-3.1.3-10]"""
    bench = Bench()
    watcher = bench.connect("w", version=V5)
    watcher.subscribe("gone", qos=1)
    users = (("b", "1"), ("a", "2"), ("b", "3"))
    for qos in (0, 1):
        will = Will("gone", b"", qos, properties=Properties(user_properties=users))
        bench.connect("d", version=V5, will=will).lose()
        bench.store()
        assert watcher.one().properties.user_properties == users


# -- keep alive


@versions
def test_silence_ends_the_connection(version: int) -> None:
    """5.0 [MQTT-3.1.2-22] [MQTT-3.2.2-22], 3.1.1 [MQTT-3.1.2-24]"""
    bench = Bench()
    watcher = bench.connect("w")
    watcher.subscribe("gone")
    device = bench.connect("d", version=version, keep_alive_s=10, will=Will("gone", b"bye"))
    for _ in range(4):
        bench.pass_time(14.9)
        device.send(Publish("a", b"any packet will do"))
    assert not device.closed
    bench.pass_time(15)
    assert device.closed
    assert watcher.publishes() == [("gone", b"bye")]


# -- what the client asked for


@pytest.mark.parametrize("limit", [20, 60])
def test_nothing_larger_than_the_client_takes(limit: int) -> None:
    """5.0 [MQTT-3.1.2-24] [MQTT-3.1.2-25] [MQTT-3.2.2-19] [MQTT-3.14.2-3] [MQTT-3.4.2-2]
    [MQTT-3.5.2-2]: reason strings are left out, then whole packets."""
    bench = Bench()
    small = Properties(packet_max_bytes=limit)
    device = bench.connect("d", version=V5, properties=small)
    for qos in (1, 2):
        device.send(Publish("a", b"x", qos, packet_id=qos))
        bench.store(Unavailable("a reason of more than sixty characters, all of them in vain ..."))
        answer = device.raw()
        assert len(answer) <= limit
        assert answer[:2] == bytes((0x40 if qos == 1 else 0x50, 3))
    device.subscribe("big")
    device.send(Publish("big", b"x" * 100), Publish("big", b"fits"))
    assert device.publishes() == [("big", b"fits")]
    device.send_bytes(b"\0\0")
    goodbye = device.raw()
    assert len(goodbye) <= limit
    assert goodbye[2] == Reason.MALFORMED_PACKET
    refused_one = bench.dial(V5)
    refused_one.send(Connect("d", V5, properties=small))
    refused_one.connection.refused(Reason.NOT_AUTHORIZED, "x" * 100, bench.now_ms)
    assert len(refused_one.raw()) <= limit


def test_reason_strings_only_for_those_who_want_them() -> None:
    """5.0 [MQTT-3.1.2-29]"""
    for wants, expected in ((0, None), (1, "busy"), (None, "busy")):
        bench = Bench()
        asked = Properties(request_problem_information=wants)
        device = bench.connect("d", version=V5, properties=asked)
        device.send(Publish("a", b"x", 1, packet_id=1))
        bench.store(Unavailable("busy"))
        assert device.one().properties.reason_string == expected


def test_response_information_only_for_those_who_ask() -> None:
    """5.0 [MQTT-3.1.2-28]"""
    for asked, expected in ((None, None), (0, None), (1, "answers/")):
        bench = Bench(limits=Limits(response_information="answers/"))
        properties = Properties(request_response_information=asked)
        device = bench.connect("d", version=V5, properties=properties)
        told = device.connack.properties.response_information  # type: ignore[attr-defined]
        assert told == expected


def test_the_client_must_keep_to_the_packet_size() -> None:
    """5.0 [MQTT-3.2.2-15]"""
    bench = Bench(limits=Limits(packet_max_bytes=200))
    device = bench.connect("d", version=V5)
    assert device.connack.properties.packet_max_bytes == 200  # type: ignore[attr-defined]
    device.send(Publish("a", b"x" * 195))
    assert refused(device, V5) == Reason.PACKET_TOO_LARGE


def test_topic_alias_maximum() -> None:
    """5.0 [MQTT-3.2.2-17] [MQTT-3.2.2-18] [MQTT-3.3.2-8] [MQTT-3.3.2-9] [MQTT-3.3.2-12]"""
    for most in (0, 3):
        for alias in range(5):
            bench = Bench(limits=Limits(topic_alias_max=most))
            device = bench.connect("d", version=V5)
            told = device.connack.properties.topic_alias_maximum  # type: ignore[attr-defined]
            assert told == most
            device.send(Publish("a", b"", properties=Properties(topic_alias=alias)))
            assert device.closed is not (0 < alias <= most)


def test_enhanced_authentication_is_not_offered() -> None:
    """5.0 [MQTT-4.12.0-1] [MQTT-4.12.0-7] [MQTT-3.15.2-1]"""
    device = Bench().dial(V5)
    device.send(Connect("d", V5, properties=Properties(authentication_method="SCRAM-SHA-256")))
    assert (device.one().code, device.closed) == (Reason.BAD_AUTHENTICATION_METHOD, True)
    for data, reason in (
        (b"\xf0\x00", Reason.PROTOCOL_ERROR),
        (b"\xf0\x01\x18", Reason.PROTOCOL_ERROR),
        (b"\xf0\x01\x17", Reason.MALFORMED_PACKET),
    ):
        device = Bench().connect("d", version=V5)
        device.send_bytes(data)
        assert refused(device, V5) == reason
