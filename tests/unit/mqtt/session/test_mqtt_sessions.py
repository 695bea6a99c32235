"""Goal: connecting, leaving and coming back go as the specifications say."""

from __future__ import annotations

from typing import Any

import pytest

from lakemq.broker_core.api.types import ANONYMOUS, Operation
from lakemq.plugins.mqtt.limits import Limits
from lakemq.plugins.mqtt.routing.rewrite import RewriteRule
from lakemq.plugins.mqtt.wire.packets import (
    V5,
    V31,
    V311,
    Auth,
    Connack,
    Connect,
    Disconnect,
    PacketType,
    Ping,
    Properties,
    Publish,
    Subscribe,
    Will,
)
from lakemq.plugins.mqtt.wire.reasons import Reason
from tests.support.mqtt.bench import Bench, Device, disconnected_with

versions = pytest.mark.parametrize("version", [V31, V311, V5])


def keeping(seconds: int) -> Properties:
    return Properties(session_expiry_s=seconds)


def away_and_back(bench: Bench, version: int, **more: Any) -> Device:
    properties = keeping(60) if version == V5 else Properties()
    return bench.connect("d", version=version, clean=False, properties=properties, **more)


# -- connecting


@pytest.mark.parametrize("version", [V31, V311])
def test_connack_of_old_versions(version: int) -> None:
    bench = Bench()
    device = bench.dial(version)
    device.send(Connect("d", version))
    assert device.received() == []
    assert device.connection.credentials is not None
    assert device.connection.credentials.client_id == "d"
    device.connection.authenticated(ANONYMOUS, bench.now_ms)
    assert device.raw() == b"\x20\x02\x00\x00"


def test_connack_of_version_5_tells_the_limits() -> None:
    bench = Bench(limits=Limits(packet_max_bytes=5000, receive_max=7, topic_alias_max=3))
    device = bench.connect("d", version=V5)
    assert device.connack == Connack(  # type: ignore[attr-defined]
        False, 0,
        Properties(receive_maximum=7, packet_max_bytes=5000, topic_alias_maximum=3),
    )  # fmt: skip


def test_packets_behind_connect_wait_for_its_answer() -> None:
    """A client need not wait for CONNACK (section 3.1.4)."""
    bench = Bench()
    device = bench.dial()
    device.send(Connect("d", V311), Publish("a", b"x", 1, packet_id=1), Ping(PacketType.PINGREQ))
    assert device.connection.overloaded
    assert bench.hub.outbox.appends.take() == []
    device.connection.authenticated(ANONYMOUS, bench.now_ms)
    bench.store()
    kinds = [type(each).__name__ for each in device.received()]
    assert kinds == ["Connack", "Ping", "Acknowledgement"]


def test_a_refused_client_is_told_and_nothing_behind_connect_is_done() -> None:
    bench = Bench()
    for version, code in ((V311, 4), (V5, Reason.BAD_USER_NAME_OR_PASSWORD)):
        device = bench.dial(version)
        device.send(Connect("d", version), Publish("a", b"x", 1, packet_id=1))
        device.connection.refused(Reason.BAD_USER_NAME_OR_PASSWORD, "wrong password", bench.now_ms)
        assert device.one().code == code
        assert device.closed
    assert bench.store() == 0
    assert not bench.hub.connections


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"\x10\x0c\x00\x04MQTT\x02\x02\x00\x00\x00\x00", b"\x20\x02\x00\x01"),
        (b"\x10\x0d\x00\x04MQTT\x06\x02\x00\x00\x00\x00\x00", b"\x20\x16\x00\x84\x13\x1f\x00\x10"
         b"protocol level 6"),
        (b"\x10\x0c\x00\x04HTTP\x04\x02\x00\x00\x00\x00", b"\x20\x02\x00\x01"),
        (b"\x10\x0c\x00\x04MQTT\x04\x03\x00\x00\x00\x00", b""),
        (b"GET / HTTP/1.1\r\n\r\n", b""),
        (b"\xc0\x00", b""),
    ],
)  # fmt: skip
def test_what_is_no_connect_is_turned_away(data: bytes, answer: bytes) -> None:
    """5.0 [MQTT-3.1.0-1] [MQTT-3.1.2-1] [MQTT-3.1.2-2] [MQTT-3.1.4-1]"""
    bench = Bench()
    device = bench.dial()
    device.send_bytes(data)
    assert device.raw() == answer
    assert device.closed
    assert device.connection not in bench.hub.connections


