"""Goal: what was promised to clients is there after a crash, and nothing else comes up."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.broker_core.api.types import ANONYMOUS, Principal
from lakemq.plugins.mqtt.routing.bindings import Binding
from lakemq.plugins.mqtt.state import delivery
from lakemq.plugins.mqtt.state.delivery import Delivery, DeliveryLimits
from lakemq.plugins.mqtt.state.ledger import Ledger
from lakemq.plugins.mqtt.state.sessions import Session, Subscription
from lakemq.plugins.mqtt.state.snapshots import (
    read_positions,
    read_retained,
    read_session,
    retained_bytes,
    session_bytes,
)
from lakemq.plugins.mqtt.state.stored_values import BadSnapshot
from lakemq.plugins.mqtt.wire.messages import Message, Place
from lakemq.plugins.mqtt.wire.packets import (
    NO_PROPERTIES,
    V5,
    V311,
    Acknowledgement,
    Connect,
    Disconnect,
    Filter,
    PacketType,
    Properties,
    Publish,
    Subscribe,
    Unsubscribe,
    Will,
)
from lakemq.plugins.mqtt.wire.topics import parse_filter
from tests.support.mqtt.bench import Bench, Device
from tests.support.mqtt.crash import CrashBench

PUBACK, PUBREC = PacketType.PUBACK, PacketType.PUBREC
PUBREL, PUBCOMP = PacketType.PUBREL, PacketType.PUBCOMP
HOUR = Properties(session_expiry_s=3600)
versions = pytest.mark.parametrize("version", [V311, V5])


def client(bench: Bench, name: str, version: int = V5, **more: Any) -> Device:
    """A client whose session outlives its connection."""
    properties = HOUR if version == V5 else Properties()
    return bench.connect(name, version=version, clean=False, properties=properties, **more)


def was_there(device: Device) -> bool:
    return bool(device.connack.session_present)  # type: ignore[attr-defined]


def subscribe(bench: CrashBench, device: Device, text: str, qos: int, **more: Any) -> None:
    identifier = more.pop("identifier", 0)
    properties = Properties(subscription_identifiers=(identifier,)) if identifier else NO_PROPERTIES
    device.send(Subscribe(1, (Filter(text, qos),), properties))
    bench.settle()
    device.received()


def send(bench: CrashBench, payload: bytes, qos: int = 1, topic: str = "t", **more: Any) -> None:
    sender = bench.connect("sender")
    sender.send(Publish(topic, payload, qos, packet_id=qos, **more))
    bench.settle()


def got(bench: CrashBench, device: Device) -> list[bytes]:
    """Payloads that came, acknowledging them."""
    found = []
    while packets := (bench.settle(), device.received())[1]:
        for each in packets:
            if isinstance(each, Publish):
                found.append(each.payload)
                if each.qos:
                    device.send(
                        Acknowledgement(PUBACK if each.qos == 1 else PUBREC, each.packet_id)
                    )
            elif isinstance(each, Acknowledgement) and each.type is PUBREL:
                device.send(Acknowledgement(PUBCOMP, each.packet_id))
    return found


@versions
def test_subscriptions_survive(version: int) -> None:
    bench = CrashBench()
    device = client(bench, "d", version)
    subscribe(bench, device, "t/+", 1)
    subscribe(bench, device, "gone", 1)
    device.send(Unsubscribe(2, ("gone",)))
    bench.settle()
    bench.crash()
    send(bench, b"x", topic="t/1")
    send(bench, b"y", topic="gone")
    device = client(bench, "d", version)
    assert was_there(device)
    assert got(bench, device) == [b"x"]


def test_suback_waits_until_the_subscription_is_kept() -> None:
    bench = CrashBench()
    device = client(bench, "d")
    device.send(Subscribe(1, (Filter("t", 1),)))
    assert device.received() == []
    bench.write_sessions()
    assert device.received() == []
    bench.confirm()
    assert device.one().packet_id == 1


def test_options_and_identifiers_survive() -> None:
    bench = CrashBench()
    device = client(bench, "d")
    subscribe(bench, device, "t", 0x0D, identifier=9)  # QoS 1, no local, retain as published
    bench.crash()
    device = client(bench, "d")
    device.send(Publish("t", b"own", 1, packet_id=1))
    send(bench, b"theirs", retain=True)
    (publish,) = [each for each in device.received() if isinstance(each, Publish)]
    assert (publish.payload, publish.retain) == (b"theirs", True)
    assert publish.properties.subscription_identifiers == (9,)


@versions
def test_clean_sessions_do_not_come_back(version: int) -> None:
    bench = CrashBench()
    kept = client(bench, "d", version)
    subscribe(bench, kept, "t", 1)
    bench.connect("d", version=version)  # ends the kept one, durably, before its CONNACK
    bench.crash()
    assert bench.hub.sessions == {}
    assert not was_there(client(bench, "d", version))
    assert bench.hub.index.count == 0


def test_a_session_ended_at_disconnect_does_not_come_back() -> None:
    bench = CrashBench()
    client(bench, "d").send(Disconnect(0, Properties(session_expiry_s=0)))
    bench.settle()
    bench.crash()
    assert bench.hub.sessions == {}


def test_expiry_goes_on_counting() -> None:
    bench = CrashBench()
    client(bench, "away").lose()
    bench.settle()
    bench.checkpoint()
    bench.settle()
    bench.now_ms += 3_000_000
    client(bench, "here")
    bench.crash()
    bench.pass_time(599)
    assert set(bench.hub.sessions) == {"away", "here"}
    bench.pass_time(2)
    assert set(bench.hub.sessions) == {"here"}  # its connection was lost by the crash
    bench.pass_time(3000)
    assert bench.hub.sessions == {}


def test_what_waited_is_delivered_after_the_crash() -> None:
    bench = CrashBench()
    device = client(bench, "d")
    subscribe(bench, device, "t", 1)
    send(bench, b"in flight")
    device.lose()
    for number in range(5):
        send(bench, b"%d" % number)
    bench.crash()
    send(bench, b"after")
    outbound = bench.hub.sessions["d"].outbound
    assert all(each.message is None for each in outbound.queue or ())
    expected = [b"in flight", b"0", b"1", b"2", b"3", b"4", b"after"]
    assert got(bench, client(bench, "d")) == expected
    bench.checkpoint()
    bench.settle()
    bench.crash()
    assert got(bench, client(bench, "d")) == []


def test_a_restart_reads_no_more_than_is_needed() -> None:
    bench = CrashBench()
    device = client(bench, "d")
    subscribe(bench, device, "t", 1)
    for _ in range(20):
        send(bench, b"x")
    got(bench, device)
    bench.checkpoint()
    bench.settle()
    bench.crash()
    assert bench.hub.delivered == 0


def test_old_sessions_are_kept_anew() -> None:
    """A client that is away for long must not make every restart read the whole log."""
    bench = CrashBench()
    client(bench, "away").lose()
    bench.checkpoint()
    bench.settle()
    for _ in range(50):
        send(bench, b"x")
    ledger = bench.hub.ledger
    assert ledger is not None
    ledger.checkpoint(bench.hub.delivered, 51, 100)
    assert not ledger.due
    ledger.checkpoint(bench.hub.delivered, 50, 100)
    assert list(ledger.urgent) == ["away"]


@pytest.mark.parametrize("qos", [0, 1])
def test_retained_messages_survive(qos: int) -> None:
    bench = CrashBench()
    send(bench, b"old", qos, retain=True)
    send(bench, b"removed", qos, topic="removed", retain=True)
    bench.checkpoint()
    bench.settle()
    if qos:  # stored in the topic since: found there
        send(bench, b"new", qos, retain=True)
        send(bench, b"", qos, topic="removed", retain=True)
    bench.crash()
    device = bench.connect("d")
    subscribe(bench, device, "#", 1)
    device.subscribe("#")
    expected = [("t", b"new")] if qos else [("removed", b"removed"), ("t", b"old")]
    assert sorted(device.publishes()) == expected


def test_a_checkpoint_that_is_full_writes_what_has_waited_longest() -> None:
    ledger = Ledger()
    names = [f"client {number}" for number in range(20)]
    for name in [*names, names[0]]:  # which stays where it is
        ledger.touch(name)
    written: list[str] = []
    while ledger.lazy:
        ledger.checkpoint(0, 1, 3)
        written += ledger.begin().client_ids
        ledger.done(set(), 0, 0)
    assert written == names


def test_wills_survive() -> None:
    bench = CrashBench()
    delayed = Will("gone/late", b"bye", 1, properties=Properties(will_delay_s=60))
    client(bench, "connected", will=Will("gone/now", b"bye", 1))
    client(bench, "said-goodbye", will=Will("gone/never", b"bye", 1)).send(Disconnect())
    client(bench, "waiting", will=delayed).lose()
    watcher = client(bench, "w")
    subscribe(bench, watcher, "gone/#", 1)
    bench.checkpoint()
    bench.settle()
    bench.crash()
    bench.settle()
    watcher = client(bench, "w")
    bench.settle()
    assert watcher.publishes() == [("gone/now", b"bye")]
    bench.pass_time(60)
    bench.settle()
    assert watcher.publishes() == [("gone/late", b"bye")]
    bench.checkpoint()
    bench.settle()
    bench.crash()
    bench.pass_time(600)
    assert bench.store() == 0


def test_shared_subscriptions_survive() -> None:
    bench = CrashBench()
    for name in ("one", "two"):
        device = client(bench, name)
        subscribe(bench, device, "$share/g/t", 1)
        device.lose()
    for number in range(6):
        send(bench, b"%d" % number)
    bench.crash()
    found = [got(bench, client(bench, name)) for name in ("one", "two")]
    assert sorted(sum(found, [])) == [b"%d" % n for n in range(6)]
    assert all(found)


def test_a_topic_bound_since_does_not_bring_up_its_history() -> None:
    bench = CrashBench(bindings=(Binding("t", "mqtt"), Binding("new/#", "other")))
    device = client(bench, "d")
    subscribe(bench, device, "#", 1)
    for number in range(3):
        send(bench, b"%d" % number, topic="new/x")
    history = bench.log.pop("other")
    bench.hub.positions.pop(("other", 0))
    got(bench, device)
    bench.checkpoint()
    subscribe(bench, device, "more", 1)
    bench.log["other"] = history
    bench.crash()
    assert got(bench, client(bench, "d")) == []
    send(bench, b"live", topic="new/x")
    assert got(bench, client(bench, "d")) == [b"live"]


# -- QoS 2 at each of its steps


def to_stage(bench: CrashBench, device: Device, stage: int) -> None:
    """A QoS 2 publish by the client, up to: 1 sent, 2 durable, 3 PUBREC, 4 PUBREL sent, 5 release
    durable, 6 PUBCOMP."""
    device.send(Publish("t", b"once", 2, packet_id=7))
    steps = [
        bench.write_records,
        bench.confirm,
        lambda: device.send(Acknowledgement(PUBREL, 7)),
        bench.write_sessions,
        bench.confirm,
    ]
    for step in steps[: stage - 1]:
        step()


@pytest.mark.parametrize("stage", range(1, 7))
def test_qos_2_from_a_client_is_stored_once(stage: int) -> None:
    bench = CrashBench()
    device = client(bench, "d")
    to_stage(bench, device, stage)
    said = {each.type for each in device.received() if isinstance(each, Acknowledgement)}
    bench.crash()
    device = client(bench, "d")
    assert was_there(device)
    if PUBCOMP not in said:
        if PUBREC not in said:
            device.send(Publish("t", b"once", 2, dup=True, packet_id=7))
            bench.settle()
            assert device.one() == Acknowledgement(PUBREC, 7)
        device.send(Acknowledgement(PUBREL, 7))
        bench.settle()
        assert device.one().type is PUBCOMP
    device.send(Publish("t", b"next", 2, packet_id=7))  # the packet identifier is free
    bench.settle()
    assert device.one() == Acknowledgement(PUBREC, 7)
    bench.crash()
    stored = [message.payload for _, message in sorted(bench.messages.items())]
    assert stored == [b"once", b"next"]


@pytest.mark.parametrize("stage", range(7))
def test_qos_2_to_a_client_is_delivered_once(stage: int) -> None:
    bench = CrashBench()
    device = client(bench, "d")
    subscribe(bench, device, "t", 2)
    sender = bench.connect("s")
    sender.send(Publish("t", b"once", 2, packet_id=1))
    seen: dict[int, bytes] = {}  # what the client knows: packet identifiers not released
    taken: list[bytes] = []

    def read(device: Device) -> None:
        for each in device.received():
            if isinstance(each, Publish):
                if each.packet_id not in seen:
                    taken.append(each.payload)
                seen[each.packet_id] = each.payload
                device.send(Acknowledgement(PUBREC, each.packet_id))
            elif isinstance(each, Acknowledgement) and each.type is PUBREL:
                seen.pop(each.packet_id, None)
                device.send(Acknowledgement(PUBCOMP, each.packet_id))

    steps: list[Any] = [
        bench.write_records,
        bench.write_sessions,
        bench.confirm,
        bench.confirm,
        lambda: read(device),
        bench.write_sessions,
        bench.confirm,
    ]
    for step in steps[: stage + 1]:
        if step != bench.confirm or bench.can_confirm:
            step()
    bench.crash()
    for _ in range(2):
        device = client(bench, "d")
        for _ in range(4):
            bench.settle()
            read(device)
        device.lose()
        bench.crash()
    assert taken == [b"once"]


def test_a_record_of_an_earlier_session_is_not_taken_for_a_publish_of_this_one() -> None:
    bench = CrashBench()
    old = client(bench, "d")
    old.send(Publish("t", b"old", 2, packet_id=7))
    new = bench.dial(V5)  # a clean start while the old publish is being stored
    new.send(Connect("d", V5, True, properties=HOUR))
    new.connection.authenticated(ANONYMOUS, bench.now_ms)
    bench.write_sessions()
    bench.confirm()
    bench.write_records()
    bench.crash()
    device = client(bench, "d")
    device.send(Publish("t", b"new", 2, packet_id=7))
    assert bench.store() == 1


# -- bytes


def test_sessions_survive_their_bytes() -> None:
    session = Session("d\u00e9", Principal("alice", "user", {"a": "b"}), DeliveryLimits())
    session.incarnation, session.expiry_s, session.ends_ms = "1-a", 3600, 123
    session.will = Will("w", b"\xff", 2, True, Properties(user_properties=(("k", "v"), ("k", "w"))))
    session.will_due_ms = 99
    address = parse_filter("$share/g/t/+")
    session.subscriptions["$share/g/t/+"] = Subscription(session, address, 0x0E, 7)
    session.incoming = {1: Place("mqtt", 0, 5), 2: None}
    session.released = {("mqtt", 0): 4}
    copy = Message("t", b"copy", 1, False, 5, b"\x01\x01", 60, "o")
    released = Delivery(None, 2, False, (1, 2), place=Place("mqtt", 1, 9))
    released.released = True
    session.outbound.restore(
        [(3, released), (4, Delivery(copy, 1, True, ()))],
        [Delivery(None, 1, False, (), place=Place("mqtt", 0, 10))],
    )
    state = read_session("d\u00e9", session_bytes(session, {("mqtt", 0): 11}))
    assert (state.client_id, state.principal) == ("d\u00e9", session.principal)
    assert (state.incarnation, state.expiry_s, state.ends_ms) == ("1-a", 3600, 123)
    assert (state.will, state.will_due_ms) == (session.will, 99)
    assert state.subscriptions == [("$share/g/t/+", 0x0E, 7)]
    assert (state.incoming, state.released) == ({1: Place("mqtt", 0, 5)}, {("mqtt", 0): 4})
    (first, second), (queued,) = state.inflight, state.queue
    assert (first[0], first[1].place, first[1].released, first[1].identifiers) == (
        3,
        Place("mqtt", 1, 9),
        True,
        (1, 2),
    )
    kept = second[1].message
    assert kept is not None
    assert (kept.payload, kept.expires_ms, second[1].retain) == (b"copy", 60_005, True)
    assert (queued.place, state.positions) == (Place("mqtt", 0, 10), {("mqtt", 0): 11})


def test_retained_messages_survive_their_bytes() -> None:
    message = Message("t", b"\0\xff", 1, True, 17, b"\x01\x00", 5, "client")
    back, owner = read_retained(retained_bytes(message, ("user", "alice")))
    assert owner == ("user", "alice")
    for name in ("topic", "payload", "qos", "retain", "arrived_ms", "properties", "expires_ms",
                 "origin"):  # fmt: skip
        assert getattr(back, name) == getattr(message, name)


@given(st.binary(max_size=100))
def test_no_bytes_crash_the_reader_of_snapshots(data: bytes) -> None:
    for read in (lambda data: read_session("c", data), read_retained, read_positions):
        with pytest.raises(BadSnapshot):
            read(data)


# -- queues longer than what is kept of them


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("taken", [0, 1, 3, 9])
@pytest.mark.parametrize("away", [False, True])
def test_a_long_queue_survives(
    qos: int, taken: int, away: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Part of it is kept with its session, the rest is matched again: each once, in order."""
    monkeypatch.setattr(delivery, "QUEUE_KEPT_MAX", 4)
    bench = CrashBench(delivery=DeliveryLimits(inflight_max=2))
    send(bench, b"kept", 1, "old", retain=True)
    device = client(bench, "d")
    subscribe(bench, device, "t", qos)
    for number in range(20):
        send(bench, b"%d" % number, qos)
    subscribe(bench, device, "old", 1)  # its record lies before all others
    answered = []
    for _ in range(taken):
        answered += _take_one(bench, device)
    if away:
        device.lose()
    bench.checkpoint()
    bench.settle()
    bench.crash()
    send(bench, b"behind", qos)
    device = client(bench, "d")
    assert was_there(device)
    numbers = [b"%d" % number for number in range(20)]
    rest = [*numbers[len(answered) :], b"kept", b"behind"]
    assert sorted(got(bench, device)) == sorted(rest)
    assert answered == numbers[:taken]


def _take_one(bench: CrashBench, device: Device) -> list[bytes]:
    """Finish the oldest delivery; returns its payload."""
    outbound = bench.hub.sessions["d"].outbound
    packet_id, one = next(iter(outbound.inflight.items()))
    assert one.message is not None
    payload = one.message.payload
    device.send(Acknowledgement(PUBACK if one.qos == 1 else PUBREC, packet_id))
    bench.settle()
    if one.qos == 2:
        device.send(Acknowledgement(PUBCOMP, packet_id))
        bench.settle()
    return [payload]


def test_bytes_of_a_queue_survive() -> None:
    bench = CrashBench(delivery=DeliveryLimits(queue_max_bytes=3 * 1300))
    device = client(bench, "d")
    subscribe(bench, device, "t", 1)
    device.lose()
    for _ in range(2):
        send(bench, bytes(1000))
    bench.checkpoint()
    bench.settle()
    before = bench.hub.sessions["d"].outbound.queue_bytes
    bench.crash()
    assert bench.hub.sessions["d"].outbound.queue_bytes == before > 2000
