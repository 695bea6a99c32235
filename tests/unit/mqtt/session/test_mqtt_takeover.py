"""Goal: a client that comes back is told so before it gets anything, and what it asked for in
CONNECT is safe by then."""

from __future__ import annotations

from typing import Any

import pytest

from lakemq.broker_core.api.types import ANONYMOUS
from lakemq.plugins.mqtt.wire.packets import (
    V5,
    V311,
    Acknowledgement,
    Connack,
    Connect,
    Filter,
    PacketType,
    Properties,
    Publish,
    Subscribe,
    Will,
)
from tests.support.mqtt.bench import Device
from tests.support.mqtt.crash import CrashBench

HOUR = Properties(session_expiry_s=3600)
versions = pytest.mark.parametrize("version", [V311, V5])


def connecting(bench: CrashBench, version: int, will: Will | None = None) -> Device:
    """A client that is known, and whose session is not kept yet."""
    device = bench.dial(version)
    properties = HOUR if version == V5 else Properties()
    device.send(Connect("d", version, False, will=will, properties=properties))
    device.connection.authenticated(ANONYMOUS, bench.now_ms)
    return device


def with_inflight(bench: CrashBench, version: int, qos: int, count: int = 3) -> None:
    """A kept session whose client is away and has not acknowledged `count` publishes."""
    device = connecting(bench, version)
    bench.settle()
    device.send(Subscribe(1, (Filter("t", qos),)))
    bench.settle()
    sender = bench.connect("sender")
    for number in range(count):
        sender.send(Publish("t", b"%d" % number, qos, packet_id=number + 1))
        bench.settle()
        if qos == 2:
            sender.send(Acknowledgement(PacketType.PUBREL, number + 1))
            bench.settle()
    device.received()
    device.lose()
    bench.settle()


@versions
@pytest.mark.parametrize("qos", [1, 2])
def test_nothing_is_sent_before_connack_when_a_session_is_taken_over(
    version: int, qos: int
) -> None:
    """3.1.1 and 5.0 [MQTT-3.2.0-1]: what the client before waited for comes from storage while the
    next one's CONNACK is not said yet."""
    bench = CrashBench()
    with_inflight(bench, version, qos)
    first = connecting(bench, version)
    bench.settle_sessions()
    assert [type(each) for each in first.decoded()] == [Connack]
    assert bench.hub.outbox.loads  # what is in flight is being fetched
    second = connecting(bench, version)
    bench.load_messages()
    assert second.decoded() == []
    bench.settle()
    connack, *publishes = second.received()
    assert isinstance(connack, Connack)
    assert [each.payload for each in publishes if isinstance(each, Publish)] == [b"0", b"1", b"2"]


def test_a_socket_that_takes_bytes_again_does_not_open_a_connection_before_connack() -> None:
    bench = CrashBench()
    with_inflight(bench, V5, 1, count=0)
    sender = bench.connect("other")
    device = connecting(bench, V5)
    device.connection.unblocked(bench.now_ms)
    sender.send(Publish("t", b"x", 1, packet_id=9))
    bench.write_records()
    assert device.decoded() == []
    bench.settle()
    assert [type(each) for each in device.received()] == [Connack, Publish]


@versions
def test_a_will_is_kept_before_connack(version: int) -> None:
    bench = CrashBench()
    watcher = bench.connect("w", clean=False)
    watcher.send(Subscribe(1, (Filter("gone", 1),)))
    bench.settle()
    device = connecting(bench, version, Will("gone", b"bye", 1))
    while not device.connection.out:  # as far as CONNACK needs it, and no checkpoint
        bench.write_sessions()
        bench.confirm()
    bench.crash()
    bench.settle()
    watcher = bench.connect("w", clean=False)
    assert watcher.publishes() == [("gone", b"bye")]


@versions
def test_the_will_of_a_connection_that_never_was_is_not_published(version: int) -> None:
    """5.0 3.1.2.5: a will belongs to a connection that was accepted."""
    bench = CrashBench()
    watcher = bench.connect("w")
    watcher.send(Subscribe(1, (Filter("gone", 1),)))
    bench.settle()
    watcher.received()
    device = connecting(bench, version, Will("gone", b"bye", 1))
    device.lose()
    bench.settle()
    assert watcher.received() == []
    bench.crash()
    bench.settle()
    assert _wills(bench) == []


def _wills(bench: CrashBench) -> list[Any]:
    return [one.will for one in bench.hub.sessions.values() if one.will is not None]
