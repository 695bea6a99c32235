"""Goal: a publish is acknowledged when, and only when, it is stored; QoS 2 is taken once."""

from __future__ import annotations

import pytest

from lakemq.broker_core.api.errors import NotAuthorized, StorageFull, Unavailable
from lakemq.broker_core.api.records.headers import decode_headers
from lakemq.broker_core.api.types import Acks, Offset, Operation, Placed
from lakemq.plugins.mqtt.limits import Limits
from lakemq.plugins.mqtt.routing.bindings import Binding
from lakemq.plugins.mqtt.session.progress import ROUTES_MAX
from lakemq.plugins.mqtt.state.traffic import Inflow
from lakemq.plugins.mqtt.wire.packets import (
    V5,
    V31,
    V311,
    Acknowledgement,
    PacketType,
    Properties,
    Publish,
)
from lakemq.plugins.mqtt.wire.reasons import Reason
from tests.support.mqtt.bench import Bench, disconnected_with

PUBACK, PUBREC = PacketType.PUBACK, PacketType.PUBREC
PUBREL, PUBCOMP = PacketType.PUBREL, PacketType.PUBCOMP
versions = pytest.mark.parametrize("version", [V31, V311, V5])


@versions
def test_qos_1_is_acknowledged_when_stored_and_not_before(version: int) -> None:
    bench = Bench()
    device = bench.connect("d", version=version)
    device.send(Publish("a/b", b"x", 1, packet_id=7))
    assert device.received() == []
    bench.store()
    assert device.received() == [Acknowledgement(PUBACK, 7)]
    (lane,) = bench.stored
    assert (lane.topic, lane.keys, lane.values, lane.acks) == (
        "mqtt", [b"a/b"], [b"x"], Acks.LEADER,
    )  # fmt: skip
    assert decode_headers(lane.headers[0]) == (("mqtt.client", b"d"), ("mqtt.qos", b"1"))


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("refused", [False, True])
def test_what_one_client_publishes_is_counted_for_no_other(qos: int, refused: bool) -> None:
    """Connections that have published nothing share one empty `Inflow`."""
    bench = Bench()
    idle, device = bench.connect("i", version=V5), bench.connect("d", version=V5)
    idle.send(Acknowledgement(PUBREL, 3))
    if refused:
        bench.forbidden.add((Operation.WRITE, "a"))
    device.send(Publish("a", b"x", qos, packet_id=qos and 7))
    device.send(Publish("a", b"x", qos, packet_id=qos and 8))
    assert refused or not qos or device.connection.inflow != Inflow()
    assert idle.connection.inflow == bench.connect("j").connection.inflow == Inflow()


@versions
def test_qos_2_goes_through_its_four_steps(version: int) -> None:
    """5.0 [MQTT-4.3.3-8] [MQTT-4.3.3-11]"""
    bench = Bench()
    device = bench.connect("d", version=version)
    device.send(Publish("a", b"x", 2, packet_id=9))
    assert device.received() == []
    bench.store()
    assert device.received() == [Acknowledgement(PUBREC, 9)]
    device.send(Acknowledgement(PUBREL, 9))
    assert device.received() == [Acknowledgement(PUBCOMP, 9)]


@versions
def test_qos_2_sent_again_is_answered_again_and_stored_once(version: int) -> None:
    """5.0 [MQTT-4.3.3-10]"""
    bench = Bench()
    device = bench.connect("d", version=version)
    publish = Publish("a", b"x", 2, packet_id=9)
    device.send(publish)
    device.send(Publish("a", b"x", 2, dup=True, packet_id=9))
    assert bench.store() == 1
    assert device.received() == [Acknowledgement(PUBREC, 9)]
    device.send(Publish("a", b"x", 2, dup=True, packet_id=9))
    assert bench.store() == 0
    assert device.received() == [Acknowledgement(PUBREC, 9)]
    device.send(Acknowledgement(PUBREL, 9), publish)
    assert bench.store() == 1  # a new publish under the freed packet identifier


