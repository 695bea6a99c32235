"""Goal: sections 3.8 to 3.11 and 4.7, 4.8 of the specifications, statement by statement."""

from __future__ import annotations

from typing import Any

import pytest

from lakemq.broker_core.api.topic_filters import matches
from lakemq.broker_core.api.types import Operation
from lakemq.plugins.mqtt.limits import Limits
from lakemq.plugins.mqtt.wire.decoding import _REASONS
from lakemq.plugins.mqtt.wire.packets import (
    NO_LOCAL,
    RETAIN_AS_PUBLISHED,
    V5,
    V311,
    Acknowledgement,
    Filter,
    PacketType,
    Properties,
    Publish,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from lakemq.plugins.mqtt.wire.reasons import Reason
from tests.support.mqtt.bench import Bench, Device, disconnected_with

versions = pytest.mark.parametrize("version", [V311, V5])
PUBACK, PUBREC = PacketType.PUBACK, PacketType.PUBREC


def say(bench: Bench, topic: str, payload: bytes = b"x", qos: int = 1, **more: Any) -> None:
    sender = bench.connect("sayer", version=V5)
    sender.send(Publish(topic, payload, qos, packet_id=qos, **more))
    bench.store()
    sender.send(Acknowledgement(PacketType.PUBREL, qos))


@versions
def test_requests_have_at_least_one_filter(version: int) -> None:
    """5.0 [MQTT-3.8.3-2] [MQTT-3.10.3-2], 3.1.1 [MQTT-3.8.3-3] [MQTT-3.10.3-2]"""
    for packet in (Subscribe(1, ()), Unsubscribe(1, ())):
        device = Bench().connect("d", version=version)
        device.send(packet)
        assert device.closed
        if version == V5:
            assert disconnected_with(device) == Reason.PROTOCOL_ERROR


@versions
@pytest.mark.parametrize("options", [0x03, 0x40, 0x80])
def test_reserved_bits_of_the_options(version: int, options: int) -> None:
    """5.0 [MQTT-3.8.3-5]"""
    device = Bench().connect("d", version=version)
    device.send(Subscribe(1, (Filter("a", options),)))
    assert device.closed


@versions
def test_suback_has_a_code_for_each_filter_in_order(version: int) -> None:
    """5.0 [MQTT-3.8.4-1] [MQTT-3.8.4-5] [MQTT-3.8.4-6] [MQTT-3.8.4-7] [MQTT-3.9.3-1]
    [MQTT-3.9.3-2], 3.1.1 [MQTT-3.8.4-1] [MQTT-3.8.4-4] [MQTT-3.8.4-5] [MQTT-3.9.3-1]
    [MQTT-3.9.3-2]"""
    bench = Bench(limits=Limits(subscriptions_max=4))
    bench.forbidden = {(Operation.READ, "locked")}
    device = bench.connect("d", version=version)
    wanted = (("a", 2), ("a#", 1), ("b", 0), ("locked", 1), ("c", 1), ("d", 0), ("e", 0), ("a", 1))
    device.send(Subscribe(9, tuple(Filter(*each) for each in wanted)))
    answer = device.one()
    assert isinstance(answer, Suback)
    failures = (Reason.TOPIC_FILTER_INVALID, Reason.NOT_AUTHORIZED, Reason.QUOTA_EXCEEDED)
    invalid, denied, full = failures if version == V5 else (0x80, 0x80, 0x80)
    assert answer.codes == (2, invalid, 0, denied, 1, 0, full, 1)
    assert set(answer.codes) <= _REASONS[PacketType.SUBACK]
    assert bench.hub.index.count == 4


@versions
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_delivery_is_at_the_lower_qos(version: int, published: int, granted: int) -> None:
    """5.0 [MQTT-3.8.4-8] [MQTT-3.3.2-3], 3.1.1 [MQTT-3.8.4-6] [MQTT-3.3.2-3]"""
    bench = Bench()
    device = bench.connect("d", version=version)
    assert device.subscribe("t/+", qos=granted) == (granted,)
    say(bench, "t/1", qos=published)
    say(bench, "other", qos=published)
    got = device.one()
    assert (got.topic, got.qos) == ("t/1", min(published, granted))


@versions
def test_subscribing_again_replaces_and_sends_retained_again(version: int) -> None:
    """5.0 [MQTT-3.8.4-3] [MQTT-3.8.4-4], 3.1.1 [MQTT-3.8.4-3]"""
    bench = Bench()
    say(bench, "t", b"kept", retain=True)
    device = bench.connect("d", version=version)
    for qos in (2, 0, 1):
        device.subscribe("t", qos=qos)
        kept = device.one()
        assert (kept.payload, kept.retain, kept.qos) == (b"kept", True, min(qos, 1))
        say(bench, "t", b"live", qos=2)
        assert device.one().qos == qos
    assert bench.hub.index.count == 1


@versions
def test_retain_tells_old_from_new(version: int) -> None:
    """5.0 [MQTT-3.3.1-12], 3.1.1 [MQTT-3.3.1-8] [MQTT-3.3.1-9]"""
    bench = Bench()
    early = bench.connect("early", version=version)
    early.subscribe("t")
    say(bench, "t", retain=True)
    late = bench.connect("late", version=version)
    late.subscribe("t")
    assert (early.one().retain, late.one().retain) == (False, True)


def test_retain_as_published() -> None:
    """5.0 [MQTT-3.3.1-12] [MQTT-3.3.1-13]"""
    bench = Bench()
    device = bench.connect("d", version=V5)
    for options, expected in ((0, [False, False]), (RETAIN_AS_PUBLISHED, [True, False])):
        device.subscribe("t", options=options | 0x20)
        say(bench, "t", retain=True)
        say(bench, "t", retain=False)
        assert [each.retain for each in device.received()] == expected  # type: ignore[union-attr]


@pytest.mark.parametrize(("handling", "counts"), [(0, [1, 1]), (1, [1, 0]), (2, [0, 0])])
def test_retain_handling(handling: int, counts: list[int]) -> None:
    """5.0 [MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11]"""
    bench = Bench()
    say(bench, "t", retain=True)
    device = bench.connect("d", version=V5)
    found = []
    for _ in counts:
        device.subscribe("t", options=handling << 4)
        found.append(len(device.publishes()))
    assert found == counts


@versions
def test_overlapping_subscriptions(version: int) -> None:
    """5.0 [MQTT-3.3.4-2], 3.1.1 [MQTT-3.3.5-1]"""
    bench = Bench()
    device = bench.connect("d", version=version)
    for topic_filter, qos in (("t/#", 0), ("t/x", 2), ("+/x", 1)):
        device.subscribe(topic_filter, qos=qos)
    say(bench, "t/x", qos=2)
    assert device.one().qos == 2


def test_subscription_identifiers() -> None:
    """5.0 [MQTT-3.3.4-3] [MQTT-3.3.4-4]"""
    bench = Bench()
    device = bench.connect("d", version=V5)
    for topic_filter, identifier in (("t/#", 268_435_455), ("t/x", 0), ("+/x", 1)):
        device.subscribe(topic_filter, identifier=identifier)
    say(bench, "t/x")
    assert set(device.one().properties.subscription_identifiers) == {1, 268_435_455}
    device.subscribe("+/x", identifier=3)
    say(bench, "t/x")
    assert set(device.one().properties.subscription_identifiers) == {3, 268_435_455}


def test_no_local() -> None:
    """5.0 [MQTT-3.8.3-3] [MQTT-3.8.3-4]"""
    bench = Bench()
    device = bench.connect("d", version=V5)
    device.subscribe("t", options=NO_LOCAL)
    for qos in range(3):
        device.send(Publish("t", b"own", qos, packet_id=qos))
    bench.store()
    say(bench, "t", b"theirs")
    assert device.publishes() == [("t", b"theirs")]
    device.send(Subscribe(1, (Filter("$share/g/t", NO_LOCAL),)))
    assert disconnected_with(device) == Reason.PROTOCOL_ERROR


# -- UNSUBSCRIBE


@versions
def test_unsubscribing_compares_filters_as_they_are(version: int) -> None:
    """5.0 [MQTT-3.10.4-1] [MQTT-3.10.4-2] [MQTT-3.10.4-4] [MQTT-3.10.4-5] [MQTT-3.10.4-6]
    [MQTT-3.11.3-1] [MQTT-3.11.3-2], 3.1.1 [MQTT-3.10.4-1] [MQTT-3.10.4-2] [MQTT-3.10.4-4]
    [MQTT-3.10.4-5] [MQTT-3.10.4-6]"""
    bench = Bench()
    device = bench.connect("d", version=version)
    device.subscribe("a/+", "a/1", "A/1", "b")
    device.send(Unsubscribe(3, ("a/+", "a/#", "b", "b", "a/1 ")))
    answer = device.one()
    assert isinstance(answer, Unsuback)
    none = Reason.NO_SUBSCRIPTION_EXISTED
    assert answer.codes == ((0, none, 0, none, none) if version == V5 else ())
    assert set(answer.codes) <= _REASONS[PacketType.UNSUBACK]
    for name in ("a/1", "a/2", "b"):
        say(bench, name)
    assert device.publishes() == [("a/1", b"x")]
    device.send(Unsubscribe(4, ("never",)))
    assert device.one().packet_id == 4


@versions
@pytest.mark.parametrize("qos", [1, 2])
def test_unsubscribing_finishes_what_was_begun(version: int, qos: int) -> None:
    """5.0 [MQTT-3.10.4-3], 3.1.1 [MQTT-3.10.4-3]"""
    bench = Bench()
    kept = Properties(session_expiry_s=100) if version == V5 else Properties()
    device = bench.connect("d", version=version, clean=False, properties=kept)
    device.subscribe("t", qos=qos)
    say(bench, "t", qos=qos)
    device.send(Unsubscribe(3, ("t",)))
    say(bench, "t", b"later", qos=qos)
    device.lose()
    again = bench.connect("d", version=version, clean=False, properties=kept).one()
    assert (again.payload, again.dup) == (b"x", True)


# -- names and filters


@versions
@pytest.mark.parametrize("topic_filter", ["a#", "#/a", "a/#/b", "##", "a+", "+a/b", "a/b+/c"])
def test_filters_that_are_not_well_formed(version: int, topic_filter: str) -> None:
    """5.0 [MQTT-4.7.1-1] [MQTT-4.7.1-2],
    3.1.1 [MQTT-4.7.1-2] [MQTT-4.7.1-3]"""
    bench = Bench()
    (code,) = bench.connect("d", version=version).subscribe(topic_filter)
    assert code == (Reason.TOPIC_FILTER_INVALID if version == V5 else 0x80)
    assert bench.hub.index.count == 0


@versions
@pytest.mark.parametrize(
    "packet",
    [
        Subscribe(1, (Filter("a"), Filter(""))),
        Unsubscribe(1, ("a", "")),
    ],
)
def test_an_empty_filter_ends_the_connection(version: int, packet: Subscribe | Unsubscribe) -> None:
    """5.0 [MQTT-4.7.3-1], 3.1.1 [MQTT-4.7.3-1]: nothing of the packet is done."""
    bench = Bench()
    device = bench.connect("d", version=version)
    device.send(packet)
    assert device.closed
    assert bench.hub.index.count == 0
    if version == V5:
        assert device.one().reason == Reason.MALFORMED_PACKET


@versions
def test_wildcards_do_not_reach_dollar_names(version: int) -> None:
    """5.0 [MQTT-4.7.2-1], 3.1.1 [MQTT-4.7.2-1], retained messages too"""
    bench = Bench()
    say(bench, "$internal/a", retain=True)
    device = bench.connect("d", version=version)
    device.subscribe("#", "+/a", "+/#")
    say(bench, "$internal/a")
    assert device.publishes() == []
    device.subscribe("$internal/#")
    say(bench, "$internal/a")
    assert device.publishes() == [("$internal/a", b"x")] * 2


@versions
@pytest.mark.parametrize("length", [1, 65_535])
def test_names_have_1_to_65535_bytes(version: int, length: int) -> None:
    """5.0 [MQTT-4.7.3-1] [MQTT-4.7.3-3], 3.1.1 [MQTT-4.7.3-1] [MQTT-4.7.3-3]"""
    bench = Bench()
    device = bench.connect("d", version=version)
    name = "n" * length
    assert device.subscribe(name) == (0,)
    device.send(Publish(name, b"x"))
    assert device.publishes() == [(name, b"x")]
    device.send(Publish("", b"x"))
    assert device.closed


@versions
def test_names_are_not_normalized(version: int) -> None:
    """5.0 [MQTT-4.7.3-4], 3.1.1 [MQTT-4.7.3-4]"""
    names = ["a/b", "a//b", "/a/b", "a/b/", "A/b", "a/b ", "a/\u00e9", "a/e\u0301", "a/./b"]
    for name in names:
        bench = Bench()
        device = bench.connect("d", version=version)
        device.subscribe(name)
        for other in names:
            say(bench, other, qos=0)
        assert device.publishes() == [(name, b"x")]
        assert [other for other in names if matches(name, other)] == [name]


# -- shared subscriptions


def member(bench: Bench, name: str, qos: int = 2) -> Device:
    kept = Properties(session_expiry_s=1000)
    device = bench.connect(name, version=V5, clean=False, properties=kept)
    if not device.connack.session_present:  # type: ignore[attr-defined]
        device.subscribe("$share/g/t", qos=qos)
    return device


@pytest.mark.parametrize("text", ["$share/", "$share/g", "$share//t", "$share/g/", "$share/+/t",
                                  "$share/g#/t"])  # fmt: skip
@pytest.mark.parametrize("unsubscribes", [False, True])
def test_shared_filters_that_are_malformed_end_the_connection(
    text: str, unsubscribes: bool
) -> None:
    """5.0 [MQTT-4.8.2-1] [MQTT-4.8.2-2]"""
    bench = Bench()
    device = bench.connect("d", version=V5)
    device.send(Unsubscribe(1, (text,)) if unsubscribes else Subscribe(1, (Filter(text),)))
    assert device.closed
    assert device.one().reason == Reason.MALFORMED_PACKET


@pytest.mark.parametrize(
    ("version", "text", "code"),
    [
        (V5, "$share", Reason.TOPIC_FILTER_INVALID),
        (V5, "$share/g/t#", Reason.TOPIC_FILTER_INVALID),
        (V311, "$share/g", 0x80),
        (V311, "$share//t", 0x80),
    ],
)
def test_shared_filters_that_are_refused(version: int, text: str, code: int) -> None:
    """Before 5.0 `$share` is no word of the standard."""
    bench = Bench()
    assert bench.connect("d", version=version).subscribe(text) == (code,)


def test_shared_subscriptions_respect_the_granted_qos() -> None:
    """5.0 [MQTT-4.8.2-3]"""
    bench = Bench()
    members = [member(bench, f"m{qos}", qos) for qos in range(3)]
    for _ in members:
        say(bench, "t", qos=2)
    assert [device.one().qos for device in members] == [0, 1, 2]


def test_a_member_that_comes_back_gets_the_rest_of_its_delivery() -> None:
    """5.0 [MQTT-4.8.2-4]"""
    bench = Bench()
    one, other = member(bench, "one"), member(bench, "other")
    say(bench, "t", qos=2)
    sent = one.one()
    one.lose()
    again = member(bench, "one").one()
    assert (again.payload, again.packet_id, again.dup) == (b"x", sent.packet_id, True)
    assert other.received() == []


def test_qos_2_of_a_member_whose_session_ends_goes_to_nobody_else() -> None:
    """5.0 [MQTT-4.8.2-5]"""
    bench = Bench()
    one, other = member(bench, "one"), member(bench, "other")
    say(bench, "t", qos=2)
    one.one()
    one.lose()
    bench.pass_time(1000)
    assert other.received() == []


@pytest.mark.parametrize("qos", [1, 2])
def test_what_a_member_refuses_goes_to_nobody_else(qos: int) -> None:
    """5.0 [MQTT-4.8.2-6]"""
    bench = Bench()
    one, other = member(bench, "one"), member(bench, "other")
    say(bench, "t", qos=qos)
    answer = PUBACK if qos == 1 else PUBREC
    one.send(Acknowledgement(answer, one.one().packet_id, Reason.UNSPECIFIED_ERROR))
    one.lose()
    bench.pass_time(1000)
    assert other.received() == []
