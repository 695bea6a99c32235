"""Goal: rewrite, bans, rates, automatic and exclusive subscriptions and `$SYS` do what they say."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from lakemq.broker_core.api.topic_filters import matches
from lakemq.broker_core.api.types import Operation, Principal
from lakemq.plugins.mqtt.config import MqttSettings
from lakemq.plugins.mqtt.limits import Limits
from lakemq.plugins.mqtt.ops.system_topics import publish_system_topics
from lakemq.plugins.mqtt.routing.bans import BanRules, Bans
from lakemq.plugins.mqtt.routing.rewrite import RewriteRule, rewritten
from lakemq.plugins.mqtt.session.rates import throttle_of
from lakemq.plugins.mqtt.wire.packets import (
    NO_LOCAL,
    V5,
    V311,
    Connect,
    Disconnect,
    Filter,
    Publish,
    Subscribe,
    Unsubscribe,
)
from lakemq.plugins.mqtt.wire.reasons import Reason
from tests.support.mqtt.bench import START_MS, Bench
from tests.support.mqtt.crash import CrashBench

# -- rewrite


@pytest.mark.parametrize(
    ("source", "target", "text", "expected"),
    [
        ("old/+/x/#", "new/$1/$2", "old/7/x/a/b", "new/7/a/b"),
        ("old/+/x/#", "new/$1/$2", "old/7/y", None),
        ("#", "all/$1", "a/b", "all/a/b"),
        ("#", "all/$1", "$SYS/b", None),
        ("a/b", "c", "a/b", "c"),
        ("a/b", "c", "a/b/c", None),
        ("+/+", "$2/$1", "a/b", "b/a"),
        ("+", "$3", "a", "$3"),
        ("old/+", "new/$1", "old/+", "new/+"),  # a filter keeps its wildcards
        ("old/#", "new/$1", "old/#", "new/#"),
        ("old/+", "new/$1", "old/#", None),
    ],
)
def test_rules(source: str, target: str, text: str, expected: str | None) -> None:
    assert RewriteRule(source, target).apply(text) == expected


levels = st.sampled_from(["a", "b", "", "$x"])
names = st.lists(levels, min_size=1, max_size=4).map("/".join).filter(bool)
filters = st.lists(levels | st.just("+"), min_size=1, max_size=4).map("/".join).filter(bool)


@given(filters | filters.map(lambda one: one + "/#"), names)
def test_a_rule_takes_what_its_filter_matches(source: str, name: str) -> None:
    """But for the parent level of `#`, which leaves nothing to take."""
    taken = RewriteRule(source, "x").apply(name) is not None
    assert taken is matches(source, name)


def test_names_and_filters_are_rewritten() -> None:
    bench = Bench()
    bench.hub._rewrites = (
        RewriteRule("only/pub", "p", subscribe=False),
        RewriteRule("old/#", "new/$1"),
    )
    device, sender = bench.connect("d"), bench.connect("s")
    device.subscribe("old/+", "$share/g/old/shared", qos=1)
    for number, name in enumerate(("old/x", "new/y", "old/shared", "other"), 1):
        sender.send(Publish(name, b"1", 1, packet_id=number))
    for _ in range(3):  # QoS 0, which would else go as it came
        sender.send(Publish("old/x", b"0"))
    bench.store()
    got = [topic for topic, _ in device.publishes()]
    assert sorted(got) == sorted(["new/x"] * 4 + ["new/y"] + ["new/shared"] * 2)
    assert rewritten(bench.hub._rewrites, "only/pub", subscribing=True) == "only/pub"
    device.send(Unsubscribe(5, ("old/+", "$share/g/old/shared")))
    assert bench.hub.index.count == 0


def test_permission_is_asked_for_the_rewritten_name() -> None:
    bench = Bench()
    bench.hub._rewrites = (RewriteRule("open/#", "locked/$1"),)
    bench.forbidden = {(Operation.WRITE, "locked/x"), (Operation.READ, "locked/x")}
    device = bench.connect("d", version=V5)
    device.send(Publish("open/x", b"", 1, packet_id=1))
    assert device.one().reason == Reason.NOT_AUTHORIZED
    assert device.subscribe("open/x") == (Reason.NOT_AUTHORIZED,)


def test_a_name_that_grows_too_long_is_refused() -> None:
    bench = Bench()
    bench.hub._rewrites = (RewriteRule("+", "$1/$1"),)
    device = bench.connect("d", version=V5)
    device.send(Publish("x" * 40_000, b"", 1, packet_id=1))
    assert device.one().reason == Reason.NOT_AUTHORIZED


# -- bans


def test_who_is_banned() -> None:
    rules = BanRules(
        frozenset({"bad-id"}),
        frozenset({"mallory"}),
        (ipaddress.ip_network("10.1.0.0/16"), ipaddress.ip_network("2001:db8::/32")),
    )
    bans = Bans(rules)
    assert bans.reason_to_refuse("bad-id", None, "127.0.0.1", 0)
    assert bans.reason_to_refuse("c", "mallory", "127.0.0.1", 0)
    assert bans.reason_to_refuse("c", None, "10.1.2.3", 0)
    assert bans.reason_to_refuse("c", None, "2001:db8::1", 0)
    for host in ("10.2.0.1", "unix", "::1", "fe80::1%eth0"):
        assert bans.reason_to_refuse("c", "alice", host, 0) is None


def test_flapping_is_banned_for_a_time() -> None:
    bans = Bans(BanRules(flapping_connects=3, flapping_window_ms=1000, flapping_ban_ms=5000))
    assert [bans.reason_to_refuse("c", None, "::1", n * 100) is None for n in range(4)] == [
        True,
        True,
        True,
        False,
    ]
    assert bans.reason_to_refuse("other", None, "::1", 400) is None
    assert bans.reason_to_refuse("c", None, "::1", 5299) is not None
    assert bans.reason_to_refuse("c", None, "::1", 5300) is None
    for n in range(10):  # slow enough
        assert bans.reason_to_refuse("slow", None, "::1", 10_000 + n * 500) is None
    bans.forget(100_000)
    assert (bans.until, bans._connects, bans.flapped) == ({}, {}, 1)


def test_banned_clients_are_told() -> None:
    bench = Bench()
    bench.hub.bans = Bans(BanRules(frozenset({"bad"})))
    for version, code in ((V311, 5), (V5, Reason.BANNED)):
        device = bench.dial(version)
        device.send(Connect("bad", version))
        assert device.one().code == code
        assert device.closed
        assert device.connection.credentials is None


# -- rates


@pytest.mark.parametrize(("publishes", "size"), [(10, 0), (0, 1000)])
def test_a_client_above_its_rate_is_read_more_slowly(publishes: int, size: int) -> None:
    bench = Bench(limits=Limits(publishes_max_per_s=publishes, bytes_max_per_s=size))
    device, other = bench.connect("d"), bench.connect("o")
    device.send(*(Publish("t", b"x" * 95) for _ in range(15)))
    connection = device.connection
    assert connection.overloaded
    assert connection.throttle is not None
    assert 400 <= connection.throttle.wait_ms <= 700
    assert not other.connection.overloaded
    assert throttle_of(0, 0, 0) is None


# -- automatic subscriptions


def test_every_client_gets_its_subscriptions() -> None:
    bench = Bench()
    bench.hub.auto_subscriptions = [("to/%c/#", 1), ("user/%u", NO_LOCAL), ("all", 0)]
    bench.forbidden = {(Operation.READ, "all")}
    bench.connect("retainer").send(Publish("to/d/x", b"kept", retain=True))
    device = bench.connect("d", version=V5, principal=Principal("alice"))
    assert device.publishes() == [("to/d/x", b"kept")]
    device.send(Publish("to/d/y", b"1"), Publish("user/alice", b"2"), Publish("all", b"3"))
    assert device.publishes() == [("to/d/y", b"1")]
    bench.connect("s").send(Publish("user/alice", b"4"))
    assert device.publishes() == [("user/alice", b"4")]


def test_a_client_id_does_not_widen_a_subscription() -> None:
    bench = Bench()
    bench.hub.auto_subscriptions = [("to/%c", 0)]
    for client_id in ("+", "#", "a/b"):
        bench.connect(client_id)
    assert bench.hub.index.count == 0


def test_a_kept_session_is_not_subscribed_twice() -> None:
    bench = CrashBench()
    bench.hub.auto_subscriptions = [("to/%c", 1)]
    bench.connect("d", clean=False).lose()
    device = bench.connect("d", clean=False)
    assert bench.hub.index.count == 1
    device.lose()
    bench.checkpoint()
    bench.settle()
    bench.crash()
    assert bench.hub.index.count == 1


# -- exclusive subscriptions


def test_an_exclusive_filter_has_one_owner() -> None:
    bench = Bench()
    one, two = bench.connect("one", version=V5), bench.connect("two", version=V5)
    assert one.subscribe("$exclusive/t/+", qos=1) == (1,)
    assert one.subscribe("$exclusive/t/+", qos=0) == (0,)
    assert two.subscribe("$exclusive/t/+") == (Reason.QUOTA_EXCEEDED,)
    assert two.subscribe("t/other") == (0,)
    assert two.subscribe("$exclusive/$share/g/t") == (Reason.TOPIC_FILTER_INVALID,)
    assert two.subscribe("$exclusive/") == (Reason.TOPIC_FILTER_INVALID,)
    two.send(Publish("t/1", b"x"))
    assert one.publishes() == [("t/1", b"x")]
    one.send(Unsubscribe(3, ("$exclusive/t/+",)))
    assert two.subscribe("$exclusive/t/+") == (0,)
    assert one.one().packet_id == 3
    two.send(Disconnect())
    assert one.subscribe("$exclusive/t/+") == (0,)


def test_an_exclusive_filter_stays_owned_over_a_crash() -> None:
    bench = CrashBench()
    one = bench.connect("one", clean=False)
    one.send(Subscribe(1, (Filter("$exclusive/t", 1),)))
    bench.settle()
    bench.crash()
    two = bench.connect("two", version=V5)
    assert two.subscribe("$exclusive/t") == (Reason.QUOTA_EXCEEDED,)


# -- $SYS


def test_system_topics() -> None:
    bench = Bench()
    watcher = bench.connect("w")
    bench.connect("away", clean=False).lose()
    watcher.subscribe("$SYS/broker/clients/+", "$SYS/broker/version", "#")
    publish_system_topics(bench.hub, "1.2", START_MS, START_MS + 90_000)
    assert dict(watcher.publishes()) == {
        "$SYS/broker/clients/connected": b"1",
        "$SYS/broker/clients/disconnected": b"1",
        "$SYS/broker/clients/total": b"2",
        "$SYS/broker/version": b"LakeMQ 1.2",
    }
    publish_system_topics(bench.hub, "1.2", START_MS, START_MS + 100_000)
    assert watcher.publishes() == []  # nothing changed
    late = bench.connect("late")
    late.subscribe("$SYS/broker/uptime")
    assert late.publishes() == [("$SYS/broker/uptime", b"100 seconds")]


def test_system_topics_are_not_kept() -> None:
    bench = CrashBench()
    publish_system_topics(bench.hub, "1", START_MS, START_MS)
    assert bench.hub.retained.take_changes() == {}
    assert bench.hub.retained.count > 10


# -- settings


@pytest.mark.parametrize(
    "wrong",
    [
        {"rewrites": [{"filter": "a#", "target": "b"}]},
        {"rewrites": [{"filter": "a", "target": "b/+"}]},
        {"rewrites": [{"filter": "a", "target": ""}]},
        {"auto_subscriptions": [{"filter": "a#"}]},
        {"banned_hosts": ["nowhere"]},
    ],
)
def test_settings_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        MqttSettings.model_validate(wrong)


def test_settings_reach_the_hub() -> None:
    settings = MqttSettings.model_validate(
        {
            "rewrites": [{"filter": "a/#", "target": "b/$1", "subscribe": False}],
            "auto_subscriptions": [{"filter": "to/%c", "qos": 1, "no_local": True}],
            "banned_hosts": ["10.0.0.0/8"],
            "banned_users": ["m"],
            "flapping_connects": 5,
        }
    )
    assert [rule.rule() for rule in settings.rewrites] == [
        RewriteRule("a/#", "b/$1", subscribe=False)
    ]
    assert [one.options() for one in settings.auto_subscriptions] == [1 | NO_LOCAL]
    rules = settings.ban_rules()
    assert rules.networks == (ipaddress.ip_network("10.0.0.0/8"),)
    assert (rules.users, rules.flapping_connects) == (frozenset({"m"}), 5)