def test_malformed_connect_of_version_5_is_told_so() -> None:
    bench = Bench()
    device = bench.dial(V5)
    device.send_bytes(b"\x10\x0d\x00\x04MQTT\x05\x03\x00\x00\x00\x00\x00")
    assert device.one().code == Reason.MALFORMED_PACKET


@versions
def test_a_second_connect_ends_the_connection(version: int) -> None:
    """5.0 [MQTT-3.1.0-2]"""
    bench = Bench()
    device = bench.connect("d", version=version)
    device.send(Connect("d", version))
    assert device.closed
    if version == V5:
        assert disconnected_with(device) == Reason.PROTOCOL_ERROR


def test_client_identifiers() -> None:
    """5.0 [MQTT-3.1.3-6] [MQTT-3.1.3-7], 3.1.1 [MQTT-3.1.3-6] [MQTT-3.1.3-8] [MQTT-3.1.3-9]"""
    bench = Bench(limits=Limits(client_id_max_bytes=30))
    five = bench.connect("", version=V5)
    assert five.connack.properties.assigned_client_id == "auto-1"  # type: ignore[attr-defined]
    four = bench.connect("")
    assert four.connection.client_id == "auto-2"
    for client_id, clean in (("", False), ("x" * 31, True)):
        device = bench.dial()
        device.send(Connect(client_id, V311, clean))
        assert device.raw() == b"\x20\x02\x00\x02"
        assert device.closed


def test_enhanced_authentication_that_is_not_offered() -> None:
    """5.0 [MQTT-4.12.0-1]"""
    bench = Bench()
    device = bench.dial(V5)
    device.send(Connect("d", V5, properties=Properties(authentication_method="KERBEROS")))
    assert device.one().code == Reason.BAD_AUTHENTICATION_METHOD
    device = bench.connect("d", version=V5)
    device.send(Auth(0x18))
    assert disconnected_with(device) == Reason.PROTOCOL_ERROR


def test_reason_strings_are_kept_from_those_who_do_not_want_them() -> None:
    """5.0 [MQTT-3.1.2-29]"""
    bench = Bench()
    quiet = bench.connect("d", version=V5, properties=Properties(request_problem_information=0))
    quiet.send(Auth(0x18))
    assert quiet.one().properties.reason_string is None


def test_response_information_is_given_to_those_who_ask() -> None:
    """5.0 [MQTT-3.1.2-28]"""
    bench = Bench(limits=Limits(response_information="answers/"))
    for asked, expected in ((None, None), (0, None), (1, "answers/")):
        properties = Properties(request_response_information=asked)
        device = bench.connect("d", version=V5, properties=properties)
        assert device.connack.properties.response_information == expected  # type: ignore[attr-defined]


def test_bounds_on_connections_and_sessions() -> None:
    bench = Bench(limits=Limits(connections_max=1, sessions_max=1))
    first = bench.connect("one", clean=False)
    second = bench.dial(V5)
    second.send(Connect("two", V5))
    assert second.one().code == Reason.SERVER_BUSY
    first.lose()
    third = bench.dial(V5)
    third.send(Connect("three", V5))
    third.connection.authenticated(ANONYMOUS, bench.now_ms)
    assert third.one().code == Reason.QUOTA_EXCEEDED


# -- sessions


@versions
def test_a_kept_session_has_its_subscriptions(version: int) -> None:
    """5.0 [MQTT-3.1.2-5] [MQTT-3.2.2-3]"""
    bench = Bench()
    device = away_and_back(bench, version)
    device.subscribe("t", qos=1)
    device.send(Disconnect())
    device = away_and_back(bench, version)
    assert device.connack.session_present is (version > V31)  # type: ignore[attr-defined]
    bench.connect("s").send(Publish("t", b"x", 1, packet_id=1))
    bench.store()
    assert device.publishes() == [("t", b"x")]


@versions
def test_a_clean_session_starts_and_ends_empty(version: int) -> None:
    """5.0 [MQTT-3.1.2-4] [MQTT-3.1.2-6]"""
    bench = Bench()
    device = away_and_back(bench, version)
    device.subscribe("t", qos=1)
    device.lose()
    device = bench.connect("d", version=version)
    assert device.connack.session_present is False  # type: ignore[attr-defined]
    assert bench.hub.index.count == 0
    device.subscribe("t")
    device.lose()
    assert (bench.hub.index.count, bench.hub.sessions) == (0, {})


