"""MQTT control packets as values.

Packets of which each publish makes one have an initializer that is written out: a dataclass makes
its own at import, which stays interpreted where modules are compiled.

One class per packet type; 3.1, 3.1.1 and 5.0 share them, and what a version lacks stays at its
default. Source: MQTT 3.1.1 and 5.0, chapter 3. Labels like [MQTT-3.1.2-24] in this package are
those of 5.0 unless they say 3.1.1.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

V31: Final = 3
V311: Final = 4
V5: Final = 5


class PacketType(enum.IntEnum):
    """The high four bits of a packet's first byte."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


@dataclass(
    slots=True, unsafe_hash=True, repr=False
)  # hashable, so that it may be a default value below
class Properties:
    """All properties of MQTT 5.0 section 2.2.2.2; `None`: the property is absent. Filled by the
    decoder and not changed afterwards."""

    payload_format: int | None = None
    message_expiry_s: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_identifiers: tuple[int, ...] = ()
    session_expiry_s: int | None = None
    assigned_client_id: str | None = None
    server_keep_alive_s: int | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    request_problem_information: int | None = None
    will_delay_s: int | None = None
    request_response_information: int | None = None
    response_information: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None
    retain_available: int | None = None
    user_properties: tuple[tuple[str, str], ...] = ()
    packet_max_bytes: int | None = None
    wildcard_subscription_available: int | None = None
    subscription_identifier_available: int | None = None
    shared_subscription_available: int | None = None

    def __repr__(self) -> str:
        """Only what is there."""
        found = [(each.name, getattr(self, each.name)) for each in fields(self)]
        shown = [f"{name}={value!r}" for name, value in found if value not in (None, ())]
        return f"Properties({', '.join(shown)})"


NO_PROPERTIES: Final = Properties()
"""Shared by all packets without properties; never changed."""


@dataclass(slots=True)
class Will:
    """The will of CONNECT: what is published when its connection or session ends (3.1.2.5)."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Connect:
    """CONNECT (3.1). `version` is 3, 4 or 5; `clean_start` is Clean Session before version 5."""

    client_id: str
    version: int = V311
    clean_start: bool = True
    keep_alive_s: int = 0
    username: str | None = None
    password: bytes | None = field(default=None, repr=False)
    will: Will | None = None
    properties: Properties = NO_PROPERTIES
    bridge: bool = False
    """It says that it is another broker's bridge: it wants nothing back that it published, and the
    retain flag as it was."""


@dataclass(slots=True)
class Connack:
    """CONNACK (3.2)."""

    session_present: bool = False
    code: int = 0
    """Return code in 3.1.1, reason code in 5."""
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True, init=False)
class Publish:
    """PUBLISH (3.3). `topic` is empty where a topic alias stands for it."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    packet_id: int
    """0 for QoS 0."""
    properties: Properties

    def __init__(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        dup: bool = False,
        packet_id: int = 0,
        properties: Properties = NO_PROPERTIES,
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.dup = dup
        self.packet_id = packet_id
        self.properties = properties


@dataclass(slots=True, init=False)
class PublishRun:
    """Consecutive QoS 0 PUBLISH packets, neither retained nor with properties, as the very bytes
    that came."""

    names: Sequence[bytes]
    """Topic name of each."""
    sizes: Sequence[int]
    """Length of each packet (bytes)."""
    packets: bytes

    def __init__(self, names: Sequence[bytes], sizes: Sequence[int], packets: bytes) -> None:
        self.names = names
        self.sizes = sizes
        self.packets = packets

    def one_by_one(self) -> Iterator[PublishRun]:
        """The same as runs of one packet."""
        end = 0
        for name, size in zip(self.names, self.sizes, strict=True):
            begin, end = end, end + size
            yield PublishRun((name,), (size,), self.packets[begin:end])


@dataclass(slots=True, init=False)
class StoredRun:
    """Consecutive PUBLISH packets of one QoS, 1 or 2, to one topic name, neither repeated, retained
    nor with properties."""

    route: Any
    """What `Decoder.stored`, or `stored_2`, says of the name."""
    packet_ids: Sequence[int]
    payloads: Sequence[bytes]
    qos: int

    def __init__(
        self, route: Any, packet_ids: Sequence[int], payloads: Sequence[bytes], qos: int = 1
    ) -> None:
        self.route = route
        self.packet_ids = packet_ids
        self.payloads = payloads
        self.qos = qos


@dataclass(slots=True, init=False)
class Acknowledgement:
    """PUBACK, PUBREC, PUBREL or PUBCOMP."""

    type: PacketType
    packet_id: int
    reason: int
    properties: Properties

    def __init__(
        self,
        type: PacketType,
        packet_id: int,
        reason: int = 0,
        properties: Properties = NO_PROPERTIES,
    ) -> None:
        self.type = type
        self.packet_id = packet_id
        self.reason = reason
        self.properties = properties


@dataclass(slots=True, init=False)
class AcknowledgementRun:
    """Consecutive acknowledgements of one type without a reason."""

    type: PacketType
    packet_ids: Sequence[int]

    def __init__(self, type: PacketType, packet_ids: Sequence[int]) -> None:
        self.type = type
        self.packet_ids = packet_ids


@dataclass(slots=True)
class Filter:
    """One topic filter of a SUBSCRIBE; `options` is its byte on the wire."""

    topic_filter: str
    options: int = 0

    @property
    def qos(self) -> int:
        """Highest QoS of delivery."""
        return self.options & 0x03

    @property
    def retain_handling(self) -> int:
        """When retained messages are sent: 0 always, 1 if the subscription is new, 2 never."""
        return (self.options >> 4) & 0x03


BRIDGE: Final = 0x80
"""Bit of the protocol level by which bridges of 3.1.1 tell what they are, as Mosquitto has it."""
NO_LOCAL: Final = 0x04
RETAIN_AS_PUBLISHED: Final = 0x08


@dataclass(slots=True)
class Subscribe:
    """SUBSCRIBE (3.8)."""

    packet_id: int
    filters: tuple[Filter, ...]
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Suback:
    """SUBACK (3.9): a code for each filter, in their order."""

    packet_id: int
    codes: tuple[int, ...]
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Unsubscribe:
    """UNSUBSCRIBE (3.10)."""

    packet_id: int
    filters: tuple[str, ...]
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Unsuback:
    """UNSUBACK (3.11): a code for each filter, in their order."""

    packet_id: int
    codes: tuple[int, ...] = ()
    """Empty in 3.1.1."""
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Ping:
    """PINGREQ or PINGRESP."""

    type: PacketType


@dataclass(slots=True)
class Disconnect:
    """DISCONNECT (3.14), from either side in version 5."""

    reason: int = 0
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Auth:
    """AUTH (3.15), version 5 alone."""

    reason: int = 0
    properties: Properties = NO_PROPERTIES


Packet = (
    Connect
    | Connack
    | Publish
    | PublishRun
    | StoredRun
    | Acknowledgement
    | AcknowledgementRun
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Ping
    | Disconnect
    | Auth
)
