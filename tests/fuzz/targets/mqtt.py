"""MQTT: what clients send, and what the internal topics keep. A target raises when the broker is
wrong: no crash, no hang, nobody else touched, memory bounded.
"""

from __future__ import annotations

import contextlib

from lakemq.broker_core.api.cluster.channels import Peer as PeerNode
from lakemq.broker_core.api.errors import CorruptBatch, InvalidRequest
from lakemq.broker_core.api.records.batch import RecordBatch
from lakemq.broker_core.api.records.batch import encode as encode_batch
from lakemq.broker_core.api.records.headers import decode_headers, encode_headers
from lakemq.broker_core.api.topic_filters import filters_overlap, matches
from lakemq.broker_core.api.types import ANONYMOUS, Columns, CommittedBatch, Offset, Principal
from lakemq.plugins.mqtt.bridge.records import BridgeRecordReader, packet_id_of
from lakemq.plugins.mqtt.bridge.rules import Rule, Rules
from lakemq.plugins.mqtt.feeds import express
from lakemq.plugins.mqtt.homes import frames
from lakemq.plugins.mqtt.homes.table import Claim, Owner
from lakemq.plugins.mqtt.interest import frames as interest_frames
from lakemq.plugins.mqtt.interest.hashes import Hasher
from lakemq.plugins.mqtt.interest.others import OthersInterest
from lakemq.plugins.mqtt.limits import Limits
from lakemq.plugins.mqtt.ops.system_topics import OWN, SUMMED, read_values, summed
from lakemq.plugins.mqtt.routing.bans import Ban, BanRules, Bans, check_ban
from lakemq.plugins.mqtt.routing.delayed import Delayed, delayed_bytes, read_delayed, split_delayed
from lakemq.plugins.mqtt.routing.history import parse_start
from lakemq.plugins.mqtt.server.ban_log import read_ban
from lakemq.plugins.mqtt.state.delivery import Delivery, DeliveryLimits
from lakemq.plugins.mqtt.state.records import RecordReader, parse_headers
from lakemq.plugins.mqtt.state.sessions import Session
from lakemq.plugins.mqtt.state.snapshots import (
    BadSnapshot,
    positions_bytes,
    read_positions,
    read_retained,
    read_session,
    read_source,
    retained_bytes,
    session_bytes,
    source_bytes,
)
from lakemq.plugins.mqtt.wire.codec import Decoder
from lakemq.plugins.mqtt.wire.encoding import encode
from lakemq.plugins.mqtt.wire.messages import Message, Place
from lakemq.plugins.mqtt.wire.packets import (
    V5,
    V31,
    V311,
    Connect,
    PacketType,
    Properties,
    Publish,
    PublishRun,
    StoredRun,
    Will,
)
from lakemq.plugins.mqtt.wire.primitives import Reader
from lakemq.plugins.mqtt.wire.properties import (
    WILL,
    bare_properties,
    read_properties,
    write_properties,
)
from lakemq.plugins.mqtt.wire.proxy import ProxyError, parse_proxy_header
from lakemq.plugins.mqtt.wire.reasons import MqttError
from lakemq.plugins.mqtt.wire.topics import (
    TopicNames,
    check_topic_filter,
    check_topic_name,
    parse_filter,
    split_replay,
)
from tests.fuzz.registry import Values, packed, pieces, target
from tests.support.mqtt.bench import Bench

PACKET_MAX_BYTES = 4096
VERSIONS = (V31, V311, V5)
LIMITS = Limits(
    packet_max_bytes=PACKET_MAX_BYTES,
    sessions_max=8,
    subscriptions_max=8,
    receive_max=8,
    topic_alias_max=4,
    connections_max=8,
)


