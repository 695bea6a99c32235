"""Goal: no sequence of packets or bytes crashes a connection, touches another one, or makes memory
grow: whatever comes, the broker answers or closes.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lakemq.broker_core.api.errors import LakeMQError, StorageFull, Unavailable
from lakemq.plugins.mqtt.limits import Limits
from lakemq.plugins.mqtt.state.delivery import DeliveryLimits
from lakemq.plugins.mqtt.wire.encoding import encode
from lakemq.plugins.mqtt.wire.packets import (
    NO_PROPERTIES,
    V5,
    V31,
    V311,
    Acknowledgement,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Filter,
    PacketType,
    Ping,
    Properties,
    Publish,
    Subscribe,
    Unsubscribe,
    Will,
)
from tests.support.mqtt.bench import Bench, Device
from tests.support.seeds import examples

TIGHT = Limits(
    packet_max_bytes=2000,
    sessions_max=20,
    subscriptions_max=5,
    receive_max=4,
    topic_alias_max=2,
    client_id_max_bytes=40,
    connections_max=30,
)
names = st.sampled_from(["a", "", "a/b", "", "b/c", "$SYS/x", "$share/g/a", "a/#", "+", "x" * 300])
ids = st.integers(0, 6)
qos = st.integers(0, 2)
few = st.none() | st.integers(0, 3)
any_properties = st.builds(
    Properties,
    message_expiry_s=few,
    topic_alias=few,
    session_expiry_s=few,
    reason_string=st.none() | st.just("why"),
    authentication_method=st.none() | st.just("M"),
)
none = st.just(NO_PROPERTIES)
publish_properties = none | st.builds(
    Properties,
    message_expiry_s=few,
    topic_alias=few,
    response_topic=st.none() | names,
    user_properties=st.just(()) | st.just((("k", "v"),)),
)
connect_properties = none | st.builds(
    Properties,
    session_expiry_s=few,
    receive_maximum=st.none() | st.integers(1, 3),
    packet_max_bytes=st.none() | st.integers(1, 60),
    topic_alias_maximum=few,
)
will_properties = none | st.builds(Properties, will_delay_s=few, message_expiry_s=few)
subscribe_properties = none | st.just(Properties(subscription_identifiers=(7,)))
disconnect_properties = none | st.builds(Properties, session_expiry_s=few)


def mostly(
    valid: st.SearchStrategy[Properties],
) -> st.SearchStrategy[Properties]:
    """Properties that the packet may have, and now and then others."""
    return st.one_of(valid, valid, valid, valid, any_properties)


acknowledgements = st.sampled_from(
    [PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP]
)
packets = st.one_of(
    st.builds(
        Publish, names, st.binary(max_size=20), qos, st.booleans(), st.booleans(), ids,
        mostly(publish_properties),
    ),
    st.builds(Acknowledgement, acknowledgements, ids, st.sampled_from([0, 0x10, 0x80, 0x92])),
    st.builds(
        Subscribe, ids,
        st.lists(st.builds(Filter, names, st.integers(0, 255)), max_size=4).map(tuple),
        mostly(subscribe_properties),
    ),
    st.builds(Unsubscribe, ids, st.lists(names, max_size=3).map(tuple), mostly(none)),
    st.builds(Ping, st.sampled_from([PacketType.PINGREQ, PacketType.PINGRESP])),
    st.builds(Disconnect, st.sampled_from([0, 4, 0x81, 3]), mostly(disconnect_properties)),
    st.builds(Auth, st.sampled_from([0, 0x18, 0x19])),
    st.builds(Connack),
    st.builds(
        Connect, st.sampled_from(["", "one", "two", "y" * 50]), st.sampled_from([V31, V311, V5]),
        st.booleans(), st.integers(0, 3), st.none() | names, st.none() | st.binary(max_size=5),
        st.none() | st.builds(
            Will, names, st.binary(max_size=5), qos, st.booleans(), mostly(will_properties)
        ),
        mostly(connect_properties),
    ),
)  # fmt: skip


def written(packet: Any, version: int) -> bytes:
    """The packet on the wire, wrong or not; what cannot even be written is a ping."""
    try:
        return encode(packet, packet.version if isinstance(packet, Connect) else version)
    except (ValueError, OverflowError):
        return b"\xc0\x00"


def make_bench() -> tuple[Bench, Device]:
    delivery = DeliveryLimits(inflight_max=3, queue_count_max=5, queue_max_bytes=2000)
    bench = Bench(limits=TIGHT, delivery=delivery)
    witness = bench.connect("witness", version=V5)
    witness.subscribe("witness/only", qos=1)
    return bench, witness


def still_well(bench: Bench, witness: Device) -> None:
    """Another client notices nothing."""
    assert not witness.closed
    witness.send(Publish("witness/only", b"alive", 1, packet_id=1))
    bench.store()
    got = [each for each in witness.received() if isinstance(each, Publish)]
    assert [each.payload for each in got] == [b"alive"]


def bounded(bench: Bench) -> None:
    hub = bench.hub
    assert len(hub.sessions) <= TIGHT.sessions_max
    for session in hub.sessions.values():
        assert len(session.subscriptions) <= TIGHT.subscriptions_max
        assert len(session.outbound.inflight) <= 3 + 1
        assert len(session.outbound.queue or ()) <= 5
    for connection in hub.connections:
        assert connection.decoder.held_bytes <= TIGHT.packet_max_bytes
        assert len(connection.aliases) <= TIGHT.topic_alias_max


one_packet = st.tuples(st.just("packet"), packets)
moves = st.one_of(
    *[one_packet] * 8,
    st.tuples(st.just("store"), st.sampled_from([None, Unavailable("x"), StorageFull("x")])),
    st.tuples(st.just("time"), st.integers(0, 20)),
    st.tuples(st.just("block"), st.booleans()),
    st.tuples(st.just("lose"), st.none()),
)


@given(st.sampled_from([V31, V311, V5]), st.lists(moves, min_size=5, max_size=40))
@settings(max_examples=examples(150), deadline=None)
def test_no_sequence_of_packets_breaks_the_broker(
    version: int, script: list[tuple[str, Any]]
) -> None:
    bench, witness = make_bench()

    def begin() -> Device:
        device = bench.dial(version)
        kept = Properties(session_expiry_s=30) if version == V5 else NO_PROPERTIES
        device.send(Connect("fuzzer", version, False, 5, properties=kept))
        device.connection.authenticated(witness.connection.principal, bench.now_ms)
        return device

    device = begin()
    for kind, value in script:
        perform(bench, device, kind, value)
        if device.connection.ended or kind == "lose":
            device = begin()
        bounded(bench)
    bench.store()
    still_well(bench, witness)


def perform(bench: Bench, device: Device, kind: str, value: Any) -> None:
    if kind == "packet":
        device.send_bytes(written(value, device.version))
    elif kind == "store":
        error: LakeMQError | None = value
        bench.store(error)
    elif kind == "time":
        bench.now_ms += value * 1000  # the witness has no keep-alive; the fuzzer has
        bench.hub.tick(bench.now_ms)
    elif kind == "block":
        device.connection.blocked = value
        if not value:
            device.connection.unblocked(bench.now_ms)
    else:
        device.lose()
    device.raw()


@given(st.lists(st.binary(max_size=60), max_size=8), st.sampled_from([0, V311, V5]))
@settings(max_examples=examples(150), deadline=None)
def test_no_bytes_break_the_broker(pieces: list[bytes], version: int) -> None:
    bench, witness = make_bench()
    device = bench.connect("fuzzer", version=version) if version else bench.dial()
    for piece in pieces:
        device.send_bytes(piece)
        if device.connection.credentials is not None:
            device.connection.authenticated(witness.connection.principal, bench.now_ms)
        bounded(bench)
    bench.store()
    still_well(bench, witness)


@given(packets, st.data(), st.sampled_from([V311, V5]))
@settings(max_examples=examples(150), deadline=None)
def test_no_damaged_packet_breaks_the_broker(
    packet: Any, data: st.DataObject, version: int
) -> None:
    bench, witness = make_bench()
    device = bench.connect("fuzzer", version=version)
    stream = bytearray(written(packet, version))
    for _ in range(data.draw(st.integers(1, 3))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    device.send_bytes(bytes(stream) * 2)
    bench.store()
    bounded(bench)
    still_well(bench, witness)