@versions
def test_qos_2_survives_a_lost_connection(version: int) -> None:
    """Stored while the client was away: it sends again, is answered, and it is one record."""
    bench = Bench()
    properties = Properties(session_expiry_s=60) if version == V5 else Properties()
    device = bench.connect("d", version=version, clean=False, properties=properties)
    device.send(Publish("a", b"x", 2, packet_id=9))
    device.lose()
    device = bench.connect("d", version=version, clean=False, properties=properties)
    device.send(Publish("a", b"x", 2, dup=True, packet_id=9))
    assert bench.store() == 1
    assert device.received() == [Acknowledgement(PUBREC, 9)]
    device.send(Acknowledgement(PUBREL, 9))
    assert device.received() == [Acknowledgement(PUBCOMP, 9)]


def test_late_outcome_of_an_old_session_does_not_answer_for_a_new_one() -> None:
    bench = Bench()
    device = bench.connect("d", clean=False)
    device.send(Publish("a", b"old", 2, packet_id=9))
    (old,) = bench.hub.outbox.appends.take()
    device = bench.connect("d", clean=True)
    device.send(Publish("a", b"new", 2, packet_id=9))
    old.settle([0], Placed(0, Offset(0)), bench.now_ms)
    assert device.received() == []
    bench.store()
    assert device.received() == [Acknowledgement(PUBREC, 9)]


def test_pubrel_for_an_unknown_packet_is_answered() -> None:
    bench = Bench()
    old, new = bench.connect("a"), bench.connect("b", version=V5)
    old.send(Acknowledgement(PUBREL, 5))
    new.send(Acknowledgement(PUBREL, 5))
    assert old.received() == [Acknowledgement(PUBCOMP, 5)]
    assert new.received() == [Acknowledgement(PUBCOMP, 5, Reason.PACKET_IDENTIFIER_NOT_FOUND)]


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("error", [Unavailable("no leader"), StorageFull("disk full")])
def test_version_5_is_told_that_a_publish_was_not_stored(qos: int, error: Exception) -> None:
    bench = Bench()
    device = bench.connect("d", version=V5)
    device.send(Publish("a", b"x", qos, packet_id=3))
    bench.store(error)  # type: ignore[arg-type]
    answer = device.one()
    expected = (
        Reason.QUOTA_EXCEEDED if isinstance(error, StorageFull) else (Reason.IMPLEMENTATION_ERROR)
    )
    assert (answer.type, answer.packet_id, answer.reason) == (
        PUBACK if qos == 1 else PUBREC, 3, expected,
    )  # fmt: skip
    assert answer.properties.reason_string == str(error)
    assert not device.closed
    device.send(Publish("a", b"x", qos, packet_id=3))  # the packet identifier is free again
    assert bench.store() == 1


@pytest.mark.parametrize("qos", [1, 2])
def test_old_versions_get_no_ack_and_are_disconnected_when_not_stored(qos: int) -> None:
    bench = Bench()
    device = bench.connect("d", clean=False)
    device.send(Publish("a", b"x", qos, packet_id=3))
    bench.store(Unavailable("no leader"))
    assert device.received() == []
    assert device.closed
    device = bench.connect("d", clean=False)
    device.send(Publish("a", b"x", qos, dup=True, packet_id=3))
    assert bench.store() == 1
    assert device.one().packet_id == 3


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_version_5_is_told_that_it_may_not_publish(qos: int) -> None:
    bench = Bench()
    bench.forbidden = {(Operation.WRITE, "secret")}
    device = bench.connect("d", version=V5)
    device.send(Publish("secret", b"x", qos, packet_id=3 if qos else 0))
    assert bench.store() == 0
    answers = device.received()
    assert not device.closed
    assert [each.reason for each in answers] == ([Reason.NOT_AUTHORIZED] if qos else [])  # type: ignore[union-attr]


@pytest.mark.parametrize(("qos", "answer"), [(1, PUBACK), (2, PUBREC)])
@pytest.mark.parametrize("disconnects", [True, False])
def test_old_versions_that_may_not_publish(disconnects: bool, qos: int, answer: PacketType) -> None:
    """3.1.1 [MQTT-3.3.5-2]: acknowledge and drop, or close."""
    bench = Bench(limits=Limits(refused_publish_disconnects=disconnects))
    bench.forbidden = {(Operation.WRITE, "secret")}
    device = bench.connect("d")
    for _ in range(2 if qos == 2 else 1):
        device.send(Publish("secret", b"x", qos, packet_id=3))
        assert bench.store() == 0
        answers = [(each.type, each.packet_id) for each in device.received()]  # type: ignore[union-attr]
        assert answers == ([] if disconnects else [(answer, 3)])
        assert device.closed is disconnects


