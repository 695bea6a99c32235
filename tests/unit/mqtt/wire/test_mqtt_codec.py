"""Goal: packets survive the wire both ways, in any pieces, and nothing else gets through."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemq.plugins.mqtt.wire.codec import Decoder
from lakemq.plugins.mqtt.wire.encoding import encode
from lakemq.plugins.mqtt.wire.packets import (
    NO_PROPERTIES,
    V5,
    V31,
    V311,
    Acknowledgement,
    AcknowledgementRun,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Filter,
    Packet,
    PacketType,
    Ping,
    Properties,
    Publish,
    PublishRun,
    StoredRun,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
)
from lakemq.plugins.mqtt.wire.reasons import (
    MalformedPacket,
    MqttError,
    PacketTooLarge,
    ProtocolError,
    Reason,
)
from tests.support.seeds import examples, seeds

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
names = st.text("abc/é$ ", min_size=1, max_size=20)
ids = st.integers(1, 65_535)
pairs = st.lists(st.tuples(texts, texts), max_size=3).map(tuple)


def some(strategy: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.none() | strategy


u32 = st.integers(0, 0xFFFF_FFFF)
publish_properties = st.just(NO_PROPERTIES) | st.builds(
    Properties,
    payload_format=some(st.integers(0, 1)),
    message_expiry_s=some(u32),
    content_type=some(texts),
    response_topic=some(names),
    correlation_data=some(st.binary(max_size=20)),
    subscription_identifiers=st.lists(st.integers(1, 268_435_455), max_size=3).map(tuple),
    topic_alias=some(st.integers(0, 65_535)),
    user_properties=pairs,
)
why = st.just(NO_PROPERTIES) | st.builds(Properties, reason_string=texts, user_properties=pairs)
will_properties = st.just(NO_PROPERTIES) | st.builds(
    Properties, will_delay_s=some(u32), message_expiry_s=some(u32), user_properties=pairs
)
connect_properties = st.just(NO_PROPERTIES) | st.builds(
    Properties,
    session_expiry_s=some(u32),
    receive_maximum=some(ids),
    packet_max_bytes=some(st.integers(1, 0xFFFF_FFFF)),
    topic_alias_maximum=some(st.integers(0, 65_535)),
    request_problem_information=some(st.integers(0, 1)),
    request_response_information=some(st.integers(0, 1)),
    user_properties=pairs,
)

subscribe_properties = st.just(NO_PROPERTIES) | st.builds(
    Properties,
    subscription_identifiers=st.integers(1, 268_435_455).map(lambda one: (one,)),
    user_properties=pairs,
)

filters = texts.filter(lambda text: text and not text.startswith("$share/"))


def publishes(properties: st.SearchStrategy[Properties]) -> st.SearchStrategy[Publish]:
    plain = st.builds(
        Publish, names, st.binary(max_size=300), st.just(0), st.booleans(), properties=properties
    )
    assured = st.builds(
        Publish, names, st.binary(max_size=300), st.integers(1, 2), st.booleans(), st.booleans(),
        ids, properties,
    )  # fmt: skip
    return plain | assured


def packets(version: int) -> st.SearchStrategy[Packet]:
    five = version == V5
    none = st.just(NO_PROPERTIES)
    reason = why if five else none
    options = st.integers(0, 2) | (st.just(0x2E) if five else st.just(0))
    return st.one_of(
        publishes(publish_properties if five else none),
        st.builds(
            Connect,
            texts,
            st.just(version),
            st.booleans(),
            st.integers(0, 65_535),
            texts,
            some(st.binary(max_size=20)),
            some(
                st.builds(
                    Will, names, st.binary(max_size=20), st.integers(0, 2), st.booleans(),
                    will_properties if five else none,
                )
            ),
            connect_properties if five else none,
        ),
        st.builds(Connack, st.booleans(), st.integers(0, 5), reason),
        st.builds(
            Acknowledgement,
            st.sampled_from(
                [PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP]
            ),
            ids,
            st.just(0),
            reason,
        ),
        st.builds(
            Subscribe, ids,
            st.lists(st.builds(Filter, filters, options), min_size=1, max_size=4).map(tuple),
            subscribe_properties if five else none,
        ),
        st.builds(Suback, ids, st.lists(st.sampled_from([0, 1, 2, 0x80])).map(tuple), reason),
        st.builds(Unsubscribe, ids, st.lists(filters, min_size=1, max_size=4).map(tuple),
                  st.builds(Properties, user_properties=pairs) if five else none),
        st.builds(Unsuback, ids, st.lists(st.sampled_from([0, 0x11])).map(tuple) if five
                  else st.just(()), reason),
        st.builds(Ping, st.sampled_from([PacketType.PINGREQ, PacketType.PINGRESP])),
        st.builds(Disconnect, st.sampled_from([0, 4, 0x8E]) if five else st.just(0), reason),
        *([st.builds(Auth, st.sampled_from([0, 0x18]), reason)] if five else []),
    )  # fmt: skip


def decoder_for(packet: Packet, version: int) -> Decoder:
    return Decoder(1 << 20, version=0 if isinstance(packet, Connect) else version)


versions = st.sampled_from([V31, V311, V5])


@given(st.data(), versions)
@settings(max_examples=examples(120), deadline=None)
def test_every_packet_survives_encoding_and_decoding(data: st.DataObject, version: int) -> None:
    packet = data.draw(packets(version))
    decoder = decoder_for(packet, version)
    (decoded,) = decoder.feed(encode(packet, version)) or [decoder.error]
    assert decoded == packet


@given(st.data(), versions)
@settings(max_examples=examples(100), deadline=None)
def test_packets_come_out_alike_however_the_bytes_are_cut(
    data: st.DataObject, version: int
) -> None:
    sent = data.draw(st.lists(publishes(st.just(NO_PROPERTIES)), min_size=1, max_size=8))
    stream = b"".join(encode(each, version) for each in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    decoder = Decoder(1 << 20, version=version)
    found: list[Packet] = []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += decoder.feed(stream[begin:end])
    assert found == sent
    assert decoder.held_bytes == 0


@given(st.data(), st.sampled_from([V311, V5]))
@settings(max_examples=examples(100), deadline=None)
def test_express_runs_hold_the_same_publishes(data: st.DataObject, version: int) -> None:
    """What comes as runs, decoded again, is what was sent; nothing but plain publishes to the name
    hides in a run."""
    some_names = st.sampled_from(["a", "a/b", "b"])
    payloads = st.binary(max_size=150) | st.just(b"same")
    plain = st.builds(Publish, some_names, payloads)
    acknowledged = st.builds(Publish, some_names, payloads, st.just(1), packet_id=ids)
    others = st.builds(
        Publish, some_names, payloads, st.integers(1, 2), st.booleans(), st.booleans(),
        packet_id=ids, properties=st.just(NO_PROPERTIES) | st.just(Properties(content_type="x")),
    )  # fmt: skip
    retained = st.builds(Publish, some_names, st.just(b"r"), retain=st.just(True))
    kinds = (plain, plain, plain, acknowledged, acknowledged, others, retained)
    sent = data.draw(st.lists(st.one_of(*kinds), max_size=30))
    if version == V311:
        sent = [replace(each, properties=NO_PROPERTIES) for each in sent]
    stream = b"".join(encode(each, version) for each in sent)
    cut = data.draw(st.integers(0, len(stream)))
    decoder = with_runs(Decoder(1 << 20, version=version), "a", "a/b")
    found = decoder.feed(stream[:cut]) + decoder.feed(stream[cut:])
    assert decoder.error is None
    assert unrolled(found, version) == sent


ACKNOWLEDGEMENTS: Final = (
    PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP,
)  # fmt: skip


def with_runs(decoder: Decoder, *names: str) -> Decoder:
    decoder.express = {b"c": None}
    decoder.stored = decoder.stored_2 = {name.encode(): name for name in names}
    decoder.runs = True
    return decoder


def unrolled(packets: list[Packet], version: int) -> list[Packet | MqttError]:
    """Those of runs one by one, up to one in them that can't be decoded: then its error."""
    found: list[Packet | MqttError] = []
    for each in packets:
        if isinstance(each, PublishRun):
            for run in each.one_by_one():
                decoder = Decoder(1 << 20, version=version)
                inside = decoder.feed(run.packets)
                if decoder.error is not None:
                    return [*found, decoder.error]
                (one,) = inside
                assert isinstance(one, Publish)
                assert (one.topic.encode(), len(run.packets)) == (*run.names, *run.sizes)
                found.append(one)
            assert sum(each.sizes) == len(each.packets)
        elif isinstance(each, StoredRun):
            found += [
                Publish(each.route, payload, each.qos, packet_id=packet_id)
                for packet_id, payload in zip(each.packet_ids, each.payloads, strict=True)
            ]
        elif isinstance(each, AcknowledgementRun):
            found += [Acknowledgement(each.type, one) for one in each.packet_ids]
        else:
            found.append(each)
    return found


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("seed", seeds(300))
def test_runs_hide_nothing_that_is_wrong(seed: int, version: int) -> None:
    """Of bytes that were changed, or are more than allowed, the same comes out as without runs."""
    chance = random.Random(seed)
    often = chance.choice([0, 1, 2])
    sent = [
        Publish(name, bytes(chance.choice([0, 9, 9, 120, 130, 300])), qos, packet_id=packet_id)
        for packet_id in chance.choices(range(50), k=chance.choice([1, 12]))
        for qos in [chance.choice([often, often, often, 1, 2])]
        for name in ["a" if qos else chance.choice(["a", "a", "a/b", "c"])]
    ]
    stream = bytearray(b"".join(encode(each, version) for each in sent))
    for _ in range(chance.randrange(3)):
        stream[chance.randrange(len(stream))] = chance.choice(
            [0, 1, 2, 0x32, 0x34, 0x3A, 0x80, 0xFF]
        )
    most = chance.choice([200, 1 << 20])
    runs, plain = Decoder(most, version=version), Decoder(most, version=version)
    with_runs(runs, "a", "a/b")
    found, expected = unrolled(runs.feed(bytes(stream)), version), plain.feed(bytes(stream))
    if found and isinstance(found[-1], MqttError):
        assert (found[:-1], str(found[-1])) == (expected, str(plain.error))
        return
    assert found == expected
    assert str(runs.error) == str(plain.error)
    assert runs.held_bytes == plain.held_bytes