@target("mqtt.codec")
def codec(data: bytes) -> None:
    """Packets come out alike however the bytes were cut; what is held is bounded; what was decoded
    can be encoded and decodes to the same."""
    if not data:
        return
    version = VERSIONS[data[0] % 3]
    cut, data = data[0] // 3 + 1, data[1:]
    whole = Decoder(PACKET_MAX_BYTES, version=version)
    packets = whole.feed(data)
    pieces = Decoder(PACKET_MAX_BYTES, version=version)
    again = []
    for start in range(0, len(data), cut):
        if pieces.error is not None:
            break
        again += pieces.feed(data[start : start + cut])
        assert pieces.held_bytes <= PACKET_MAX_BYTES + cut
    assert [repr(one) for one in packets] == [repr(one) for one in again]
    assert type(whole.error) is type(pieces.error)
    for packet in packets:
        assert not isinstance(packet, PublishRun | StoredRun)
        if isinstance(packet, Connect):
            continue
        (twin,) = Decoder(1 << 20, version=version).feed(encode(packet, version))
        assert repr(twin) == repr(packet)


@target("mqtt.connection", bytes_max=4096, weight=10)
def connection(data: bytes) -> None:
    """A client says anything, before or after it was let in; another one notices nothing."""
    if not data:
        return
    mode, data = data[0], data[1:]
    bench = Bench(limits=LIMITS, delivery=DeliveryLimits(inflight_max=4, queue_count_max=8))
    witness = bench.connect("witness", version=V5)
    witness.subscribe("witness/only", qos=1)
    version = VERSIONS[mode % 3]
    device = bench.connect("fuzzed", version=version) if mode & 4 else bench.dial(version)
    step = (mode >> 3) + 1
    for start in range(0, len(data), step):
        if device.closed:
            break
        device.send_bytes(data[start : start + step])
        if mode & 128:
            bench.store()
    bench.store()
    bench.pass_time(5_000)
    witness.received()  # it may have been told of something
    witness.send(Publish("witness/only", b"alive", 1, packet_id=1))
    bench.store()
    got = [each for each in witness.received() if isinstance(each, Publish)]
    assert b"alive" in [each.payload for each in got]
    assert not witness.closed
    assert len(bench.hub.sessions) <= LIMITS.sessions_max
    assert device.connection.decoder.held_bytes <= PACKET_MAX_BYTES + step


@target("mqtt.proxy")
def proxy(data: bytes) -> None:
    """A PROXY header is parsed, refused, or waits for more; never for more than it may be long."""
    try:
        header = parse_proxy_header(data)
    except ProxyError:
        return
    if header is None:
        assert len(data) < 16 + 65_535
    else:
        assert 0 < header.size_bytes <= len(data)


# ------------------------------------------------------------ parts of packets

PROPERTIES = Properties(
    payload_format=1,
    message_expiry_s=5,
    content_type="a",
    response_topic="b",
    correlation_data=b"c",
    user_properties=(("k", "v"), ("k", "w")),
)


@target(
    "mqtt.properties",
    seeds=[
        bytes((int(PacketType.PUBLISH),)) + write_properties(PROPERTIES),
        bytes((WILL,)) + write_properties(Properties(will_delay_s=7)),
        bytes((int(PacketType.CONNECT),)) + write_properties(Properties(session_expiry_s=7)),
        bytes((int(PacketType.PUBLISH),))
        + write_properties(Properties(user_properties=(("", ""),) * 400)),
    ],
    bytes_max=32_768,
)
def properties(data: bytes) -> None:
    """Properties are read or refused; what was read is written and reads the same."""
    if not data:
        return
    packet = data[0] % 16
    reader = Reader(data, 1, len(data))
    with contextlib.suppress(MqttError):
        found = read_properties(reader, packet)
        again = write_properties(found)
        assert read_properties(Reader(again, 0, len(again)), packet) == found