def test_session_expiry() -> None:
    """5.0 [MQTT-3.1.2-23]"""
    bench = Bench(limits=Limits(session_expiry_max_s=100))
    for name, expiry_s in (("short", 10), ("long", 5000)):
        bench.connect(name, version=V5, properties=keeping(expiry_s)).lose()
    bench.pass_time(10)
    assert list(bench.hub.sessions) == ["long"]
    bench.pass_time(90)
    assert bench.hub.sessions == {}
    assert bench.hub.counters.sessions_expired == 2


def test_a_shortened_session_expiry_is_told() -> None:
    bench = Bench(limits=Limits(session_expiry_max_s=100))
    device = bench.connect("d", version=V5, properties=keeping(5000))
    assert device.connack.properties.session_expiry_s == 100  # type: ignore[attr-defined]


def test_disconnect_changes_the_expiry_but_not_from_zero() -> None:
    """5.0, section 3.14.2.2.2"""
    bench = Bench()
    device = bench.connect("d", version=V5, properties=keeping(60))
    device.send(Disconnect(0, keeping(0)))
    assert bench.hub.sessions == {}
    device = bench.connect("d", version=V5)
    device.send(Disconnect(0, keeping(60)))
    assert disconnected_with(device) == Reason.PROTOCOL_ERROR


@versions
def test_takeover(version: int) -> None:
    """3.1.1 [MQTT-3.1.4-2], 5.0 [MQTT-3.1.4-3]"""
    bench = Bench()
    old = away_and_back(bench, version)
    old.subscribe("t", qos=1)
    new = away_and_back(bench, version)
    assert old.closed
    if version == V5:
        assert disconnected_with(old) == Reason.SESSION_TAKEN_OVER
    old.lose()
    bench.connect("s").send(Publish("t", b"x", 1, packet_id=1))
    bench.store()
    assert new.publishes() == [("t", b"x")]
    assert bench.hub.sessions["d"].connection is new.connection


# -- wills


@versions
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_lost_connection_publishes_the_will(version: int, qos: int) -> None:
    """5.0 [MQTT-3.1.2-8]"""
    bench = Bench()
    watcher = bench.connect("w")
    watcher.subscribe("gone/#", qos=2)
    device = bench.connect("d", version=version, will=Will("gone/d", b"bye", qos, True))
    device.lose()
    bench.store()
    assert watcher.publishes() == [("gone/d", b"bye")]
    assert bench.hub.retained.count == 1


@versions
def test_a_goodbye_discards_the_will(version: int) -> None:
    """5.0 [MQTT-3.1.2-10] [MQTT-3.14.4-3]"""
    bench = Bench()
    watcher = bench.connect("w")
    watcher.subscribe("#")
    device = bench.connect("d", version=version, will=Will("gone", b"bye"))
    device.send(Disconnect())
    device.lose()
    assert device.closed
    assert watcher.received() == []


def test_a_goodbye_may_ask_for_the_will() -> None:
    bench = Bench()
    watcher = bench.connect("w")
    watcher.subscribe("#")
    device = bench.connect("d", version=V5, will=Will("gone", b"bye"))
    device.send(Disconnect(Reason.DISCONNECT_WITH_WILL))
    assert watcher.publishes() == [("gone", b"bye")]


def with_delay(bench: Bench, delay_s: int, expiry_s: int) -> Device:
    will = Will("gone", b"bye", properties=Properties(will_delay_s=delay_s))
    return bench.connect("d", version=V5, will=will, clean=False, properties=keeping(expiry_s))


@pytest.mark.parametrize(("delay_s", "expiry_s", "due_s"), [(5, 60, 5), (60, 5, 5), (5, 0, 0)])
def test_will_delay_ends_with_the_session_at_the_latest(
    delay_s: int, expiry_s: int, due_s: int
) -> None:
    """Section 3.1.3.2.2"""
    bench = Bench()
    watcher = bench.connect("w")
    watcher.subscribe("#")
    with_delay(bench, delay_s, expiry_s).lose()
    if due_s:
        bench.pass_time(due_s - 1)
        assert watcher.received() == []
        bench.pass_time(1)
    assert watcher.publishes() == [("gone", b"bye")]
    bench.pass_time(100)
    assert watcher.received() == []


def test_coming_back_in_time_keeps_the_will_back() -> None:
    """5.0 [MQTT-3.1.3-9]"""
    bench = Bench()
    watcher = bench.connect("w")
    watcher.subscribe("#")
    with_delay(bench, 5, 60).lose()
    bench.pass_time(4)
    bench.connect("d", version=V5, clean=False, properties=keeping(60))
    bench.pass_time(10)
    assert watcher.received() == []


