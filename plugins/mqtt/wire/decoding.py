"""Bodies of all packets but PUBLISH: bytes -> packets.

`DECODERS` has one entry per valid first byte, so wrong flag bits [MQTT-2.1.3-1] find none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lakemq.plugins.mqtt.wire.packets import (
    BRIDGE,
    NO_PROPERTIES,
    V5,
    V31,
    Acknowledgement,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Filter,
    Packet,
    PacketType,
    Ping,
    Properties,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
)
from lakemq.plugins.mqtt.wire.primitives import Reader
from lakemq.plugins.mqtt.wire.properties import WILL, read_properties
from lakemq.plugins.mqtt.wire.reasons import MalformedPacket, ProtocolError, Reason
from lakemq.plugins.mqtt.wire.topics import check_topic_name, refuse_malformed

FILTERS_MAX: Final = 10_000
"""Most topic filters of one SUBSCRIBE or UNSUBSCRIBE."""
_T = PacketType
_PUBLISH_ANSWERS: Final = frozenset({0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99})
_RELEASE_ANSWERS: Final = frozenset({0x00, 0x92})
_REASONS: Final[dict[int, frozenset[int]]] = {
    _T.PUBACK: _PUBLISH_ANSWERS,
    _T.PUBREC: _PUBLISH_ANSWERS,
    _T.PUBREL: _RELEASE_ANSWERS,
    _T.PUBCOMP: _RELEASE_ANSWERS,
    _T.SUBACK: frozenset({0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2}),
    _T.UNSUBACK: frozenset({0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91}),
    _T.DISCONNECT: frozenset(
        {0x00, 0x04, *range(0x80, 0x84), 0x87, 0x89, 0x8B, *range(0x8D, 0x91), *range(0x93, 0xA3)}
    ),
    _T.AUTH: frozenset({0x00, 0x18, 0x19}),
}


def _reason(code: int, packet: PacketType) -> int:
    if code not in _REASONS[packet]:
        raise MalformedPacket(f"reason code {code:#04x} may not stand in {packet.name}")
    return code


def read_protocol_level(reader: Reader) -> int:
    """Name and level from the start of CONNECT. ProtocolError unless the name is known."""
    name = reader.string()
    level = reader.byte()
    if name not in ("MQTT", "MQIsdp"):
        raise ProtocolError(f"protocol {name[:16]!r}", Reason.UNSUPPORTED_PROTOCOL_VERSION)
    if level < V31 or (level in (V31, V31 | BRIDGE)) != (name == "MQIsdp"):
        raise ProtocolError(f"{name} level {level}", Reason.UNSUPPORTED_PROTOCOL_VERSION)
    return level


def decode_connect(reader: Reader, level: int) -> Connect:
    """CONNECT behind its protocol level."""
    if level > V5:
        raise ProtocolError(f"protocol level {level}", Reason.UNSUPPORTED_PROTOCOL_VERSION)
    flags = reader.byte()
    _check_connect_flags(flags, level)
    keep_alive_s = reader.two_bytes()
    properties = read_properties(reader, _T.CONNECT) if level == V5 else NO_PROPERTIES
    if properties.authentication_data is not None and properties.authentication_method is None:
        raise ProtocolError("authentication data without a method")
    packet = Connect(
        reader.string(), level, bool(flags & 0x02), keep_alive_s, properties=properties
    )
    if flags & 0x04:
        packet.will = _will(reader, flags, level)
    if flags & 0x80:
        packet.username = reader.string()
    if flags & 0x40:
        packet.password = reader.binary()
    return packet


def _check_connect_flags(flags: int, level: int) -> None:
    """3.1 does not use the reserved flag, nor the will's others without the will flag."""
    if level == V31 and not flags & 0x04:
        flags &= ~0x39
    elif level == V31:
        flags &= ~0x01
    if flags & 0x01:  # [MQTT-3.1.2-3]
        raise MalformedPacket("reserved flag of CONNECT is set")
    if not flags & 0x04 and flags & 0x38:  # [MQTT-3.1.2-11] [MQTT-3.1.2-13]
        raise MalformedPacket("will QoS or will retain without a will")
    if flags & 0x18 == 0x18:  # [MQTT-3.1.2-12]
        raise MalformedPacket("will QoS 3")
    if level < V5 and flags & 0x40 and not flags & 0x80:  # [MQTT-3.1.2-22 of 3.1.1]
        raise MalformedPacket("password without a user name")


def _will(reader: Reader, flags: int, level: int) -> Will:
    properties = read_properties(reader, WILL) if level == V5 else NO_PROPERTIES
    topic = check_topic_name(reader.string())
    if properties.response_topic is not None:
        check_topic_name(properties.response_topic)
    return Will(topic, reader.binary(), (flags >> 3) & 3, bool(flags & 0x20), properties)


def _decode_connack(reader: Reader, version: int) -> Connack:
    flags, code = reader.byte(), reader.byte()
    if flags > 1:
        raise MalformedPacket("reserved flags of CONNACK are set")
    return Connack(bool(flags), code, _properties(reader, _T.CONNACK, version))