def test_refusal_by_the_topic_reaches_version_5() -> None:
    bench = Bench()
    device = bench.connect("d", version=V5)
    device.send(Publish("a", b"x", 1, packet_id=3))
    bench.store(NotAuthorized("no"))
    assert device.one().reason == Reason.NOT_AUTHORIZED


@pytest.mark.parametrize("qos", [1, 2])
def test_changed_permissions_are_obeyed_after_the_cache_time(qos: int) -> None:
    bench = Bench(limits=Limits(access_cache_ms=1000))
    device = bench.connect("d", version=V5)
    device.send(Publish("a", b"1", qos, packet_id=1))
    bench.forbidden = {(Operation.WRITE, "a")}
    bench.pass_time(1)
    device.send(*[Publish("a", b"2", qos, packet_id=packet_id) for packet_id in (2, 3, 4)])
    assert bench.store() == 1
    reasons = {each.packet_id: each.reason for each in device.received()}  # type: ignore[union-attr]
    assert reasons == {1: 0, **dict.fromkeys((2, 3, 4), Reason.NOT_AUTHORIZED)}


def test_nobody_publishes_under_sys() -> None:
    bench = Bench()
    device = bench.connect("d", version=V5)
    device.send(Publish("$SYS/broker/uptime", b"x", 1, packet_id=3))
    assert device.one().reason == Reason.NOT_AUTHORIZED


def test_qos_0_passes_through_memory_unless_bound() -> None:
    bench = Bench(bindings=(Binding("stored/#", "kept", stores_qos_0=True), Binding("#", "mqtt")))
    device, watcher = bench.connect("d"), bench.connect("w")
    watcher.subscribe("#")
    device.send(Publish("plain", b"1"), Publish("stored/x", b"2"))
    assert watcher.publishes() == [("plain", b"1")]
    assert bench.store() == 1
    assert watcher.publishes() == [("stored/x", b"2")]
    assert bench.stored[0].acks is Acks.MEMORY
    assert bench.stored[0].topic == "kept"


def test_more_names_than_a_connection_remembers_pass_alike() -> None:
    """A run of bytes that is known to pass as it is, behind the name that empties the table."""
    bench = Bench(bindings=())
    device, reader = bench.connect("c"), bench.connect("r")
    reader.subscribe("#")
    names = [f"t/{number}" for number in range(ROUTES_MAX)]
    device.send(*[Publish(name, b"1") for name in names])
    assert [name for name, _ in reader.publishes()] == names
    device.send(Publish("new", b"2"), Publish("t/0", b"3"), Publish("t/0", b"4"))
    assert reader.publishes() == [("new", b"2"), ("t/0", b"3"), ("t/0", b"4")]


def test_first_binding_counts_and_none_means_memory() -> None:
    bench = Bench(
        bindings=(Binding("a/#", "first"), Binding("a/b", "never", key_is_client_id=True),
                  Binding("c", "by-client", key_is_client_id=True))
    )  # fmt: skip
    device = bench.connect("d")
    for place, name in enumerate(["a/b", "c", "unbound"], 1):
        device.send(Publish(name, b"x", 1, packet_id=place))
    assert device.received() == [], "the third waits for the others"
    bench.store()
    assert device.received() == [Acknowledgement(PUBACK, place) for place in (1, 2, 3)]
    lanes = {lane.topic: lane for lane in bench.stored}
    assert lanes["first"].keys == [b"a/b"]
    assert lanes["by-client"].keys == [b"d"]
    headers = dict(decode_headers(lanes["by-client"].headers[0]))
    assert headers["mqtt.topic"] == b"c"


def test_publishes_of_one_turn_share_an_append() -> None:
    bench = Bench()
    devices = [bench.connect(f"d{n}") for n in range(5)]
    for device in devices:
        device.send(*(Publish("a", b"x", 1, packet_id=n) for n in range(1, 4)))
    assert bench.store() == 15
    assert len(bench.stored) == 1
    for device in devices:
        assert [each.packet_id for each in device.received()] == [1, 2, 3]  # type: ignore[union-attr]


