"""Goal: what one principal has on a node, no other one takes away: neither its sessions, by knowing
a client id, nor the room that all share."""

from __future__ import annotations

import pytest

from lakemq.broker_core.api.types import ANONYMOUS, Principal
from lakemq.plugins.mqtt.limits import Limits
from lakemq.plugins.mqtt.routing.delayed import DelayLimits
from lakemq.plugins.mqtt.routing.retained import Retained
from lakemq.plugins.mqtt.wire.messages import Message
from lakemq.plugins.mqtt.wire.packets import (
    V5,
    V31,
    V311,
    Connack,
    Connect,
    Filter,
    Properties,
    Publish,
    Subscribe,
    Unsubscribe,
)
from lakemq.plugins.mqtt.wire.reasons import Reason
from tests.support.mqtt.bench import Bench
from tests.support.mqtt.crash import CrashBench

ALICE, BOB = Principal("alice"), Principal("bob")
HOUR = Properties(session_expiry_s=3600)
versions = pytest.mark.parametrize("version", [V31, V311, V5])


def refused(bench: Bench, client_id: str, principal: Principal, version: int, clean: bool) -> int:
    """Code of the CONNACK that ends the connection."""
    device = bench.dial(version)
    properties = HOUR if version == V5 else Properties()
    device.send(Connect(client_id, version, clean, properties=properties))
    device.connection.authenticated(principal, bench.now_ms)
    (connack,) = device.decoded()
    assert isinstance(connack, Connack)
    assert device.closed
    return connack.code


# -- sessions


@versions
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("connected", [True, False])
@pytest.mark.parametrize("other", [ALICE, ANONYMOUS])
def test_a_session_is_not_taken_by_who_knows_its_client_id(
    version: int, clean: bool, connected: bool, other: Principal
) -> None:
    bench = Bench()
    bob = bench.connect("d", clean=False, principal=BOB)
    bob.subscribe("t", qos=1)
    if not connected:
        bob.lose()
    code = refused(bench, "d", other, version, clean)
    assert code == (Reason.NOT_AUTHORIZED if version == V5 else 5)
    bench.connect("s").send(Publish("t", b"queued", 1, packet_id=1))
    bench.store()
    if not connected:
        bob = bench.connect("d", clean=False, principal=BOB)
        assert bob.connack.session_present  # type: ignore[attr-defined]
    assert not bob.closed
    assert bob.publishes() == [("t", b"queued")]


def test_a_connection_without_a_kept_session_is_not_ended_by_another_user() -> None:
    bench = Bench()
    bob = bench.connect("d", principal=BOB)
    refused(bench, "d", ALICE, V5, True)
    assert not bob.closed
    bob.lose()
    assert not bench.connect("d", principal=ALICE).closed  # nobody's any more


def test_who_owns_a_session_outlasts_a_restart() -> None:
    bench = CrashBench()
    bob = bench.connect("d", clean=False, principal=BOB)
    bob.send(Subscribe(1, (Filter("t", 1),)))
    bench.settle()
    bench.crash()
    refused(bench, "d", ALICE, V5, True)
    bob = bench.connect("d", clean=False, principal=Principal("bob", roles=("other",)))
    assert bob.connack.session_present  # type: ignore[attr-defined]


def test_anonymous_clients_count_as_one() -> None:
    bench = Bench()
    first = bench.connect("d", clean=False)
    second = bench.connect("d", clean=False, principal=Principal("anonymous", "anonymous"))
    assert first.closed
    assert second.connack.session_present  # type: ignore[attr-defined]
    refused(bench, "d", Principal("anonymous"), V5, False)


def test_a_session_of_another_user_can_be_replaced_where_the_operator_says_so() -> None:
    bench = Bench(limits=Limits(session_of_another_user="replace"))
    alice = bench.connect("d", clean=False, principal=ALICE)
    alice.subscribe("t", qos=1)
    mallory = bench.connect("d", clean=False, principal=BOB)
    assert alice.closed
    assert mallory.connack.session_present is False  # type: ignore[attr-defined]
    assert bench.hub.index.count == 0


# -- shares of what all have together


def filters(count: int) -> list[str]:
    """Filters of as many shapes."""
    return ["/".join("+" if number >> bit & 1 else "a" for bit in range(8)) + "/#"
            for number in range(count)]  # fmt: skip