@target(
    "mqtt.names",
    seeds=[
        b"a/+/b/#\xff\x00\xffa/x/b/c",
        b"$share/g/a/#\xff\x00\xff$replay/earliest/a",
        b"$delayed/10/a\xff\x00\xff2026-03-01T12:30:00Z",
        b"+/+\xff\x00\xff$SYS/x",
    ],
)
def names(data: bytes) -> None:
    """Topic names and filters are taken or refused by the protocol's own errors."""
    one, other, *_ = [*pieces(data), b""]
    with contextlib.suppress(MqttError):
        name = TopicNames()[other]
        for parse in (parse_filter, split_replay, split_delayed, check_topic_name):
            with contextlib.suppress(MqttError):
                parse(name)
        with contextlib.suppress(MqttError):
            parse_start(name, 1_700_000_000_000)
        topic_filter = check_topic_filter(TopicNames()[one] or "#")
        if name and matches(topic_filter, check_topic_name(name)):
            assert filters_overlap(topic_filter, name)


# ------------------------------------------------------------ what is kept


def _session() -> bytes:
    session = Session("c", Principal("ann", roles=("r",)), DeliveryLimits(), incarnation="i")
    session.will = Will("w", b"x", 1, False, PROPERTIES)
    session.incoming = {1: Place("t", 0, 5)}
    session.released = {("t", 0): 9}
    message = Message("a", b"x", 1, True, 5, b"", 60, "me")
    session.outbound.inflight = {
        1: Delivery(message, 1, False, (3,)),
        2: Delivery(None, 2, True, (), place=Place("t", 1, 7)),
    }
    return session_bytes(session, {("t", 0): 3})


@target("mqtt.session", seeds=[_session(), b"\x81\x80\x00"])
def session(data: bytes) -> None:
    """A kept session is read, or is no snapshot."""
    for each in (data, packed({"v": 1} | _fields(data, "who inc exp end sub in rel out que pos"))):
        with contextlib.suppress(BadSnapshot):
            read_session("c", each)


@target(
    "mqtt.homes",
    seeds=[
        frames.claims_bytes([Claim("c", Owner("n", 1), ("user", "u"), False, True, False)]),
        frames.saves_bytes([frames.Saved("c", 5, 6, b"s", True, False)]),
        frames.record_bytes(frames.Record(5, Owner("n", 1), ("user", "u"), True, b"s")),
    ],
)
def homes(data: bytes) -> None:
    """What nodes say about sessions is read, or is no message."""
    built = packed({"v": 1} | _fields(data, "r p n of ep own usr urg st"))
    for each in (data, data[1:], built):
        with contextlib.suppress(BadSnapshot):
            frames.split(each)
        for read in (
            lambda said: frames.read_claims(Owner("n", 1), said),
            frames.read_asks,
            frames.read_saves,
            frames.read_owned_request,
            frames.read_owned,
            frames.read_known,
            frames.read_record,
        ):
            with contextlib.suppress(BadSnapshot):
                read(each)


@target(
    "mqtt.snapshots",
    seeds=[
        retained_bytes(Message("a/b", b"x", 1, True, 5, bare_properties(PROPERTIES), 60, "me")),
        positions_bytes({("t", 0): 3}),
        delayed_bytes(
            Delayed("k", 9, Publish("a", b"x", 1, properties=PROPERTIES), "c", ANONYMOUS)
        ),
        packed({"until": 5, "why": "x"}),
        source_bytes(Place("t", 1, 2), "00" * 16),
    ],
)
def snapshots(data: bytes) -> None:
    """Retained messages, positions, delayed publishes and bans are read, or are no snapshots."""
    built = packed({"v": 1} | _fields(data, "m pos due what from who until why"))
    for each in (data, built):
        for read in (
            read_retained,
            read_positions,
            read_source,
            lambda kept: read_delayed("k", kept),
        ):
            with contextlib.suppress(BadSnapshot):
                read(each)
        bans = Bans(BanRules())
        with contextlib.suppress(BadSnapshot, InvalidRequest):
            bans.impose(read_ban("client_id", "c", each))
        bans.reason_to_refuse("c", "u", "::1", 5)
        bans.list_all(5)
    with contextlib.suppress(InvalidRequest):
        check_ban(Ban("host", data.decode("latin-1")))


def _fields(data: bytes, names: str) -> dict[str, object]:
    return dict(zip(names.split(), Values(data).values(), strict=False))


