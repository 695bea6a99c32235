"""Bytes -> packets: a whole received buffer in one pass.

`Decoder.feed` takes what a socket gave, in whatever pieces, and returns the packets that are
complete. Nothing is held beyond one unfinished packet, whose length is checked against
`packet_max_bytes` as soon as its header is there, before its bytes are gathered. A decoder that
takes packets one by one (`one_by_one`) holds what is behind the first as the bytes that came.

Source: MQTT 3.1.1 and 5.0 chapters 2 and 3; MQTT V3.1 for protocol name `MQIsdp`.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from lakemq.plugins.mqtt.wire.decoding import (
    DECODERS,
    DECODERS_V31,
    decode_connect,
    read_protocol_level,
)
from lakemq.plugins.mqtt.wire.packets import (
    BRIDGE,
    NO_PROPERTIES,
    V5,
    V31,
    V311,
    Acknowledgement,
    AcknowledgementRun,
    Connect,
    Packet,
    PacketType,
    Properties,
    Publish,
    PublishRun,
    StoredRun,
)
from lakemq.plugins.mqtt.wire.primitives import Reader
from lakemq.plugins.mqtt.wire.properties import read_properties
from lakemq.plugins.mqtt.wire.reasons import (
    MalformedPacket,
    MqttError,
    PacketTooLarge,
    ProtocolError,
)
from lakemq.plugins.mqtt.wire.topics import TopicNames, TopicTooDeep

_QOS_0: Final = 0x30
"""First byte of a PUBLISH at QoS 0, neither retained nor a duplicate."""
_QOS_1: Final = 0x32
_QOS_2: Final = 0x34
"""The same at QoS 1 and 2."""
_QOS_3: Final = 0x06
_PUBACK: Final = 0x40
_ACKS: Final = {
    0x40: PacketType.PUBACK,
    0x50: PacketType.PUBREC,
    0x62: PacketType.PUBREL,
    0x70: PacketType.PUBCOMP,
}
_ACK_LENGTH: Final = 2
"""Remaining length of an acknowledgement without a reason: its packet identifier."""
_ACKS_MAX: Final = 256
"""Packets of a run: more would be looked at again and again where other packets come between."""
_CONNECT: Final = 0x10
_PUBLISH_MIN: Final = 4
"""A PUBLISH with a topic name has more bytes than this."""


class Decoder:
    """Turns one connection's bytes into packets.

    `version` is 0 until CONNECT or CONNACK has been read, or it is set. With `runs` plain QoS 0
    publishes in a row come out as `PublishRun`, undecoded, but for topic names (bytes) that
    `express` says None of, and several acknowledgements of one type as `AcknowledgementRun`.
    `stored` and `stored_2` hold topic names whose plain QoS 1 and QoS 2 publishes come out as
    `StoredRun`.
    """

    __slots__ = (
        "_held",
        "_needed",
        "runs",
        "error",
        "express",
        "names",
        "one_by_one",
        "packet_max_bytes",
        "stored",
        "stored_2",
        "version",
    )

    def __init__(
        self, packet_max_bytes: int, names: TopicNames | None = None, version: int = 0
    ) -> None:
        self.version = version
        self.one_by_one = False
        """Decode one packet per `feed`; `feed(b"")` goes on with the next."""
        self.packet_max_bytes = packet_max_bytes
        self.names = TopicNames() if names is None else names
        self.express: Mapping[bytes, str | None] = {}
        self.stored: Mapping[bytes, object] = {}
        self.stored_2: Mapping[bytes, object] = {}
        self.runs = False
        self.error: MqttError | None = None
        """Why decoding stopped; the packets before it were returned. Feed nothing more then."""
        self._held = bytearray()
        self._needed = 0

    @property
    def held_bytes(self) -> int:
        """Bytes that are not decoded yet."""
        return len(self._held)

    def hold(self, data: bytes) -> None:
        """Take bytes without decoding them: the next `feed` does."""
        self._held += data

    def drop(self) -> None:
        """Forget what is held."""
        self._held.clear()

    def feed(self, data: bytes) -> list[Packet]:
        """The packets that `data` completes, in order; see `error` for what ended them."""
        if self._held:
            self._held += data
            if len(self._held) < self._needed:
                return []
            # `bytes`: packets keep slices of it, while `_held` goes on changing.
            data = bytes(self._held)
            self._held.clear()
        packets: list[Packet] = []
        size = len(data)
        try:
            if size > 2 and self.version and (single := self._single(data, size)) is not None:
                self._needed = 0 if self.one_by_one else 2
                packets.append(single)
                return packets
            if not self.version and size and data[0] != _CONNECT:  # [MQTT-3.1.0-1], at once
                raise ProtocolError("the first packet must be CONNECT")
            position = self._scan(data, packets)
        except MqttError as error:
            self.error = error
            # A CONNECT that is too large is answered, in the way of its version.
            if not self.version and isinstance(error, PacketTooLarge):
                self._note_version(data)
            return packets
        if position < size:
            self._held += data[position:] if position else data
        return packets

    def _single(self, data: bytes, size: int) -> Packet | None:
        """What devices send that wait between two publishes: one PUBLISH at QoS 0 or 1, one PUBACK.
        None: `data` is something else, or more than a packet, or less."""
        first, length, body = data[0], data[1], 2
        if length > 0x7F:
            high = data[2]
            if not 0 < high < 0x80:
                return None
            length, body = length & 0x7F | high << 7, 3
        if body + length != size or size > self.packet_max_bytes:
            return None
        if first == _QOS_1:
            at = body + 2 + (data[body] << 8 | data[body + 1]) if length > 4 else size
            route = self.stored.get(data[body + 2 : at])
            if route is not None and at + 2 < size:
                packet_id = data[at] << 8 | data[at + 1]
                at += 2
                if packet_id and (self.version != V5 or not data[at]):
                    at += self.version == V5
                    return StoredRun(route, (packet_id,), (data[at:],))
            return self._publish(data, first, body, size)
        if first == _PUBACK:
            return self._packet(data, first, body, size)
        if first == _QOS_0 and length > 2 and self.runs:
            at = body + 2 + (data[body] << 8 | data[body + 1])
            topic = data[body + 2 : at]
            # at version 5 an empty property section follows
            plain = at < size and not data[at] if self.version == V5 else at <= size
            if plain and self.express.get(topic):
                return PublishRun((topic,), (size,), data)
        return None

    def _scan(self, data: bytes, packets: list[Packet]) -> int:
        """Decode from the start of `data` into `packets`; returns where the unfinished begins."""
        position, end = 0, len(data)
        append, one_by_one = packets.append, self.one_by_one
        stored, stored_2 = self.stored, self.stored_2
        runs = self.runs and not one_by_one
        self._needed = 2
        while end - position >= 2:
            first = data[position]
            length = data[position + 1]
            body = position + 2
            if length > 0x7F:
                length, body = self._long_length(data, position, end)
                if not body:
                    break
            stop = body + length
            if stop > end:
                self._needed = stop - position
                break
            if first == _QOS_0 and runs and (run := self._run(data, position, end)):
                append(run)
                position += len(run.packets)
                continue
            if first == _QOS_1 and stored and (found := self._stored_run(data, body, stop, 1)):
                position = found[1]
                append(found[0])
                continue
            if first == _QOS_2 and stored_2 and (found := self._stored_run(data, body, stop, 2)):
                position = found[1]
                append(found[0])
                continue
            if (
                first in _ACKS
                and runs
                and length == _ACK_LENGTH
                and data.startswith(data[position:body], stop)
                and (packet_ids := _ack_run(data, position))
            ):
                position += 4 * len(packet_ids)
                append(AcknowledgementRun(_ACKS[first], packet_ids))
                continue
            position = stop
            append(
                self._publish(data, first, body, stop)
                if 0x30 <= first < 0x40
                else self._packet(data, first, body, stop)
            )
            if one_by_one:
                self._needed = 0
                break
        return position

    def _long_length(self, data: bytes, position: int, end: int) -> tuple[int, int]:
        """Remaining length of two to four bytes and where the body begins; (0, 0): not all here."""
        length = shift = 0
        for place in range(position + 1, position + 5):
            if place >= end:
                self._needed = place - position + 1
                return 0, 0
            byte = data[place]
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        else:
            raise MalformedPacket("remaining length is longer than 4 bytes")
        if not byte:  # [MQTT-1.5.5-1]
            raise MalformedPacket("remaining length is not in its shortest form")
        if place + 1 - position + length > self.packet_max_bytes:
            raise PacketTooLarge(
                f"packet of {place + 1 - position + length} bytes;"
                f" {self.packet_max_bytes} is the most"
            )
        return length, place + 1

    def _note_version(self, data: bytes) -> None:
        """Of a CONNECT that is not read to its end, so that its client can be answered."""
        with suppress(MqttError):
            begin = 3 if data[2] <= 0x7F else 4 if data[3] <= 0x7F else 5
            level = read_protocol_level(Reader(data, begin, len(data))) & ~BRIDGE
            self.version = min(level, V5)

    def _run(self, data: bytes, position: int, end: int) -> PublishRun | None:
        """All plain QoS 0 publishes from `position` on; None: the first one is not plain, or its
        name needs a closer look."""
        get, most, version_5 = self.express.get, self.packet_max_bytes, self.version == V5
        names: list[bytes] = []
        sizes: list[int] = []
        start = position
        while end - position > _PUBLISH_MIN and data[position] == _QOS_0:
            length, body = data[position + 1], position + 2
            if length > 0x7F:
                high = data[body]
                if not 0 < high < 0x80:
                    break
                length, body = length & 0x7F | high << 7, body + 1
            stop = body + length
            at = body + 2 + (data[body] << 8 | data[body + 1])
            name = data[body + 2 : at]
            size = stop - position
            if stop > end or at > stop or size > most or get(name, "") is None:
                break
            if version_5 and (at == stop or data[at]):  # an empty property section follows
                break
            names.append(name)
            sizes.append(size)
            position = stop
        return PublishRun(names, sizes, data[start:position]) if names else None

    def _stored_run(
        self, data: bytes, body: int, stop: int, qos: int
    ) -> tuple[StoredRun, int] | None:
        """All plain publishes of a QoS to one stored topic name, from the one at `data[body:stop]`
        on, and where they end; None: it is no stored topic name, or the packet is not plain."""
        at = body + 2 + int.from_bytes(data[body : body + 2], "big")
        field = data[body:at]
        first, stored = (_QOS_1, self.stored) if qos == 1 else (_QOS_2, self.stored_2)
        route = stored.get(field[2:])
        if route is None or at + 2 > stop:
            return None
        packet_ids: list[int] = []
        payloads: list[bytes] = []
        size, end, version_5, behind = len(field), len(data), self.version == V5, 0
        while True:
            packet_id = data[at] << 8 | data[at + 1]
            at += 2
            if version_5:  # an empty property section follows
                if at >= stop or data[at]:
                    break
                at += 1
            if not packet_id:
                break
            packet_ids.append(packet_id)
            payloads.append(data[at:stop])
            behind, body = stop, stop + 2
            if body >= end or data[behind] != first:
                break
            length = data[body - 1]
            if length > 0x7F:
                high = data[body]
                if not 0 < high < 0x80:
                    break
                length, body = length & 0x7F | high << 7, body + 1
            stop, at = body + length, body + size
            too_large = stop - behind > self.packet_max_bytes
            if stop > end or at + 2 > stop or too_large or not data.startswith(field, body):
                break
        return (StoredRun(route, packet_ids, payloads, qos), behind) if packet_ids else None

    def publish_in(self, data: bytes) -> Publish:
        """The one PUBLISH that `data` is, whole. Raises MqttError."""
        body = 1
        while data[body] > 0x7F:
            body += 1
        return self._publish(data, data[0], body + 1, len(data))

    def _publish(self, data: bytes, first: int, body: int, stop: int) -> Publish:
        """One PUBLISH whose remaining bytes are `data[body:stop]`."""
        at = body + 2
        if at <= stop:
            at += data[body] << 8 | data[body + 1]
        if at > stop:
            raise MalformedPacket("PUBLISH is shorter than its topic name")
        try:
            topic = self.names[data[body + 2 : at]]
        except TopicTooDeep as error:  # its publisher is told so: `publishing`
            topic = error.name
        qos, packet_id = first & _QOS_3, 0
        if qos:
            if qos == _QOS_3:  # [MQTT-3.3.1-4]
                raise MalformedPacket("QoS 3")
            if at + 2 <= stop:
                packet_id = data[at] << 8 | data[at + 1]
                at += 2
            if not packet_id:  # [MQTT-2.2.1-3]
                raise MalformedPacket("packet identifier is 0 or missing")
        elif first & 0x08:  # [MQTT-3.3.1-2]
            raise MalformedPacket("DUP set at QoS 0")
        properties = NO_PROPERTIES
        if self.version == V5:
            at, properties = _publish_properties(data, at, stop)
        return Publish(
            topic, data[at:stop], qos >> 1, first & 1 == 1, first & 8 == 8, packet_id, properties
        )

    def _packet(self, data: bytes, first: int, body: int, stop: int) -> Packet:
        """Any packet but PUBLISH."""
        if first in _ACKS and stop - body == _ACK_LENGTH:
            packet_id = data[body] << 8 | data[body + 1]
            if packet_id:
                return Acknowledgement(_ACKS[first], packet_id)
        reader = Reader(data, body, stop)
        if first == _CONNECT:
            return self._connect(reader)
        rule = DECODERS.get(first)
        if rule is None and self.version == V31:
            rule = DECODERS_V31.get(first)
        if rule is None:
            raise MalformedPacket(f"first byte {first:#04x} begins no packet")
        packet = rule(reader, self.version)
        reader.finish()
        return packet

    def _connect(self, reader: Reader) -> Connect:
        if self.version:  # [MQTT-3.1.0-2]
            raise ProtocolError("CONNECT came a second time")
        level = read_protocol_level(reader)
        bridge = level in (V31 | BRIDGE, V311 | BRIDGE)
        level = level & ~BRIDGE if bridge else level
        self.version = min(level, V5)
        packet = decode_connect(reader, level)
        packet.bridge = bridge
        reader.finish()
        return packet


def _ack_run(data: bytes, position: int) -> list[int]:
    """Packet identifiers of the whole acknowledgements from `position` on that begin as the first
    one does, until one names none: that is an error of its own."""
    whole = data[position : position + 4 * min(_ACKS_MAX, (len(data) - position) // 4)]
    first = whole[::4]
    count = len(first) - len(first.lstrip(whole[:1]))
    length = whole[1 : 4 * count : 4]
    count = len(length) - len(length.lstrip(whole[1:2]))
    words = array("H", whole[: 4 * count])
    words.byteswap()
    packet_ids = words[1::2].tolist()
    return packet_ids[: packet_ids.index(0)] if 0 in packet_ids else packet_ids


def _publish_properties(data: bytes, at: int, stop: int) -> tuple[int, Properties]:
    """Where the payload begins, and the properties in front of it."""
    if data[at : at + 1] == b"\0":
        at, properties = at + 1, NO_PROPERTIES
    else:
        reader = Reader(data, at, stop)
        properties = read_properties(reader, PacketType.PUBLISH)
        at = reader.position
    if at > stop:
        raise MalformedPacket("PUBLISH is shorter than its properties say")
    return at, properties