@versions
def test_publishes_that_come_together_are_stored_as_if_they_came_alone(version: int) -> None:
    benches = Bench(), Bench()
    devices = [bench.connect("d", version=version) for bench in benches]
    for device in devices:  # the names must be known
        device.send(Publish("a", b"1", 1, packet_id=100), Publish("b", b"", 1, packet_id=101))
    sent = [
        Publish("b" if number % 5 == 0 else "a", b"x" * number, 1, packet_id=number)
        for number in range(1, 40)
    ]
    together, alone = devices
    together.send(*sent)
    for each in sent:
        alone.send(each)
    assert together.connection.inflow == alone.connection.inflow
    for bench in benches:
        bench.store()
    one, other = (bench.stored[-1] for bench in benches)
    assert one.columns() == other.columns() and one.principals() == other.principals()
    assert one.size_bytes == other.size_bytes
    answers = together.received()
    assert answers == alone.received()
    assert [one.packet_id for one in answers] == [100, 101, *range(1, 40)]  # type: ignore[union-attr]
    assert together.connection.inflow == Inflow()
    for attribute in ("received", "packets_received", "packets_sent"):
        both = [getattr(device.connection.traffic, attribute) for device in devices]
        assert both[0] == both[1], attribute
    assert len({bench.hub.counters.publishes_received for bench in benches}) == 1


def test_receive_maximum_is_enforced() -> None:
    """5.0 [MQTT-3.3.4-7] [MQTT-3.3.4-9]: the client's fault, and its connection's end."""
    bench = Bench(limits=Limits(receive_max=2, receive_maximum_exceeded="disconnect"))
    device = bench.connect("d", version=V5)
    assert device.connack.properties.receive_maximum == 2  # type: ignore[attr-defined]
    device.send(*(Publish("a", b"x", 1 + n % 2, packet_id=n + 1) for n in range(2)))
    bench.store()
    device.received()
    device.send(Publish("a", b"x", 1, packet_id=5))  # one QoS 2 is unfinished still
    bench.store()
    device.received()
    device.send(*(Publish("a", b"x", 2, packet_id=n) for n in (6, 7)))
    assert disconnected_with(device) == Reason.RECEIVE_MAXIMUM_EXCEEDED


def test_a_client_beyond_the_receive_maximum_is_read_no_further_until_it_is_answered() -> None:
    """Nothing of what it sent is lost, and its connection stays."""
    bench = Bench(limits=Limits(receive_max=2))
    device = bench.connect("d", version=V5)
    device.send(*(Publish("a", b"x", 1, packet_id=n) for n in (1, 2)))
    assert not device.connection.overloaded
    device.send(*(Publish("a", b"x", 1, packet_id=n) for n in (3, 4, 5)))
    assert device.connection.overloaded
    assert bench.store() == 5
    assert not device.connection.overloaded
    assert len(device.received()) == 5
    assert not device.closed


def test_publishes_that_wait_for_their_release_do_not_keep_it_from_being_read() -> None:
    bench = Bench(limits=Limits(receive_max=2))
    device = bench.connect("d", version=V5)
    device.send(*(Publish("a", b"x", 2, packet_id=n) for n in range(1, 10)))
    assert device.connection.overloaded
    bench.store()
    assert not device.connection.overloaded
    device.send(*(Acknowledgement(PacketType.PUBREL, n) for n in range(1, 10)))
    assert not device.closed
    assert len(device.received()) == 18


def test_publishes_at_qos_0_do_not_count_against_the_receive_maximum() -> None:
    bench = Bench(limits=Limits(receive_max=2), bindings=(Binding("#", "mqtt", stores_qos_0=True),))
    device = bench.connect("d", version=V5)
    device.send(*(Publish("a", b"x") for _ in range(5)), Publish("a", b"x", 1, packet_id=1))
    assert not device.connection.overloaded