@pytest.mark.parametrize("version", [V31, V311, V5])
@pytest.mark.parametrize("seed", seeds(300))
def test_runs_of_acknowledgements_hide_nothing_that_is_wrong(seed: int, version: int) -> None:
    """However the bytes are cut, and whatever comes between: what comes one by one otherwise."""
    chance = random.Random(seed)
    ping, reason = Ping(PacketType.PINGREQ), Reason.UNSPECIFIED_ERROR if version == V5 else 0
    often, other = chance.sample(ACKNOWLEDGEMENTS, 2)
    sent: list[Packet] = [
        chance.choice([
            Acknowledgement(often, packet_id),
            Acknowledgement(often, packet_id),
            Acknowledgement(often, packet_id, reason if often in ACKNOWLEDGEMENTS[:2] else 0),
            Acknowledgement(other, packet_id), ping,
        ] if chance.random() < 0.2 else [Acknowledgement(often, packet_id)])
        for packet_id in chance.choices(
            range(1, chance.choice([9, 65_536])), k=chance.choice([2, 30, 700])
        )
    ]  # fmt: skip
    stream = bytearray(b"".join(encode(each, version) for each in sent))
    for _ in range(chance.randrange(3)):
        stream[chance.randrange(len(stream))] = chance.choice(
            [0, 1, 2, 3, 0x40, 0x41, 0x50, 0x60, 0x62, 0x70, 0x72, 0x80, 0xFF]
        )
    runs, plain = with_runs(Decoder(200, version=version)), Decoder(200, version=version)
    cut, found, expected = chance.randrange(len(stream)), list[Packet](), list[Packet]()
    for part in (bytes(stream[:cut]), bytes(stream[cut:])):
        if runs.error is None:
            found += runs.feed(part)
        if plain.error is None:
            expected += plain.feed(part)
    assert unrolled(found, version) == expected
    assert str(runs.error) == str(plain.error)
    assert runs.held_bytes == plain.held_bytes