def test_one_user_does_not_use_up_all_shapes_of_filters() -> None:
    bench = Bench()
    bench.hub.index.shapes_max = 20
    alice, bob = (bench.connect(one.name, version=V5, principal=one) for one in (ALICE, BOB))
    assert alice.subscribe(*filters(12)) == (0,) * 10 + (Reason.QUOTA_EXCEEDED,) * 2
    assert bob.subscribe(*filters(12)[4:]) == (0,) * 8  # six are known, two are new
    more = bench.connect("alice-2", version=V5, principal=ALICE)
    assert more.subscribe(filters(14)[13]) == (Reason.QUOTA_EXCEEDED,)
    alice.send(Unsubscribe(2, (filters(1)[0],)))
    assert more.subscribe(filters(14)[13]) == (0,)
    alice.lose()
    assert more.subscribe(*filters(26)[16:]) == (0,) * 9 + (Reason.QUOTA_EXCEEDED,)


def test_one_user_does_not_have_all_sessions() -> None:
    bench = Bench(limits=Limits(sessions_max=6))
    for number in range(3):
        bench.connect(f"a{number}", clean=False, principal=ALICE).lose()
    assert refused(bench, "a3", ALICE, V5, False) == Reason.QUOTA_EXCEEDED
    assert not bench.connect("a1", clean=False, principal=ALICE).closed
    for number in range(3):
        bench.connect(f"b{number}", principal=BOB)
    bench.connect("a1", principal=ALICE).lose()  # ends with its connection
    assert not bench.connect("a3", principal=ALICE).closed


def test_shares_of_sessions_outlast_a_restart() -> None:
    bench = CrashBench(limits=Limits(sessions_max=4))
    for number in range(2):
        bench.connect(f"a{number}", clean=False, principal=ALICE).lose()
    bench.settle()
    bench.crash()
    assert refused(bench, "a2", ALICE, V5, False) == Reason.QUOTA_EXCEEDED


@pytest.mark.parametrize(
    "limits", [DelayLimits(delayed_count_max=6), DelayLimits(delayed_max_bytes=6 * 210)]
)
def test_one_user_does_not_delay_all_publishes(limits: DelayLimits) -> None:
    bench = Bench(delay_limits=limits)
    alice, bob = (bench.connect(one.name, version=V5, principal=one) for one in (ALICE, BOB))
    for number in range(4):
        alice.send(Publish("$delayed/5/t", b"12345678", 1, packet_id=number + 1))
        bob.send(Publish("$delayed/9/t", b"12345678", 1, packet_id=number + 1))
    bench.store()
    for each in (alice, bob):
        assert [one.reason for one in each.received()] == [0, 0, 0, Reason.QUOTA_EXCEEDED]  # type: ignore[union-attr]
    bench.pass_time(6)
    bench.store()
    alice.send(Publish("$delayed/5/t", b"12345678", 1, packet_id=9))
    bench.store()
    assert alice.one().reason == 0


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("retained", [Retained(6, 10_000), Retained(100, 6 * 6)])
def test_one_user_does_not_retain_everything(qos: int, retained: Retained) -> None:
    bench = Bench(retained=Retained(retained.count_max, retained.bytes_max))
    watcher = bench.connect("w", version=V5)
    watcher.subscribe("#")
    alice, bob = (bench.connect(one.name, version=V5, principal=one) for one in (ALICE, BOB))
    for number in range(4):
        for each, name in ((alice, "a"), (bob, "b")):
            each.send(Publish(f"{name}/{number}", b"123", qos, True, packet_id=number + 1))
            bench.store()
    for each in (alice, bob):
        assert [one.reason for one in each.received()] == [0, 0, 0, Reason.QUOTA_EXCEEDED]  # type: ignore[union-attr]
    assert bench.hub.retained.count == 6
    assert len(watcher.publishes()) == 6  # what is refused is not published either
    alice.send(Publish("a/0", b"new", qos, True, packet_id=8))  # in place of an older one
    alice.send(Publish("a/1", b"", qos, True, packet_id=9))
    bench.store()
    alice.send(Publish("a/3", b"123", qos, True, packet_id=10))
    bench.store()
    assert [one.reason for one in alice.received()] == [0, 0, 0]  # type: ignore[union-attr]


