"""A publish on its way to subscribers, encoded once for all who get it alike."""

from __future__ import annotations

from typing import Final, NamedTuple

from lakemq.plugins.mqtt.wire.encoding import publish_parts
from lakemq.plugins.mqtt.wire.packets import V5, Publish
from lakemq.plugins.mqtt.wire.primitives import variable_bytes
from lakemq.plugins.mqtt.wire.properties import bare_properties

_EXPIRY_MAX_S: Final = 0xFFFF_FFFF
Wire = tuple[bytes, bytes]
"""PUBLISH in front of its packet identifier, and behind it."""


class Place(NamedTuple):
    """Where a message lies in the journal."""

    topic: str
    partition: int
    offset: int


class Message:
    """One publish. Shared by all sessions that hold it; not changed after it was made."""

    __slots__ = (
        "_wires",
        "arrived_ms",
        "expires_ms",
        "origin",
        "payload",
        "place",
        "properties",
        "qos",
        "retain",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        payload: bytes,
        qos: int,
        retain: bool,
        arrived_ms: int,
        properties: bytes = b"",
        expiry_s: int | None = None,
        origin: str | None = None,
        place: Place | None = None,
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.arrived_ms = arrived_ms
        self.properties = properties
        """MQTT 5 properties that go to subscribers unaltered, encoded, without their length."""
        self.expires_ms = None if expiry_s is None else arrived_ms + 1000 * expiry_s
        self.origin = origin
        """Client id of the publisher, for No Local."""
        self.place = place
        """None: it is in memory alone."""
        self._wires: dict[tuple[int, int, bool, tuple[int, ...]], Wire] = {}

    owner: tuple[str, str] | None = None
    """Kind and name of the user whose share it counts in, where its record tells."""

    def owned_by(self, owner: tuple[str, str]) -> Message:
        """The same with an owner."""
        made = _OwnedMessage(
            self.topic, self.payload, self.qos, self.retain, self.arrived_ms, self.properties,
            None, self.origin, self.place,
        )  # fmt: skip
        made.expires_ms = self.expires_ms
        made.owner = owner
        return made

    @property
    def size_bytes(self) -> int:
        """What it takes in a queue, about."""
        return len(self.topic) + len(self.payload) + len(self.properties)

    def expired(self, now_ms: int) -> bool:
        """Whether its expiry interval is over [MQTT-3.3.2-5]."""
        return self.expires_ms is not None and now_ms >= self.expires_ms

    def wire(
        self, version: int, qos: int, retain: bool, identifiers: tuple[int, ...], now_ms: int
    ) -> Wire:
        """The packet for a subscriber; what is the same for several is encoded once."""
        key = (version, qos, retain, identifiers)
        wire = self._wires.get(key)
        if wire is None:
            wire = publish_parts(
                self.topic,
                self.payload,
                self._property_field(identifiers, now_ms) if version == V5 else b"",
                qos=qos,
                retain=retain,
            )
            if self.expires_ms is None:  # else the remaining time is in it
                self._wires[key] = wire
        return wire

    def wire_with_alias(
        self,
        alias: int,
        topic: str,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        now_ms: int,
    ) -> Wire:
        """The packet with a topic alias; `topic` is the name when the alias is set, else empty."""
        bare = self._bare_properties(identifiers, now_ms) + b"\x23" + alias.to_bytes(2, "big")
        field = variable_bytes(len(bare)) + bare
        return publish_parts(topic, self.payload, field, qos=qos, retain=retain)

    def _property_field(self, identifiers: tuple[int, ...], now_ms: int) -> bytes:
        if not identifiers and not self.properties and self.expires_ms is None:
            return b"\0"
        bare = self._bare_properties(identifiers, now_ms)
        return variable_bytes(len(bare)) + bare

    def _bare_properties(self, identifiers: tuple[int, ...], now_ms: int) -> bytes:
        bare = self.properties
        if self.expires_ms is not None:  # [MQTT-3.3.2-6]: less the time it waited here
            # Rounded up: it is 0 only when it has expired.
            remaining_s = min(max(0, -(-(self.expires_ms - now_ms) // 1000)), _EXPIRY_MAX_S)
            bare += b"\x02" + remaining_s.to_bytes(4, "big")
        for identifier in identifiers:
            bare += b"\x0b" + variable_bytes(identifier)
        return bare


class _OwnedMessage(Message):
    __slots__ = ("owner",)


def message_of(packet: Publish, now_ms: int, origin: str | None) -> Message:
    """A PUBLISH that came from a client, as subscribers shall get it."""
    properties = packet.properties
    return Message(
        packet.topic,
        packet.payload,
        packet.qos,
        packet.retain,
        now_ms,
        forwarded(packet),
        properties.message_expiry_s,
        origin,
    )


def forwarded(packet: Publish) -> bytes:
    """Its properties without those that the server sets for each subscriber."""
    bare = packet.properties
    if bare == _NONE:
        return b""
    kept = type(bare)(
        payload_format=bare.payload_format,
        content_type=bare.content_type,
        response_topic=bare.response_topic,
        correlation_data=bare.correlation_data,
        user_properties=bare.user_properties,
    )
    return bare_properties(kept)


_NONE = Publish("", b"").properties