@pytest.mark.parametrize("kind", ACKNOWLEDGEMENTS, ids=lambda kind: kind.name)
def test_acknowledgements_that_come_together_are_one_run(kind: PacketType) -> None:
    sent = [Acknowledgement(kind, packet_id) for packet_id in range(1, 101)]
    decoder = with_runs(Decoder(200, version=V5))
    data = b"".join(encode(each, V5) for each in sent)
    assert decoder.feed(data) == [AcknowledgementRun(kind, list(range(1, 101)))]
    decoder.one_by_one = True
    assert decoder.feed(data) == sent[:1]


def decoded(data: bytes, version: int, packet_max_bytes: int = 1 << 20) -> list[Packet]:
    """Packets of one piece of bytes, those of runs to the name `a` one by one."""
    decoder = with_runs(Decoder(packet_max_bytes, version=version), "a")
    found = unrolled(decoder.feed(data), version)
    if decoder.error is not None:
        raise decoder.error
    return found


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("length", [6, 127, 128, 129, 16_383, 16_384])
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("version", [V311, V5])
def test_a_packet_that_comes_alone_is_decoded_as_among_others(
    version: int, qos: int, length: int, name: str
) -> None:
    """Of remaining lengths around those where they take one more byte."""
    rest = len(encode(Publish(name, b"", qos, packet_id=qos), version)) - 2
    packet = Publish(name, bytes(length - rest), qos, packet_id=qos)
    data = encode(packet, version)
    assert decoded(data, version) == [packet]
    assert decoded(data * 2, version) == [packet, packet]
    assert decoded(data[:-1], version) == []
    if length > 127:
        with pytest.raises(PacketTooLarge):
            decoded(data, version, len(data) - 1)


