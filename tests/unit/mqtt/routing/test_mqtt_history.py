"""Goal: what `$replay/<start>/<filter>` means, case by case. The races are in
`simulation/test_mqtt_replay.py`.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.broker_core.api.topic_filters import filters_overlap, matches
from lakemq.broker_core.api.types import Operation
from lakemq.plugins.mqtt.limits import Limits
from lakemq.plugins.mqtt.routing.bindings import Binding
from lakemq.plugins.mqtt.routing.history import Start, parse_start
from lakemq.plugins.mqtt.wire.packets import (
    NO_LOCAL,
    RETAIN_AS_PUBLISHED,
    V5,
    Acknowledgement,
    Filter,
    PacketType,
    Properties,
    Publish,
    Subscribe,
    Unsubscribe,
)
from lakemq.plugins.mqtt.wire.reasons import ProtocolError, Reason
from tests.support.mqtt.bench import START_MS, Bench, Device
from tests.support.mqtt.crash import CrashBench


def stored(bench: Bench, *names: str, client_id: str = "sender", **options: bool) -> Device:
    """A client that has published a numbered message to each name."""
    sender = bench.connect(client_id, version=V5)
    for number, name in enumerate(names):
        sender.send(Publish(name, b"%d" % number, 1, packet_id=number + 1, **options))
    bench.store()
    sender.received()
    return sender


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", Start(0)),
        ("0", Start(0)),
        ("123456789012", Start(123_456_789_012)),
        ("1700000000000", Start(since_ms=1_700_000_000_000)),
        ("90s", Start(since_ms=START_MS - 90_000)),
        ("15m", Start(since_ms=START_MS - 900_000)),
        ("6h", Start(since_ms=START_MS - 21_600_000)),
        ("7d", Start(since_ms=START_MS - 604_800_000)),
        ("999999999d", Start(since_ms=0)),
        ("1970-01-02", Start(since_ms=86_400_000)),
        ("1970-01-01T00:01", Start(since_ms=60_000)),
        ("1970-01-01T00:00:01.5Z", Start(since_ms=1500)),
    ],
)
def test_starts(text: str, start: Start) -> None:
    assert parse_start(text, START_MS) == start


@pytest.mark.parametrize(
    "text",
    ["", "latest", "-1", "1.5", "5w", "s", "2026-13-01", "2026-01-01T25:00Z", "9" * 19, "٣",
     "2026-01-01T00:00:00+02:00", "+", "#"],
)  # fmt: skip
def test_what_is_no_start(text: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_start(text, START_MS)
    assert caught.value.reason == Reason.TOPIC_FILTER_INVALID


@pytest.mark.parametrize(
    "text",
    ["$replay/earliest", "$replay/", "$replay/never/t", "$replay/earliest/", "$replay/earliest/a#",
     "$replay/earliest/$share/g/t", "$replay/0/$exclusive/t", "$replay/0/$replay/0/t",
     "$share/g/$replay/0/t#", "$exclusive/$replay/0/t#"],
)  # fmt: skip
def test_wrong_replays_are_refused(text: str) -> None:
    bench = Bench()
    assert bench.connect("d", version=V5).subscribe(text) == (Reason.TOPIC_FILTER_INVALID,)
    assert bench.hub.histories == {}


def test_history_comes_and_then_what_is_published() -> None:
    bench = Bench()
    sender = stored(bench, "a/1", "b/1", "a/2")
    device = bench.connect("d", version=V5)
    assert device.subscribe("$replay/earliest/a/+", qos=1, identifier=9) == (1,)
    packets = device.received()
    assert [(each.topic, each.qos, each.retain) for each in packets] == [
        ("a/1", 1, False),
        ("a/2", 1, False),
    ]
    assert all(each.properties.subscription_identifiers == (9,) for each in packets)
    assert not bench.hub.histories
    sender.send(Publish("a/3", b"live", 1, packet_id=7), Publish("a/4", b"memory"))
    bench.store()
    assert {name for name, _ in device.publishes()} == {"a/3", "a/4"}


def test_history_begins_at_an_offset() -> None:
    bench = Bench()
    stored(bench, *[f"t/{n}" for n in range(10)])
    for start, expected in (("7", 3), ("0", 10), ("10", 0), ("999", 0)):
        device = bench.connect(f"d{start}", version=V5)
        device.subscribe(f"$replay/{start}/#")
        assert len(device.publishes()) == expected


def test_retained_messages_are_not_sent_besides() -> None:
    bench = Bench()
    stored(bench, "t", "t", retain=True)
    device = bench.connect("d", version=V5)
    device.subscribe("$replay/earliest/t", options=RETAIN_AS_PUBLISHED)
    assert [(each.payload, each.retain) for each in device.received()] == [
        (b"0", True),
        (b"1", True),
    ]
    plain = bench.connect("p", version=V5)
    plain.subscribe("$replay/earliest/t")
    assert [each.retain for each in plain.received()] == [False, False]


def test_own_publishes_are_left_out_if_asked_for() -> None:
    bench = Bench()
    stored(bench, "t", "t", client_id="other")
    device = stored(bench, "t", client_id="d")
    device.subscribe("$replay/earliest/t", options=NO_LOCAL)
    assert len(device.publishes()) == 2


def test_expired_records_are_left_out() -> None:
    bench = Bench()
    sender = bench.connect("s", version=V5)
    for number, expiry_s in enumerate((5, 500)):
        properties = Properties(message_expiry_s=expiry_s)
        sender.send(Publish("t", b"%d" % number, 1, packet_id=9 + number, properties=properties))
    bench.store()
    bench.pass_time(10)
    device = bench.connect("d", version=V5)
    device.subscribe("$replay/earliest/t")
    assert [payload for _, payload in device.publishes()] == [b"1"]
    assert bench.hub.delivery.dropped_expired == 1


def test_reading_needs_permission() -> None:
    bench = Bench()
    bench.forbidden = {(Operation.READ, "secret/#")}
    device = bench.connect("d", version=V5)
    assert device.subscribe("$replay/earliest/secret/#") == (Reason.NOT_AUTHORIZED,)
    assert not bench.hub.histories


def test_names_that_belong_to_no_topic_are_live_at_once() -> None:
    bench = Bench(bindings=(Binding("kept/#", "kept"),))
    stored(bench, "kept/1")
    device = bench.connect("d", version=V5)
    device.subscribe("$replay/earliest/fleeting/#")
    assert device.publishes() == []
    bench.connect("s").send(Publish("fleeting/1", b"x"))
    assert device.publishes() == [("fleeting/1", b"x")]


def test_asking_again_goes_on_and_does_not_begin_anew() -> None:
    bench = CrashBench()
    sender = stored(bench, *["t"] * 5)
    kept = Properties(session_expiry_s=100)
    device = bench.connect("d", version=V5, clean=False, properties=kept)
    wanted = Subscribe(1, (Filter("$replay/earliest/t", 0),))
    device.send(wanted)
    bench.settle()
    assert len(device.publishes()) == 5
    device.lose()
    sender.send(Publish("t", b"QoS 0 for an absent client", 1, packet_id=50))
    bench.settle()
    device = bench.connect("d", version=V5, clean=False, properties=kept)
    device.send(wanted, Subscribe(2, (Filter("$replay/earliest/t", 1),)))
    bench.settle()
    assert device.publishes() == []
    sender.send(Publish("t", b"once", 1, packet_id=51))
    bench.settle()
    (packet,) = device.received()
    assert (packet.payload, packet.qos) == (b"once", 1)


def test_unsubscribing_ends_it_and_asking_then_begins_anew() -> None:
    bench = Bench()
    stored(bench, *["t"] * 900)
    device = bench.connect("d", version=V5, properties=Properties(receive_maximum=10))
    device.subscribe("$replay/earliest/t", qos=1)
    assert len(device.publishes()) == 10  # and no more before they are acknowledged
    assert not device.connection.session.outbound.queue  # type: ignore[union-attr]
    device.send(Unsubscribe(2, ("$replay/earliest/t",)))
    device.received()
    assert not bench.hub.histories
    assert device.connection.session.histories is None  # type: ignore[union-attr]
    device.subscribe("$replay/895/t", qos=0)
    assert len(device.publishes()) == 5


def test_a_plain_subscription_beside_it_stays() -> None:
    bench = Bench()
    sender = stored(bench, "t")
    device = bench.connect("d", version=V5)
    device.subscribe("t", qos=1)
    device.subscribe("$replay/earliest/t", qos=0)
    assert len(device.publishes()) == 1
    device.send(Unsubscribe(2, ("$replay/earliest/t",)))
    device.received()
    sender.send(Publish("t", b"x", 1, packet_id=60))
    bench.store()
    assert device.publishes() == [("t", b"x")]
    device.send(Unsubscribe(3, ("t",)))
    assert bench.hub.index.count == 0


def test_an_exclusive_subscription_is_beside_a_plain_one_too() -> None:
    bench = Bench()
    device = bench.connect("d", version=V5)
    device.subscribe("t")
    device.subscribe("$exclusive/t")
    device.subscribe("$exclusive/t")
    device.send(Unsubscribe(2, ("$exclusive/t",)))
    device.received()
    device.send(Publish("t", b"x"))
    assert device.publishes() == [("t", b"x")]
    assert bench.hub.index.count == 1


def test_what_comes_while_the_client_is_away_is_no_gap() -> None:
    """One partition was live already, another was not, when the connection ended."""
    bench = CrashBench(bindings=(Binding("a/#", "a"), Binding("b/#", "b")))
    sender = stored(bench, "a/1", *["b/1"] * 20)
    few = Properties(session_expiry_s=100, receive_maximum=2)
    device = bench.connect("d", version=V5, clean=False, properties=few)
    device.send(Subscribe(1, (Filter("$replay/earliest/#", 1),)))
    bench.settle()
    taken: list[bytes] = []
    while not any(one.live for one in next(iter(bench.hub.histories)).cursors.values()):
        taken += answered(device)
    device.lose()
    sender.send(Publish("a/1", b"meanwhile", 1, packet_id=100))
    bench.settle()
    device = bench.connect("d", version=V5, clean=False, properties=few)
    while new := answered(device):
        taken += new
    assert taken.count(b"meanwhile") == 1
    assert len(set(taken)) == 22


def answered(device: Device) -> list[bytes]:
    """Payloads that came; all are acknowledged."""
    packets = [each for each in device.received() if isinstance(each, Publish)]
    device.send(*(Acknowledgement(PacketType.PUBACK, each.packet_id) for each in packets))
    return [each.payload for each in packets]


def test_replays_at_once_are_bounded() -> None:
    bench = Bench(limits=Limits(replays_max=1))
    stored(bench, *["t"] * 100)
    slow = bench.connect("slow", version=V5, properties=Properties(receive_maximum=1))
    assert slow.subscribe("$replay/earliest/t", qos=1) == (1,)
    slow.received()
    other = bench.connect("other", version=V5)
    assert other.subscribe("$replay/earliest/t") == (Reason.QUOTA_EXCEEDED,)
    slow.lose()
    assert other.subscribe("$replay/earliest/t") == (0,)


words = st.lists(st.sampled_from(["a", "b", ""]), min_size=1, max_size=4).map("/".join)
patterns = st.lists(st.sampled_from(["a", "b", "", "+"]), min_size=1, max_size=4).map("/".join)
filters = (patterns | patterns.map(lambda one: one + "/#") | st.just("#")).filter(bool)


@given(filters, filters, words.filter(bool))
def test_filters_that_share_a_name_overlap(one: str, other: str, name: str) -> None:
    if matches(one, name) and matches(other, name):
        assert filters_overlap(one, other)
        assert filters_overlap(other, one)


def test_filters_that_share_none() -> None:
    for one, other in (("a/b", "a/c"), ("a", "a/b"), ("a/+", "a/b/#c"), ("x/#", "y/#")):
        assert not filters_overlap(one, other)