def _properties(reader: Reader, packet: PacketType, version: int) -> Properties:
    return read_properties(reader, packet) if version == V5 else NO_PROPERTIES


def _acknowledgement(packet: PacketType) -> Callable[[Reader, int], Packet]:
    def decode(reader: Reader, version: int) -> Acknowledgement:
        found = Acknowledgement(packet, reader.packet_id())
        # Without a reason code it is 0x00, without a length there are no properties (3.4.2).
        if version == V5 and reader.left:
            found.reason = _reason(reader.byte(), packet)
            if reader.left:
                found.properties = read_properties(reader, packet)
        return found

    return decode


def _decode_subscribe(reader: Reader, version: int) -> Subscribe:
    packet_id = reader.packet_id()
    properties = _properties(reader, _T.SUBSCRIBE, version)
    filters: list[Filter] = []
    while reader.left:
        topic_filter, options = reader.string(), reader.byte()
        refuse_malformed(topic_filter, version)
        if options & (0xC0 if version == V5 else 0xFC):  # [MQTT-3.8.3-5]
            raise MalformedPacket("reserved bits of the subscription options are set")
        if options & 0x03 == 0x03:
            raise MalformedPacket("QoS 3 in SUBSCRIBE")
        if options & 0x30 == 0x30:
            raise ProtocolError("retain handling 3")
        filters.append(Filter(topic_filter, options))
        _check_count(len(filters))
    if not filters:  # [MQTT-3.8.3-2]
        raise ProtocolError("SUBSCRIBE without a topic filter")
    return Subscribe(packet_id, tuple(filters), properties)


def _check_count(filters: int) -> None:
    if filters > FILTERS_MAX:
        raise ProtocolError(f"more than {FILTERS_MAX} topic filters", Reason.QUOTA_EXCEEDED)


def _decode_suback(reader: Reader, version: int) -> Suback:
    packet_id = reader.packet_id()
    properties = _properties(reader, _T.SUBACK, version)
    codes = tuple(_reason(code, _T.SUBACK) for code in reader.rest())
    return Suback(packet_id, codes, properties)


def _decode_unsubscribe(reader: Reader, version: int) -> Unsubscribe:
    packet_id = reader.packet_id()
    properties = _properties(reader, _T.UNSUBSCRIBE, version)
    filters: list[str] = []
    while reader.left:
        filters.append(reader.string())
        refuse_malformed(filters[-1], version)
        _check_count(len(filters))
    if not filters:  # [MQTT-3.10.3-2]
        raise ProtocolError("UNSUBSCRIBE without a topic filter")
    return Unsubscribe(packet_id, tuple(filters), properties)


def _decode_unsuback(reader: Reader, version: int) -> Unsuback:
    packet_id = reader.packet_id()
    if version < V5:
        return Unsuback(packet_id)
    properties = read_properties(reader, _T.UNSUBACK)
    codes = tuple(_reason(code, _T.UNSUBACK) for code in reader.rest())
    return Unsuback(packet_id, codes, properties)


def _decode_disconnect(reader: Reader, version: int) -> Disconnect:
    if version < V5 or not reader.left:
        return Disconnect()
    reason = _reason(reader.byte(), _T.DISCONNECT)
    return Disconnect(
        reason, read_properties(reader, _T.DISCONNECT) if reader.left else NO_PROPERTIES
    )


def _decode_auth(reader: Reader, version: int) -> Auth:
    if version < V5:
        raise MalformedPacket(f"AUTH in MQTT level {version}")
    if not reader.left:
        return Auth()
    reason = _reason(reader.byte(), _T.AUTH)
    return Auth(reason, read_properties(reader, _T.AUTH) if reader.left else NO_PROPERTIES)


def _ping(packet: PacketType) -> Callable[[Reader, int], Packet]:
    return lambda _reader, _version: Ping(packet)


DECODERS: Final[dict[int, Callable[[Reader, int], Packet]]] = {
    0x20: _decode_connack,
    0x40: _acknowledgement(_T.PUBACK),
    0x50: _acknowledgement(_T.PUBREC),
    0x62: _acknowledgement(_T.PUBREL),
    0x70: _acknowledgement(_T.PUBCOMP),
    0x82: _decode_subscribe,
    0x90: _decode_suback,
    0xA2: _decode_unsubscribe,
    0xB0: _decode_unsuback,
    0xC0: _ping(_T.PINGREQ),
    0xD0: _ping(_T.PINGRESP),
    0xE0: _decode_disconnect,
    0xF0: _decode_auth,
}
DECODERS_V31: Final = DECODERS | {
    first | flags: DECODERS[first]
    for first in (0x40, 0x50, 0x62, 0x70, 0x82, 0xA2, 0xC0, 0xE0)
    for flags in range(16)
    if first & 0x02 == 0 or flags & 0x06 == 0x02
}
"""The same for 3.1, where PUBREL, SUBSCRIBE and UNSUBSCRIBE may be marked as sent again (DUP), and
flags that a packet has no use for are not looked at."""