def test_a_publish_alone_at_qos_0_is_a_run_where_its_name_is_express() -> None:
    for version, properties in ((V311, b""), (V5, b"\0")):
        decoder = Decoder(1 << 20, version=version)
        decoder.runs = True
        decoder.express = {b"b": None}
        data = encode(Publish("a", bytes(150)), version)
        decoder.express = {b"a": "a"}
        assert decoder.feed(data) == [PublishRun((b"a",), (len(data),), data)]
        decoder.express = {b"b": None}
        assert decoder.feed(data) == [PublishRun([b"a"], [len(data)], data)]
        # no more than its name, and less than that
        body = b"\0\x01a" + properties
        data = b"0" + bytes([len(body)]) + body
        assert decoder.feed(data) == [PublishRun([b"a"], [len(data)], data)]
        decoder.feed(b"0\x03\0\x02a")
        assert isinstance(decoder.error, MalformedPacket)
    expiring = Publish("a", b"", properties=Properties(message_expiry_s=1))
    decoder = Decoder(1 << 20, version=V5)
    decoder.runs = True
    decoder.express = {b"b": None}
    assert decoder.feed(encode(expiring, V5)) == [expiring]
    closely = Publish("b", b"")
    assert decoder.feed(encode(closely, V5)) == [closely]
    assert decoder.feed(encode(closely, V5) * 2) == [closely, closely]


@given(st.binary(max_size=200), st.sampled_from([0, V31, V311, V5]))
@settings(max_examples=examples(100), deadline=None)
def test_no_bytes_crash_the_decoder(data: bytes, version: int) -> None:
    decoder = Decoder(256, version=version)
    decoder.runs = True
    decoder.feed(data)
    assert decoder.held_bytes <= 256


