"""Goal: subscribers get what their filters match, with the options they asked for."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemq.broker_core.api.topic_filters import matches
from lakemq.broker_core.api.types import ANONYMOUS, Operation
from lakemq.plugins.mqtt.limits import Limits
from lakemq.plugins.mqtt.routing import subscriptions
from lakemq.plugins.mqtt.routing.subscriptions import SubscriptionIndex
from lakemq.plugins.mqtt.state.delivery import DeliveryLimits
from lakemq.plugins.mqtt.state.sessions import Session, Subscription
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
    Subscribe,
    Unsubscribe,
)
from lakemq.plugins.mqtt.wire.reasons import MqttError, Reason
from lakemq.plugins.mqtt.wire.topics import Address, check_topic_filter, parse_filter
from tests.support.mqtt.bench import Bench, disconnected_with
from tests.support.seeds import examples

# -- filters and the index


@pytest.mark.parametrize(
    ("topic_filter", "name", "expected"),
    [
        ("sport/tennis/player1/#", "sport/tennis/player1", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
        ("sport/#", "sport", True),
        ("#", "a/b/c", True),
        ("#", "$SYS/a", False),
        ("+/a", "$SYS/a", False),
        ("$SYS/#", "$SYS/a", True),
        ("$SYS/+", "$SYS/a", True),
        ("sport/tennis/+", "sport/tennis/player1", True),
        ("sport/tennis/+", "sport/tennis/player1/ranking", False),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("a/b", "a/b", True),
        ("a/b", "a/B", False),
        ("a/+/c", "a//c", True),
    ],
)
def test_examples_of_the_specification(topic_filter: str, name: str, expected: bool) -> None:
    """Sections 4.7.1 and 4.7.2."""
    assert matches(topic_filter, name) is expected
    assert bool(index_of(topic_filter).match(name).targets) is expected


@pytest.mark.parametrize(
    "text", ["", "sport/tennis#", "sport/tennis/#/ranking", "sport+", "a/+b", "#/a"]
)
def test_filters_that_are_not_well_formed(text: str) -> None:
    """5.0 [MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-4.7.3-1]"""
    with pytest.raises(MqttError) as caught:
        check_topic_filter(text)
    assert caught.value.reason is Reason.TOPIC_FILTER_INVALID


def test_shared_filters() -> None:
    """5.0 [MQTT-4.8.2-1] [MQTT-4.8.2-2]"""
    assert parse_filter("$share/g/a/+") == Address("a/+", "g")
    assert parse_filter("$sharex/g/a") == Address("$sharex/g/a")
    for text in ("$share", "$share/", "$share/g", "$share//a", "$share/g/", "$share/g+/a",
                 "$share/#/a", "$share/g/a#"):  # fmt: skip
        with pytest.raises(MqttError):
            parse_filter(text)


def session(name: str = "s") -> Session:
    return Session(name, ANONYMOUS, DeliveryLimits())


def index_of(*filters: str) -> SubscriptionIndex:
    index = SubscriptionIndex()
    for text in filters:
        index.add(Subscription(session(), Address(text), 0, 0))
    return index


levels = st.sampled_from(["", "a", "b", "$x"])
topic_names = st.lists(levels, min_size=1, max_size=4).map("/".join).filter(bool)
plain_filters = st.lists(levels | st.just("+"), min_size=1, max_size=4).map("/".join).filter(bool)
deep_filters = plain_filters.map(lambda text: text + "/#") | st.just("#")
filters = plain_filters | deep_filters


@given(st.lists(st.tuples(filters, st.booleans()), max_size=20), st.lists(topic_names, max_size=8))
@settings(max_examples=examples(150), deadline=None)
def test_index_agrees_with_plain_comparison(
    wanted: list[tuple[str, bool]], asked: list[str]
) -> None:
    """Adding and removing in any order, with the cache warm in between."""
    index = SubscriptionIndex(matches_max=3)
    kept: list[Subscription] = []
    for text, stays in wanted:
        subscription = Subscription(session(text), Address(text), 0, 0)
        index.add(subscription)
        for name in asked:
            index.match(name)
        if stays:
            kept.append(subscription)
        else:
            index.remove(subscription)
    for name in asked:
        found = Counter(id(target.session) for target in index.match(name).targets)
        expected = Counter(
            id(one.session) for one in kept if matches(one.address.topic_filter, name)
        )
        assert found == expected
    assert index.count == len(kept)


def test_an_emptied_index_keeps_nothing() -> None:
    index = SubscriptionIndex()
    many = [Subscription(session(str(n)), Address(f"a/{n % 3}/+"), 0, 0) for n in range(9)]
    many.append(Subscription(session("m"), Address("a/+/#", "group"), 0, 0))
    for one in many:
        index.add(one)
    for one in many:
        index.remove(one)
    assert (index.count, len(index), index._shapes) == (0, 0, {})


def test_shapes_are_bounded() -> None:
    bench = Bench()
    bench.hub.index = SubscriptionIndex(shapes_max=2)
    device = bench.connect("d", version=V5)
    assert device.subscribe("+/a", "a/+", "+/+", "+/b", "plain", qos=1) == (
        1,
        1,
        Reason.QUOTA_EXCEEDED,
        1,
        1,
    )


# -- subscribing


def test_subscribing_again_replaces() -> None:
    """5.0 [MQTT-3.8.4-3]"""
    bench = Bench()
    device = bench.connect("d")
    device.subscribe("t", qos=0)
    device.subscribe("t", qos=1)
    device.send(Publish("t", b"x", 1, packet_id=1))
    bench.store()
    got = [each for each in device.received() if isinstance(each, Publish)]
    assert [each.qos for each in got] == [1]
    assert bench.hub.index.count == 1


def test_overlapping_subscriptions_deliver_once_at_the_highest_qos() -> None:
    """5.0 [MQTT-3.3.4-2] [MQTT-3.3.4-4]"""
    bench = Bench()
    device, sender = bench.connect("d", version=V5), bench.connect("s")
    device.subscribe("t/#", qos=0, identifier=7)
    device.subscribe("t/+", qos=2, identifier=9)
    sender.send(Publish("t/x", b"x", 2, packet_id=1))
    bench.store()
    got = device.one()
    assert (got.qos, sorted(got.properties.subscription_identifiers)) == (2, [7, 9])


def test_unsubscribing() -> None:
    bench = Bench()
    device, sender = bench.connect("d", version=V5), bench.connect("s")
    device.subscribe("a", "b")
    device.send(Unsubscribe(5, ("a", "never", "b#")))
    answer = device.one()
    assert (answer.packet_id, answer.codes) == (
        5,
        (0, Reason.NO_SUBSCRIPTION_EXISTED, Reason.TOPIC_FILTER_INVALID),
    )
    sender.send(Publish("a", b"1"), Publish("b", b"2"))
    assert device.publishes() == [("b", b"2")]


def test_unsuback_of_old_versions_has_no_codes() -> None:
    bench = Bench()
    device = bench.connect("d")
    device.send(Unsubscribe(5, ("a",)))
    assert device.raw() == b"\xb0\x02\x00\x05"


def test_codes_of_suback() -> None:
    bench = Bench(limits=Limits(subscriptions_max=3))
    bench.forbidden = {(Operation.READ, "secret/#")}
    new, old = bench.connect("n", version=V5), bench.connect("o")
    asked = ("a", "secret/#", "b#", "$share/g/secret/#", "c", "d", "e", "a")
    assert new.subscribe(*asked, qos=1) == (
        1,
        Reason.NOT_AUTHORIZED,
        Reason.TOPIC_FILTER_INVALID,
        Reason.NOT_AUTHORIZED,
        1,
        1,
        Reason.QUOTA_EXCEEDED,
        1,
    )
    assert old.subscribe("a", "secret/#", "b#", qos=2) == (2, 0x80, 0x80)


def test_what_a_refused_subscription_is_told_can_be_chosen() -> None:
    bench = Bench(limits=Limits(refused_subscribe_reason="unspecified_error"))
    bench.forbidden = {(Operation.READ, "#")}
    for version in (V311, V5):
        device = bench.connect(f"d{version}", version=version)
        assert device.subscribe("#", "a/#") == (0x80, 0)


@pytest.mark.parametrize("qos", [0, 1])
def test_no_local(qos: int) -> None:
    """5.0 [MQTT-3.8.3-3], for what passes through memory and what comes back from storage."""
    bench = Bench()
    one, other = bench.connect("one", version=V5), bench.connect("other", version=V5)
    one.subscribe("t", qos=1, options=NO_LOCAL)
    one.send(Publish("t", b"own", qos, packet_id=qos))
    bench.store()
    other.send(Publish("t", b"theirs", qos, packet_id=qos))
    bench.store()
    assert one.publishes() == [("t", b"theirs")]


def test_no_local_beside_an_ordinary_subscription() -> None:
    bench = Bench()
    one = bench.connect("one", version=V5)
    one.subscribe("t", qos=2, options=NO_LOCAL, identifier=1)
    one.subscribe("+", qos=1, identifier=2)
    one.send(Publish("t", b"own", 2, packet_id=1))
    bench.store()
    (got,) = [each for each in one.received() if isinstance(each, Publish)]
    assert (got.qos, got.properties.subscription_identifiers) == (1, (2,))


def test_no_local_on_a_shared_subscription_is_an_error() -> None:
    """5.0 [MQTT-3.8.3-4]"""
    bench = Bench()
    device = bench.connect("d", version=V5)
    device.send(Subscribe(1, (Filter("$share/g/t", NO_LOCAL),)))
    assert disconnected_with(device) == Reason.PROTOCOL_ERROR


# -- retained


def retain(bench: Bench, topic: str, payload: bytes, qos: int = 1, **more: Any) -> None:
    sender = bench.connect("retainer", version=V5)
    sender.send(Publish(topic, payload, qos, True, packet_id=qos, **more))
    bench.store()


@pytest.mark.parametrize("qos", [0, 1])
def test_retained_messages_reach_later_subscribers(qos: int) -> None:
    """5.0 [MQTT-3.3.1-5]"""
    bench = Bench()
    early = bench.connect("e")
    early.subscribe("a/#")
    retain(bench, "a/b", b"1", qos)
    assert [each.retain for each in early.received()] == [False]  # type: ignore[union-attr]
    late = bench.connect("l")
    late.subscribe("a/#", qos=1)
    got = late.one()
    assert (got.topic, got.payload, got.retain, got.qos) == ("a/b", b"1", True, qos)


def test_retained_messages_are_replaced_and_removed() -> None:
    """5.0 [MQTT-3.3.1-6] [MQTT-3.3.1-7]"""
    bench = Bench()
    watcher = bench.connect("w")
    watcher.subscribe("a/b")
    retain(bench, "a/b", b"1")
    retain(bench, "a/b", b"2")
    assert bench.hub.retained.count == 1
    retain(bench, "a/b", b"")
    assert watcher.publishes() == [("a/b", b"1"), ("a/b", b"2"), ("a/b", b"")]
    assert (bench.hub.retained.count, bench.hub.retained.size_bytes) == (0, 0)
    assert bench.hub.retained._root.children == {}
    assert bench.stored[-1].values == [None]


@pytest.mark.parametrize(("handling", "counts"), [(0, [1, 1]), (1, [1, 0]), (2, [0, 0])])
def test_retain_handling(handling: int, counts: list[int]) -> None:
    """5.0 [MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11]"""
    bench = Bench()
    retain(bench, "t", b"x")
    device = bench.connect("d", version=V5)
    found = []
    for _ in range(2):
        device.subscribe("t", options=handling << 4)
        found.append(len(device.publishes()))
    assert found == counts


def test_retain_as_published() -> None:
    """5.0 [MQTT-3.3.1-12] [MQTT-3.3.1-13]"""
    bench = Bench()
    plain, keeping = bench.connect("p", version=V5), bench.connect("k", version=V5)
    plain.subscribe("t")
    keeping.subscribe("t", options=RETAIN_AS_PUBLISHED)
    retain(bench, "t", b"x")
    assert (plain.one().retain, keeping.one().retain) == (False, True)


def test_retained_messages_expire() -> None:
    bench = Bench()
    retain(bench, "t", b"x", properties=Properties(message_expiry_s=5))
    bench.pass_time(3)
    device = bench.connect("d", version=V5)
    device.subscribe("t")
    assert device.one().properties.message_expiry_s == 2
    bench.pass_time(2)
    device.subscribe("t")
    assert device.received() == []


def test_retained_messages_are_bounded() -> None:
    from lakemq.plugins.mqtt.routing.retained import Retained

    bench = Bench(retained=Retained(count_max=2, bytes_max=1000))
    for name in ("a", "b", "c"):
        retain(bench, name, b"x")
    retain(bench, "a", b"y" * 2000)
    device = bench.connect("d")
    device.subscribe("#")
    assert sorted(device.publishes()) == [("a", b"x"), ("b", b"x")]
    assert bench.hub.retained.refused == 2


# -- shared subscriptions


def shared(bench: Bench, *members: str, version: int = V5) -> list[Any]:
    devices = [bench.connect(name, version=version) for name in members]
    for device in devices:
        device.subscribe("$share/g/t/#", qos=1)
    return devices


def send(bench: Bench, count: int, topic: str = "t/x") -> None:
    sender = bench.connect("sender")
    for number in range(count):
        sender.send(Publish(topic, b"%d" % number, 1, packet_id=1))
        bench.store()


def test_round_robin_among_a_group_beside_plain_subscribers() -> None:
    bench = Bench()
    one, two = shared(bench, "one", "two")
    plain = bench.connect("plain")
    plain.subscribe("t/#")
    send(bench, 4)
    assert [payload for _, payload in one.publishes()] == [b"0", b"2"]
    assert [payload for _, payload in two.publishes()] == [b"1", b"3"]
    assert len(plain.publishes()) == 4


@pytest.mark.parametrize(
    "strategy", ["round_robin", "random", "sticky", "hash_client", "hash_topic", "least_inflight"]
)
def test_every_strategy_delivers_each_message_once(strategy: str) -> None:
    bench = Bench(strategy=strategy)
    devices = shared(bench, "one", "two", "three", version=V311)
    send(bench, 30)
    got = [payload for device in devices for _, payload in device.publishes()]
    assert Counter(got) == Counter(b"%d" % number for number in range(30))


@pytest.mark.parametrize("strategy", ["sticky", "hash_client", "hash_topic"])
def test_strategies_that_stay_with_one_member(strategy: str) -> None:
    bench = Bench(strategy=strategy)
    devices = shared(bench, "one", "two", "three")
    send(bench, 9)
    assert sorted(len(device.publishes()) for device in devices) == [0, 0, 9]


def test_least_inflight_prefers_the_idle_member() -> None:
    bench = Bench(strategy="least_inflight")
    busy, idle = shared(bench, "busy", "idle")
    count = 0
    for _ in range(6):
        send(bench, 1)
        for each in idle.received():
            idle.send(Acknowledgement(PacketType.PUBACK, each.packet_id))
            count += 1
    assert (len(busy.publishes()), count) == (1, 5)


def test_absent_members_are_passed_over() -> None:
    bench = Bench()
    one, two = shared(bench, "one", "two")
    two.lose()
    send(bench, 3)
    assert len(one.publishes()) == 3


def test_what_a_member_leaves_unfinished_goes_to_the_others() -> None:
    """Section 4.8.2: QoS 1 may go to another member when the session ends."""
    bench = Bench()
    one, two = shared(bench, "one", "two")
    send(bench, 4)
    one.lose()  # its session ends with the connection
    assert [payload for _, payload in two.publishes()] == [b"1", b"3", b"0", b"2"]


def test_shared_subscriptions_get_no_retained_messages() -> None:
    bench = Bench()
    retain(bench, "t/x", b"x")
    (one,) = shared(bench, "one")
    assert one.received() == []


def test_matches_that_names_share_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "SHARED_MATCHES_MAX", 3)
    index = SubscriptionIndex()
    for number in range(10):
        index.add(Subscription(session(f"s{number}"), Address(f"{number}/+"), 0, 0))
    for number in range(10):
        (target,) = index.match(f"{number}/a").targets
        assert target.session.client_id == f"s{number}"
        assert index.match(f"{number}/b") is index.match(f"{number}/a")
        assert len(index._shared_matches) <= 3