def test_topic_aliases() -> None:
    """5.0 [MQTT-3.3.2-12]: an alias stands for the name it was last set to, on this connection."""
    bench = Bench(limits=Limits(topic_alias_max=2))
    device = bench.connect("d", version=V5)
    alias = Properties(topic_alias=2)
    device.send(Publish("a", b"1", 1, packet_id=1, properties=alias))
    device.send(Publish("", b"2", 1, packet_id=2, properties=alias))
    device.send(Publish("b", b"3", 1, packet_id=3, properties=alias))
    device.send(Publish("", b"4", 1, packet_id=4, properties=alias))
    bench.store()
    assert bench.stored[0].keys == [b"a", b"a", b"b", b"b"]
    device.received()
    device.send(Publish("", b"5", 1, packet_id=5, properties=Properties(topic_alias=1)))
    assert disconnected_with(device) == Reason.PROTOCOL_ERROR


@pytest.mark.parametrize("alias", [0, 3])
def test_topic_alias_out_of_range(alias: int) -> None:
    """5.0 [MQTT-3.3.2-8] [MQTT-3.3.2-9]"""
    bench = Bench(limits=Limits(topic_alias_max=2))
    device = bench.connect("d", version=V5)
    device.send(Publish("a", b"1", properties=Properties(topic_alias=alias)))
    assert disconnected_with(device) == Reason.TOPIC_ALIAS_INVALID


def test_empty_topic_name_is_refused() -> None:
    bench = Bench()
    old, new = bench.connect("a"), bench.connect("b", version=V5)
    old.send(Publish("", b"x"))
    new.send(Publish("", b"x"))
    assert old.closed
    assert disconnected_with(new) == Reason.PROTOCOL_ERROR


def test_reading_stops_while_too_much_is_being_stored() -> None:
    bench = Bench(limits=Limits(appends_inflight_max=2, appends_inflight_max_bytes=100))
    device = bench.connect("d")
    device.send(*(Publish("a", b"x", 1, packet_id=n) for n in (1, 2)))
    assert not device.connection.overloaded
    device.send(Publish("a", b"x", 1, packet_id=3))
    assert device.connection.overloaded
    bench.store()
    assert not device.connection.overloaded
    device.send(Publish("a", b"x" * 101, 1, packet_id=1))
    assert device.connection.overloaded
    bench.store()
    assert (device.connection.inflow.appends, device.connection.inflow.appends_bytes) == (0, 0)


def test_reading_stops_while_one_publish_holds_back_too_many_answers() -> None:
    bench = Bench(
        limits=Limits(appends_inflight_max=2),
        bindings=(Binding("a", "slow"), Binding("b", "quick")),
    )
    device = bench.connect("d", version=V5)
    device.send(Publish("a", b"x", 1, packet_id=1))
    (slow,) = bench.hub.outbox.appends.take()
    for packet_id in (2, 3):
        assert not device.connection.overloaded
        device.send(Publish("b", b"x", 1, packet_id=packet_id))
        bench.store()
    assert device.received() == [] and device.connection.inflow.appends == 1
    assert device.connection.overloaded
    slow.settle([0], Placed(0, Offset(0)), bench.now_ms)
    assert not device.connection.overloaded
    assert [each.packet_id for each in device.received()] == [1, 2, 3]  # type: ignore[union-attr]


def test_properties_travel_as_record_headers_and_back() -> None:
    bench = Bench()
    device = bench.connect("d", version=V5)
    watcher, old = bench.connect("w", version=V5), bench.connect("o")
    watcher.subscribe("#", qos=1)
    old.subscribe("#", qos=1)
    properties = Properties(
        payload_format=1, content_type="text/plain", response_topic="answers/here",
        correlation_data=b"\x00\xff", message_expiry_s=60,
        user_properties=(("unit", "K"), ("unit", "C"), ("mqtt.retain", "1")),
    )  # fmt: skip
    device.send(Publish("t", b"20", 1, packet_id=1, properties=properties))
    bench.store()
    assert decode_headers(bench.stored[0].headers[0]) == (
        ("mqtt.client", b"d"), ("mqtt.qos", b"1"), ("mqtt.payload_format", b"1"),
        ("mqtt.message_expiry_s", b"60"), ("mqtt.content_type", b"text/plain"),
        ("mqtt.response_topic", b"answers/here"), ("mqtt.correlation_data", b"\x00\xff"),
        ("unit", b"K"), ("unit", b"C"), ("mqtt.user.mqtt.retain", b"1"),
    )  # fmt: skip
    got = watcher.one()
    assert got.properties == properties
    assert not got.retain
    assert old.one().payload == b"20"