@given(st.data(), versions)
@settings(max_examples=examples(120), deadline=None)
def test_no_damage_crashes_the_decoder(data: st.DataObject, version: int) -> None:
    """One byte of a valid packet is changed: the decoder answers with packets or an error."""
    packet = data.draw(packets(version))
    stream = bytearray(encode(packet, version))
    stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    decoder = decoder_for(packet, version)
    decoder.feed(bytes(stream))


def error_of(data: bytes, version: int = V311, packet_max_bytes: int = 1 << 20) -> Exception | None:
    decoder = Decoder(packet_max_bytes, version=version)
    decoder.feed(data)
    return decoder.error


@pytest.mark.parametrize(
    ("data", "version", "kind"),
    [
        (b"\x00\x00", V311, MalformedPacket),  # packet type 0 [MQTT-2.1.3-1]
        (b"\x41\x02\x00\x01", V311, MalformedPacket),  # flags of PUBACK
        (b"\x60\x02\x00\x01", V311, MalformedPacket),  # PUBREL without its flags
        (b"\x80\x06\x00\x01\x00\x01a\x00", V311, MalformedPacket),  # SUBSCRIBE likewise
        (b"\x40\x02\x00\x00", V311, MalformedPacket),  # packet identifier 0 [MQTT-2.2.1-3]
        (b"\x32\x05\x00\x01a\x00\x00", V311, MalformedPacket),  # the same in PUBLISH
        (b"\x36\x05\x00\x01a\x00\x01", V311, MalformedPacket),  # QoS 3 [MQTT-3.3.1-4]
        (b"\x38\x03\x00\x01a", V311, MalformedPacket),  # DUP at QoS 0 [MQTT-3.3.1-2]
        (b"\x30\x03\x00\x09a", V311, MalformedPacket),  # topic name longer than the packet
        (b"\x30\x03\x00\x01\xff", V311, MalformedPacket),  # not UTF-8 [MQTT-1.5.4-1]
        (b"\x30\x05\x00\x03\xed\xa0\x80", V311, MalformedPacket),  # a surrogate
        (b"\x30\x03\x00\x01\x00", V311, MalformedPacket),  # U+0000 [MQTT-1.5.4-2]
        (b"\x30\x03\x00\x01#", V311, ProtocolError),  # wildcard [MQTT-3.3.2-2]
        (b"\x30\x81\x00", V311, MalformedPacket),  # length not shortest [MQTT-1.5.5-1]
        (b"\x30\xff\xff\xff\xff\x01", V311, MalformedPacket),  # length of five bytes
        (b"\x82\x02\x00\x01", V311, ProtocolError),  # no filter [MQTT-3.8.3-2]
        (b"\x82\x06\x00\x01\x00\x01a\x03", V311, MalformedPacket),  # QoS 3 in SUBSCRIBE
        (b"\x82\x06\x00\x01\x00\x01a\x04", V311, MalformedPacket),  # reserved bits
        (b"\x82\x07\x00\x01\x00\x00\x01a\x40", V5, MalformedPacket),
        (b"\x82\x07\x00\x01\x00\x00\x01a\x30", V5, ProtocolError),  # retain handling 3
        (b"\xa2\x02\x00\x01", V311, ProtocolError),
        (b"\xf0\x00", V311, MalformedPacket),  # AUTH before version 5
        (b"\xc0\x01\x00", V311, MalformedPacket),  # PINGREQ with a body
        (b"\xe0\x01\x00", V311, MalformedPacket),  # DISCONNECT with a body
        (b"\xe0\x01\x03", V5, MalformedPacket),  # unknown reason
        (b"\x30\x05\x00\x01a\x01\x7f", V5, MalformedPacket),  # unknown property
        (b"\x30\x06\x00\x01a\x02\x01\x02", V5, ProtocolError),  # payload format 2
        (b"\x30\x08\x00\x01a\x04\x01\x01\x01\x01", V5, ProtocolError),  # property twice
        (b"\x30\x06\x00\x01a\x02\x0b\x00", V5, ProtocolError),  # subscription identifier 0
        (b"\x30\x05\x00\x01a\x05\x01", V5, MalformedPacket),  # properties end behind the packet
        (b"\x30\x03\x00\x01a", V5, MalformedPacket),  # no property length
        (b"\x40\x04\x00\x01\x11\x00", V5, MalformedPacket),  # reason that PUBACK has not
    ],
)
def test_wrong_packets_are_refused(data: bytes, version: int, kind: type[Exception]) -> None:
    assert type(error_of(data, version)) is kind


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x10\x0c\x00\x04MQTX\x04\x02\x00\x00\x00\x00", Reason.UNSUPPORTED_PROTOCOL_VERSION),
        (b"\x10\x0c\x00\x04MQTT\x02\x02\x00\x00\x00\x00", Reason.UNSUPPORTED_PROTOCOL_VERSION),
        (b"\x10\x0d\x00\x04MQTT\x06\x02\x00\x00\x00\x00\x00", Reason.UNSUPPORTED_PROTOCOL_VERSION),
        (b"\x10\x0e\x00\x06MQIsdp\x04\x02\x00\x00\x00\x00", Reason.UNSUPPORTED_PROTOCOL_VERSION),
        (b"\x10\x0c\x00\x04MQTT\x04\x03\x00\x00\x00\x00", Reason.MALFORMED_PACKET),
        (b"\x10\x0c\x00\x04MQTT\x04\x42\x00\x00\x00\x00", Reason.MALFORMED_PACKET),
        (b"\x10\x0c\x00\x04MQTT\x04\x0a\x00\x00\x00\x00", Reason.MALFORMED_PACKET),
        (b"\x10\x0c\x00\x04MQTT\x04\x1e\x00\x00\x00\x00", Reason.MALFORMED_PACKET),
        (b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x00!", Reason.MALFORMED_PACKET),
        (b"\x10\x0b\x00\x04MQTT\x04\x02\x00\x00\x00", Reason.MALFORMED_PACKET),
        (b"\xc0\x00", Reason.PROTOCOL_ERROR),
        (b"\x30\x03\x00\x01a", Reason.PROTOCOL_ERROR),
        (b"\x40\x02\x00\x01", Reason.PROTOCOL_ERROR),
    ],
)
def test_what_cannot_begin_a_connection_is_refused(data: bytes, reason: Reason) -> None:
    error = error_of(data, version=0)
    assert isinstance(error, MalformedPacket | ProtocolError)
    assert error.reason is reason


