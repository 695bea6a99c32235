"""Packets -> bytes, for every packet type and version.

Source: MQTT 3.1.1 and 5.0 chapter 3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

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
    Packet,
    PacketType,
    Ping,
    Publish,
    PublishRun,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from lakemq.plugins.mqtt.wire.primitives import binary_bytes, string_bytes, variable_bytes
from lakemq.plugins.mqtt.wire.properties import write_properties

PINGRESP: Final = b"\xd0\x00"
PUBACK: Final = b"\x40\x02"
PUBREC: Final = b"\x50\x02"
PUBREL: Final = b"\x62\x02"
PUBCOMP: Final = b"\x70\x02"
"""Fixed headers of acknowledgements without a reason; the packet identifier follows."""


def encode(packet: Packet, version: int) -> bytes:
    """The packet as `version` has it; what that version lacks is left out."""
    return _ENCODERS[type(packet)](packet, version)


def _framed(first: int, body: bytes) -> bytes:
    size = len(body)
    head = bytes((first, size)) if size < 0x80 else bytes((first,)) + variable_bytes(size)
    return head + body


def _two(value: int) -> bytes:
    return value.to_bytes(2, "big")


def _properties(packet: Any, version: int) -> bytes:
    return write_properties(packet.properties) if version == V5 else b""


def _connect(packet: Connect, version: int) -> bytes:
    will = packet.will
    flags = packet.clean_start << 1
    if will is not None:
        flags |= 0x04 | will.qos << 3 | will.retain << 5
    flags |= (packet.password is not None) << 6 | (packet.username is not None) << 7
    name = b"\0\6MQIsdp" if version == V31 else b"\0\4MQTT"
    parts = [
        name,
        bytes((version | (BRIDGE if packet.bridge else 0), flags)),
        _two(packet.keep_alive_s),
    ]
    parts += (_properties(packet, version), string_bytes(packet.client_id))
    if will is not None:
        parts += (_properties(will, version), string_bytes(will.topic), binary_bytes(will.payload))
    if packet.username is not None:
        parts.append(string_bytes(packet.username))
    if packet.password is not None:
        parts.append(binary_bytes(packet.password))
    return _framed(0x10, b"".join(parts))


def _connack(packet: Connack, version: int) -> bytes:
    head = bytes((packet.session_present, packet.code))
    return _framed(0x20, head + _properties(packet, version))


def publish_parts(
    topic: str, payload: bytes, properties: bytes, *, qos: int, retain: bool, dup: bool = False
) -> tuple[bytes, bytes]:
    """PUBLISH in front of and behind its packet identifier, which QoS 0 has none of.

    `properties` is the property field with its length; `b""` before version 5.
    """
    name = topic.encode()
    long = len(name)
    size = long + len(properties) + len(payload) + (4 if qos else 2)
    first = 0x30 | dup << 3 | qos << 1 | retain
    if size < 0x80:
        head = bytes((first, size, long >> 8, long & 0xFF))
    elif size < 0x4000:
        head = bytes((first, size & 0x7F | 0x80, size >> 7, long >> 8, long & 0xFF))
    else:
        head = bytes((first,)) + variable_bytes(size) + long.to_bytes(2, "big")
    return head + name, properties + payload


def _publish(packet: Publish, version: int) -> bytes:
    head, rest = publish_parts(
        packet.topic,
        packet.payload,
        _properties(packet, version),
        qos=packet.qos,
        retain=packet.retain,
        dup=packet.dup,
    )
    return b"".join((head, _two(packet.packet_id) if packet.qos else b"", rest))


def _run(packet: PublishRun, version: int) -> bytes:
    return packet.packets


def _acknowledgement(packet: Acknowledgement, version: int) -> bytes:
    body = _two(packet.packet_id)
    if version == V5 and (packet.reason or packet.properties is not NO_PROPERTIES):
        body += bytes((packet.reason,))
        if packet.properties is not NO_PROPERTIES:
            body += write_properties(packet.properties)
    return _framed(packet.type << 4 | (2 if packet.type == PacketType.PUBREL else 0), body)


def _subscribe(packet: Subscribe, version: int) -> bytes:
    parts = [_two(packet.packet_id), _properties(packet, version)]
    for one in packet.filters:
        parts += (string_bytes(one.topic_filter), bytes((one.options,)))
    return _framed(0x82, b"".join(parts))


def _codes(first: int) -> Callable[[Any, int], bytes]:
    def encode_codes(packet: Suback | Unsuback, version: int) -> bytes:
        head = _two(packet.packet_id) + _properties(packet, version)
        bare = first == 0xB0 and version < V5
        return _framed(first, head if bare else head + bytes(packet.codes))

    return encode_codes


def _unsubscribe(packet: Unsubscribe, version: int) -> bytes:
    parts = [_two(packet.packet_id), _properties(packet, version)]
    return _framed(0xA2, b"".join(parts + [string_bytes(one) for one in packet.filters]))


def _ping(packet: Ping, version: int) -> bytes:
    return bytes((packet.type << 4, 0))


def _with_reason(first: int) -> Callable[[Any, int], bytes]:
    def encode_reason(packet: Disconnect | Auth, version: int) -> bytes:
        if version < V5:
            return bytes((first, 0))
        if packet.properties is not NO_PROPERTIES:
            return _framed(first, bytes((packet.reason,)) + write_properties(packet.properties))
        return _framed(first, bytes((packet.reason,)) if packet.reason else b"")

    return encode_reason


_ENCODERS: Final[dict[type, Callable[[Any, int], bytes]]] = {
    Connect: _connect,
    Connack: _connack,
    Publish: _publish,
    PublishRun: _run,
    Acknowledgement: _acknowledgement,
    Subscribe: _subscribe,
    Suback: _codes(0x90),
    Unsubscribe: _unsubscribe,
    Unsuback: _codes(0xB0),
    Ping: _ping,
    Disconnect: _with_reason(0xE0),
    Auth: _with_reason(0xF0),
}


def shortened(packet: Any) -> Any:
    """The packet without its reason string and user properties."""
    properties = getattr(packet, "properties", None)
    if properties is None or properties == NO_PROPERTIES:
        return packet
    rest = replace(properties, reason_string=None, user_properties=())
    return replace(packet, properties=NO_PROPERTIES if rest == NO_PROPERTIES else rest)
