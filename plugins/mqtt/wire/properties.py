"""MQTT 5 properties: bytes <-> `Properties`, by one table.

Source: MQTT 5.0 section 2.2.2, table 2-4: identifier, type, and the packets it may stand in.
"""

from __future__ import annotations

import enum
from typing import Any, Final, NamedTuple

from lakemq.plugins.mqtt.wire.packets import NO_PROPERTIES, PacketType, Properties
from lakemq.plugins.mqtt.wire.primitives import Reader, binary_bytes, string_bytes, variable_bytes
from lakemq.plugins.mqtt.wire.reasons import MalformedPacket, ProtocolError, Reason


class Kind(enum.Enum):
    """How a property's value lies on the wire."""

    BYTE = 1
    TWO_BYTES = 2
    FOUR_BYTES = 3
    VARIABLE = 4
    STRING = 5
    BINARY = 6
    PAIR = 7


class Rule(NamedTuple):
    """One row of table 2-4: which attribute, of which type, in which packets."""

    attribute: str
    kind: Kind
    packets: frozenset[int]
    flag: bool = False
    """The value must be 0 or 1."""
    positive: bool = False
    """The value must not be 0."""


WILL: Final = 0
"""Stands for the will's properties inside CONNECT, which have their own allowed set."""

_T = PacketType
_ACKS: Final = (_T.PUBACK, _T.PUBREC, _T.PUBREL, _T.PUBCOMP, _T.SUBACK, _T.UNSUBACK)
_ALL: Final = (
    WILL, _T.CONNECT, _T.CONNACK, _T.PUBLISH, *_ACKS, _T.SUBSCRIBE, _T.UNSUBSCRIBE,
    _T.DISCONNECT, _T.AUTH,
)  # fmt: skip


def _rule(attribute: str, kind: Kind, *packets: int, **checks: bool) -> Rule:
    return Rule(attribute, kind, frozenset(packets), **checks)


RULES: Final[dict[int, Rule]] = {
    0x01: _rule("payload_format", Kind.BYTE, _T.PUBLISH, WILL, flag=True),
    0x02: _rule("message_expiry_s", Kind.FOUR_BYTES, _T.PUBLISH, WILL),
    0x03: _rule("content_type", Kind.STRING, _T.PUBLISH, WILL),
    0x08: _rule("response_topic", Kind.STRING, _T.PUBLISH, WILL),
    0x09: _rule("correlation_data", Kind.BINARY, _T.PUBLISH, WILL),
    0x0B: _rule("subscription_identifiers", Kind.VARIABLE, _T.PUBLISH, _T.SUBSCRIBE, positive=True),
    0x11: _rule("session_expiry_s", Kind.FOUR_BYTES, _T.CONNECT, _T.CONNACK, _T.DISCONNECT),
    0x12: _rule("assigned_client_id", Kind.STRING, _T.CONNACK),
    0x13: _rule("server_keep_alive_s", Kind.TWO_BYTES, _T.CONNACK),
    0x15: _rule("authentication_method", Kind.STRING, _T.CONNECT, _T.CONNACK, _T.AUTH),
    0x16: _rule("authentication_data", Kind.BINARY, _T.CONNECT, _T.CONNACK, _T.AUTH),
    0x17: _rule("request_problem_information", Kind.BYTE, _T.CONNECT, flag=True),
    0x18: _rule("will_delay_s", Kind.FOUR_BYTES, WILL),
    0x19: _rule("request_response_information", Kind.BYTE, _T.CONNECT, flag=True),
    0x1A: _rule("response_information", Kind.STRING, _T.CONNACK),
    0x1C: _rule("server_reference", Kind.STRING, _T.CONNACK, _T.DISCONNECT),
    0x1F: _rule("reason_string", Kind.STRING, _T.CONNACK, *_ACKS, _T.DISCONNECT, _T.AUTH),
    0x21: _rule("receive_maximum", Kind.TWO_BYTES, _T.CONNECT, _T.CONNACK, positive=True),
    0x22: _rule("topic_alias_maximum", Kind.TWO_BYTES, _T.CONNECT, _T.CONNACK),
    0x23: _rule("topic_alias", Kind.TWO_BYTES, _T.PUBLISH),
    0x24: _rule("maximum_qos", Kind.BYTE, _T.CONNACK, flag=True),
    0x25: _rule("retain_available", Kind.BYTE, _T.CONNACK, flag=True),
    0x26: _rule("user_properties", Kind.PAIR, *_ALL),
    0x27: _rule("packet_max_bytes", Kind.FOUR_BYTES, _T.CONNECT, _T.CONNACK, positive=True),
    0x28: _rule("wildcard_subscription_available", Kind.BYTE, _T.CONNACK, flag=True),
    0x29: _rule("subscription_identifier_available", Kind.BYTE, _T.CONNACK, flag=True),
    0x2A: _rule("shared_subscription_available", Kind.BYTE, _T.CONNACK, flag=True),
}