def test_packets_before_a_wrong_one_are_handed_out() -> None:
    decoder = Decoder(1 << 20, version=V311)
    assert decoder.feed(b"\xc0\x00\xc0\x00\x00\x00\xc0\x00") == [Ping(PacketType.PINGREQ)] * 2
    assert decoder.error is not None


def test_length_is_refused_before_the_bytes_come() -> None:
    error = error_of(b"\x30\xff\xff\xff\x7f", packet_max_bytes=1000)
    assert isinstance(error, PacketTooLarge)
    assert "268435460" in str(error)


def test_the_largest_packet_allowed_is_taken() -> None:
    packet = encode(Publish("a", b"x" * 993), V311)
    assert len(packet) == 999
    assert error_of(packet, packet_max_bytes=999) is None
    assert isinstance(error_of(packet, packet_max_bytes=998), PacketTooLarge)


def test_a_packet_in_single_bytes_is_put_together() -> None:
    decoder = Decoder(1 << 20, version=V311)
    stream = encode(Publish("a", b"x" * 20_000), V311)
    found = [each for byte in stream for each in decoder.feed(bytes((byte,)))]
    assert found == [Publish("a", b"x" * 20_000)]


def test_byte_order_mark_stays_in_strings() -> None:
    """5.0 [MQTT-1.5.4-3]"""
    (packet,) = Decoder(1 << 20, version=V311).feed(encode(Publish("\ufeffa", b""), V311))
    assert isinstance(packet, Publish)
    assert packet.topic == "\ufeffa"