def test_a_retained_message_is_its_last_publishers() -> None:
    bench = Bench(retained=Retained(4, 10_000))
    alice, bob = (bench.connect(one.name, version=V5, principal=one) for one in (ALICE, BOB))
    for topic in ("1", "2"):
        alice.send(Publish(topic, b"x", 1, True, packet_id=1))
        bench.store()
        bob.send(Publish(topic, b"x", 1, True, packet_id=1))
        bench.store()
    bob.send(Publish("3", b"x", 1, True, packet_id=1))
    alice.send(Publish("4", b"x", 1, True, packet_id=1))
    bench.store()
    assert [one.reason for one in bob.received()][-1] == Reason.QUOTA_EXCEEDED  # type: ignore[union-attr]
    assert [one.reason for one in alice.received()][-1] == 0  # type: ignore[union-attr]


def test_who_retains_what_outlasts_a_restart() -> None:
    bench = CrashBench(retained=None)
    alice = bench.connect("a", version=V5, principal=ALICE)
    alice.send(Publish("t", b"x", 1, True, packet_id=1))
    bench.settle()
    bench.checkpoint()
    bench.crash()
    assert bench.hub.retained.owner_of("t") == ("user", "alice")


def test_a_full_store_is_no_success_for_anybody() -> None:
    bench = Bench(retained=Retained(1, 10_000))
    new, old = bench.connect("new", version=V5), bench.connect("old")
    new.send(Publish("1", b"x", 1, True, packet_id=1), Publish("2", b"x", 1, True, packet_id=2))
    bench.store()
    assert sorted(one.reason for one in new.received()) == [0, Reason.QUOTA_EXCEEDED]  # type: ignore[union-attr]
    watcher = bench.connect("w")
    watcher.subscribe("3")
    old.send(Publish("3", b"x", 1, True, packet_id=3))  # no way to tell it
    bench.store()
    assert old.one().packet_id == 3
    assert watcher.publishes() == [("3", b"x")]
    assert bench.hub.retained.refused == 2


def test_one_user_does_not_have_all_replays() -> None:
    bench = Bench(limits=Limits(replays_max=2))
    bench.connect("s").send(Publish("t", b"x", 1, packet_id=1))
    bench.store()
    alice, bob = (bench.connect(one.name, version=V5, principal=one) for one in (ALICE, BOB))
    for device in (alice, bob):
        device.connection.blocked = True  # so that it does not catch up
        asked = ("$replay/earliest/t", "$replay/earliest/#")
        assert device.subscribe(*asked) == (0, Reason.QUOTA_EXCEEDED)


@pytest.mark.parametrize(("share", "room"), [(1.0, 6), (0.5, 3), (0.01, 1)])
def test_the_share_is_a_setting(share: float, room: int) -> None:
    bench = Bench(limits=Limits(sessions_max=6, user_share_max=share))
    for number in range(room):
        bench.connect(f"a{number}", principal=ALICE)
    assert refused(bench, "more", ALICE, V5, False) == Reason.QUOTA_EXCEEDED


def test_anonymous_clients_have_all_until_a_user_comes() -> None:
    bench = Bench(limits=Limits(sessions_max=6))
    others = [bench.connect(f"x{number}") for number in range(6)]
    for each in others[:4]:
        each.lose()
    bench.connect("a", principal=ALICE)
    bench.connect("x7")
    assert refused(bench, "x8", ANONYMOUS, V5, False) == Reason.QUOTA_EXCEEDED


def test_a_topic_that_is_cleared_meanwhile_keeps_the_room_of_what_is_being_stored() -> None:
    retained = Retained(2, 10_000)
    owner = ("user", "ann")
    assert retained.let_in("a", 5, owner, 0) and retained.let_in("a", 9, owner, 0)
    retained.put(Message("a", b"", 1, True, 0), owner, let_in=True)
    assert retained.let_in("b", 5, owner, 0)
    assert not retained.let_in("c", 5, owner, 0), "a and b are on their way"
    for topic in ("a", "b", "a"):
        retained.put(Message(topic, b"x", 1, True, 0), owner, let_in=True)
        assert not retained.let_in("c", 5, owner, 0)
    assert retained.count == 2
    retained.put(Message("a", b"", 1, True, 0), owner, let_in=True)
    assert retained.let_in("c", 5, owner, 0)