USER_PROPERTIES_MAX: Final = 1000
"""Most user properties of one packet, or of its will."""

_NAMES: Final = {WILL: "the will"} | {kind.value: kind.name for kind in PacketType}


def read_properties(reader: Reader, packet: int) -> Properties:
    """Properties at the reader's place. MalformedPacket or ProtocolError name the property; more
    than `USER_PROPERTIES_MAX` user properties are refused (0x97)."""
    size = reader.variable()
    if not size:
        return NO_PROPERTIES
    part = reader.part(size)
    found = Properties()
    users: list[tuple[str, str]] = []
    identifiers: list[int] = []
    seen: set[int] = set()
    while part.left:
        identifier = part.variable()
        rule = RULES.get(identifier)
        if rule is None or packet not in rule.packets:
            raise MalformedPacket(f"property {identifier:#04x} may not stand in {_NAMES[packet]}")
        value = _checked(_read_value(part, rule.kind), rule)
        if rule.kind is Kind.PAIR:
            if len(users) == USER_PROPERTIES_MAX:
                raise ProtocolError(
                    f"more than {USER_PROPERTIES_MAX} user properties", Reason.QUOTA_EXCEEDED
                )
            users.append(value)
        elif rule.attribute == "subscription_identifiers":
            # PUBLISH may name several, one for each subscription that matched (3.3.2.3.8).
            if packet == PacketType.SUBSCRIBE and identifier in seen:
                raise ProtocolError("more than one subscription identifier")
            identifiers.append(value)
        elif identifier in seen:
            raise ProtocolError(f"{rule.attribute} stands twice")
        else:
            setattr(found, rule.attribute, value)
        seen.add(identifier)
    found.user_properties, found.subscription_identifiers = tuple(users), tuple(identifiers)
    return found


def _read_value(part: Reader, kind: Kind) -> Any:
    match kind:
        case Kind.BYTE:
            return part.byte()
        case Kind.TWO_BYTES:
            return part.two_bytes()
        case Kind.FOUR_BYTES:
            return part.four_bytes()
        case Kind.VARIABLE:
            return part.variable()
        case Kind.STRING:
            return part.string()
        case Kind.BINARY:
            return part.binary()
        case Kind.PAIR:
            return (part.string(), part.string())


def _checked(value: Any, rule: Rule) -> Any:
    if rule.flag and value > 1:
        raise ProtocolError(f"{rule.attribute} is {value}, neither 0 nor 1")
    if rule.positive and value == 0:
        raise ProtocolError(f"{rule.attribute} is 0")
    return value


def _value_bytes(value: Any, kind: Kind) -> bytes:
    match kind:
        case Kind.BYTE:
            return bytes((value,))
        case Kind.TWO_BYTES:
            return int(value).to_bytes(2, "big")
        case Kind.FOUR_BYTES:
            return int(value).to_bytes(4, "big")
        case Kind.VARIABLE:
            return variable_bytes(value)
        case Kind.STRING:
            return string_bytes(value)
        case Kind.BINARY:
            return binary_bytes(value)
        case Kind.PAIR:
            return string_bytes(value[0]) + string_bytes(value[1])


def bare_properties(properties: Properties) -> bytes:
    """The properties without their length, which `write_properties` puts in front."""
    if properties is NO_PROPERTIES:
        return b""
    parts: list[bytes] = []
    for identifier, rule in RULES.items():
        value = getattr(properties, rule.attribute)
        if value is None:
            continue
        several = rule.attribute in ("subscription_identifiers", "user_properties")
        for one in value if several else (value,):
            # An identifier is a variable byte integer; all there are fit one byte.
            parts += (bytes((identifier,)), _value_bytes(one, rule.kind))
    return b"".join(parts)


def write_properties(properties: Properties) -> bytes:
    """Length and properties, as they stand in a packet."""
    if properties is NO_PROPERTIES:
        return b"\0"
    bare = bare_properties(properties)
    return variable_bytes(len(bare)) + bare