# ------------------------------------------------------------ records

HEADERS = encode_headers(
    (("mqtt.topic", b"a/b"), ("mqtt.qos", b"2"), ("mqtt.retain", b"1"), ("mqtt.client", b"c"),
     ("mqtt.qos2_id", b"i/7"), ("mqtt.message_expiry_s", b"60"), ("mqtt.user.x", b"y"),
     ("mqtt.response_topic", b"r"), ("mqtt.payload_format", b"1"), ("k", b"v"))
)  # fmt: skip
RULES = Rules(
    [
        Rule(True, True, "#", "in/", "out/", 1, "t"),
        Rule(True, False, "+/a", "", "x/", 2, "t"),
    ]
)


@target(
    "mqtt.records",
    seeds=[
        HEADERS + b"\xff\x00\xffin/a",
        encode_headers((("mqtt.qos2_id", "i/²".encode()),)),
        encode_headers((("mqtt.qos2_id", b"i/" + b"9" * 5000),)),
    ],
)
def records(data: bytes) -> None:
    """What any producer wrote into a bound topic is read or counted as unreadable, by MQTT and by
    bridges."""
    headers, key, *_ = [*pieces(data), b""]
    with contextlib.suppress(CorruptBatch):
        parse_headers(decode_headers(headers))
    batch = encode_batch(Columns([b"x", None], [key, None], [headers, b""], [1, 2]))
    list(RecordReader(TopicNames()).read(CommittedBatch("t", 0, Offset(0), batch)))
    for row in BridgeRecordReader().rows([RecordBatch(batch)], 0):
        RULES.remote("t", row.name)
        RULES.local(row.name)
        packet_id_of(row.qos_2_id, "l")
        packet_id_of(f"bridge:l/{row.name}", "l")


@target("mqtt.broken_batches", seeds=[encode_batch(Columns([b"x"], [b"a"], [HEADERS], [1]))])
def broken_batches(data: bytes) -> None:
    """A batch that is broken is refused as CorruptBatch, whoever reads it."""
    with contextlib.suppress(CorruptBatch):
        list(RecordReader(TopicNames()).read(CommittedBatch("t", 0, Offset(0), data)))
    with contextlib.suppress(CorruptBatch):
        list(BridgeRecordReader().rows([RecordBatch(data)], 0))


@target("mqtt.interest", seeds=[
    interest_frames.encode(
        interest_frames.nothing(interest_frames.Kind.WHOLE, 3)._replace(
            texts_added=["a/+", "#"], groups=[("g", "a", interest_frames.Members(1, 0))],
        )
    ),
])  # fmt: skip
def interest(data: bytes) -> None:
    """What another node says of its interest: it is read whole, or refused."""
    with contextlib.suppress(BadSnapshot):
        said = interest_frames.decode(data)
        assert interest_frames.decode(interest_frames.encode(said)) == said
        others, peer = OthersInterest(Hasher("fuzz")), PeerNode("n", 1)
        others.begun(peer)
        others.said(peer, said)
        others.who("a/b")
        others.ended(peer)
        assert others.who("a/b") == ()


@target("mqtt.system", seeds=[packed({"version": "LakeMQ 1", "clients/total": "7"})])
def system_values(data: bytes) -> None:
    """What another node counts: it is added up, or refused."""
    for each in (data, packed(_fields(data, "version uptime clients/total bytes/sent"))):
        with contextlib.suppress(BadSnapshot):
            values = read_values(each)
            assert set(summed(values, {"n": values})) <= {*SUMMED, *OWN}


@target("mqtt.express", seeds=[
    express.pack([express.encode(Message("a/b", b"x", 1, False, 0, b"", 9, "d"), 7, 0)] * 2),
])  # fmt: skip
def express_batches(data: bytes) -> None:
    """Publishes of another node: they are read whole, or refused."""
    with contextlib.suppress(BadSnapshot):
        for message, number in express.unpack(data, 1):
            assert express.unpack(express.pack([express.encode(message, number, 1)]), 1)