def test_coming_back_clean_ends_the_session_and_publishes_its_will() -> None:
    bench = Bench()
    watcher = bench.connect("w")
    watcher.subscribe("#")
    with_delay(bench, 5, 60).lose()
    bench.connect("d", version=V5)
    assert watcher.publishes() == [("gone", b"bye")]


def test_a_will_needs_permission() -> None:
    bench = Bench()
    bench.forbidden = {(Operation.WRITE, "gone")}
    watcher = bench.connect("w")
    watcher.subscribe("#")
    bench.connect("d", will=Will("gone", b"bye")).lose()
    assert watcher.received() == []


@pytest.mark.parametrize("topic", ["$SYS/broker/version", "$delayed/0/$SYS/broker/version"])
def test_a_will_goes_where_its_client_may_publish(topic: str) -> None:
    bench = Bench()
    bench.connect("d", version=V5, will=Will(topic, b"forged", 1, True)).lose()
    bench.store()
    bench.pass_time(2)
    assert bench.hub.retained.get("$SYS/broker/version") is None
    assert bench.hub.counters.publishes_refused + bench.hub.delays.refused == 1


@pytest.mark.parametrize("prefix", ["", "$delayed/1/"])
def test_a_will_is_rewritten_like_a_publish(prefix: str) -> None:
    bench = Bench()
    bench.hub._rewrites = (
        RewriteRule("gone/#", "clients/gone/$1"),
        RewriteRule("up", "$SYS/up"),
        RewriteRule("long/+", "$1/$1"),
    )
    bench.forbidden = {(Operation.WRITE, "gone/d")}
    watcher = bench.connect("w")
    watcher.subscribe("#", "$SYS/#")
    for topic in ("gone/d", "up", "long/" + 40_000 * "x"):
        bench.connect("d", will=Will(prefix + topic, b"bye", 1)).lose()
        bench.pass_time(3)
        bench.store()
    assert watcher.publishes() == [("clients/gone/d", b"bye")]


# -- keep-alive


@versions
def test_keep_alive_is_enforced_after_one_and_a_half_intervals(version: int) -> None:
    """5.0 [MQTT-3.1.2-22], 3.1.1 [MQTT-3.1.2-24]"""
    bench = Bench()
    device = bench.connect("d", version=version, keep_alive_s=10)
    bench.pass_time(14)
    device.send(Ping(PacketType.PINGREQ))
    assert device.received() == [Ping(PacketType.PINGRESP)]
    bench.pass_time(14)
    assert not device.closed
    bench.pass_time(1)
    assert device.closed
    if version == V5:
        assert disconnected_with(device) == Reason.KEEP_ALIVE_TIMEOUT


def test_without_keep_alive_silence_is_allowed() -> None:
    bench = Bench()
    device = bench.connect("d")
    bench.pass_time(10_000_000)
    assert not device.closed


@pytest.mark.parametrize(("asked", "granted"), [(0, 30), (60, 30), (20, None)])
def test_server_keep_alive(asked: int, granted: int | None) -> None:
    """5.0 [MQTT-3.2.2-22]"""
    bench = Bench(limits=Limits(keep_alive_max_s=30))
    device = bench.connect("d", version=V5, keep_alive_s=asked)
    assert device.connack.properties.server_keep_alive_s == granted  # type: ignore[attr-defined]
    bench.pass_time(46)
    assert device.closed


def test_who_says_nothing_is_dropped() -> None:
    bench = Bench(limits=Limits(connect_timeout_ms=2000))
    silent, slow = bench.dial(), bench.dial()
    slow.send_bytes(b"\x10\x0c\x00")
    bench.pass_time(1)
    assert not silent.closed
    bench.pass_time(1)
    assert silent.closed
    assert slow.closed
    assert silent.raw() == b""


# -- errors touch nobody else


@pytest.mark.parametrize("packet", [Connack(), Subscribe(1, ())])
def test_packets_that_clients_may_not_send(packet: Any) -> None:
    bench = Bench()
    device, other = bench.connect("d", version=V5), bench.connect("o")
    other.subscribe("t")
    device.send(Publish("t", b"before"), packet, Publish("t", b"after"))
    assert disconnected_with(device) == Reason.PROTOCOL_ERROR
    assert device.closed
    assert other.publishes() == [("t", b"before")]
    assert not other.closed


def test_after_the_end_nothing_is_taken() -> None:
    bench = Bench()
    device, other = bench.connect("d"), bench.connect("o")
    other.subscribe("t")
    device.send(Disconnect(), Publish("t", b"after"))
    device.send(Publish("t", b"later"))
    assert other.received() == []
