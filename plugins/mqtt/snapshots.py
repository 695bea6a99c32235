"""Sessions and retained messages <-> bytes, as internal topics keep them. Pure.

msgpack maps with short keys; `v` is the version of the format. Unknown keys are ignored, so that an
older build reads what a newer one added.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgpack

from broker_core.api.types import Principal
from plugins.mqtt.delivery import Delivery
from plugins.mqtt.history import Start
from plugins.mqtt.messages import Message, Place
from plugins.mqtt.packets import NO_PROPERTIES, Properties, Will
from plugins.mqtt.sessions import Session

VERSION: Final = 1
COPIES_BYTES_MAX: Final = 256 * 1024
"""Messages that lie in no topic are kept in their session's record, up to this."""

Positions = dict[tuple[str, int], int]
"""(topic, partition) -> offset of the next record that was not dealt with yet."""


class BadSnapshot(ValueError):
    """The bytes are no snapshot that this build reads."""


@dataclass(slots=True)
class SessionState:
    """A session as it was kept."""

    client_id: str
    principal: Principal
    incarnation: str
    expiry_s: int
    ends_ms: int | None
    """None: it was connected, or never ends."""
    subscriptions: list[tuple[str, int, int]]
    """(filter, options, identifier)"""
    incoming: dict[int, Place]
    released: Positions
    inflight: list[tuple[int, Delivery]]
    queue: list[Delivery]
    positions: Positions
    will: Will | None = None
    will_due_ms: int | None = None
    histories: dict[str, tuple[Start, Positions]] = field(default_factory=dict)
    """Subscriptions that read history, by their text, and how far."""


def _message_value(message: Message) -> list[Any]:
    return [
        message.topic, message.payload, message.qos, message.retain, message.arrived_ms,
        message.properties, message.expires_ms, message.origin,
    ]  # fmt: skip


def _message(value: list[Any]) -> Message:
    topic, payload, qos, retain, arrived_ms, properties, expires_ms, origin = value
    message = Message(topic, payload, qos, retain, arrived_ms, properties, None, origin)
    message.expires_ms = expires_ms
    return message


def _positions_value(positions: Positions) -> list[tuple[str, int, int]]:
    return [(topic, partition, offset) for (topic, partition), offset in positions.items()]


def _positions(value: Iterable[tuple[str, int, int]]) -> Positions:
    return {(topic, partition): offset for topic, partition, offset in value}


class _Copies:
    """Counts the bytes of messages that are copied into one record."""

    def __init__(self) -> None:
        self.left = COPIES_BYTES_MAX

    def value(self, delivery: Delivery) -> list[Any] | None:
        """A delivery as msgpack value; None: it cannot be kept."""
        head = [delivery.qos, delivery.retain, list(delivery.identifiers)]
        if delivery.place is not None:
            return [*head, list(delivery.place)]
        message = delivery.message
        if message is None or message.size_bytes > self.left:
            return None
        self.left -= message.size_bytes
        return [*head, _message_value(message)]


def _delivery(value: list[Any]) -> Delivery:
    qos, retain, identifiers, content = value
    if len(content) == len(Place._fields):
        return Delivery(None, qos, retain, tuple(identifiers), place=Place(*content))
    return Delivery(_message(content), qos, retain, tuple(identifiers))


def session_bytes(session: Session, positions: Positions) -> bytes:
    """A session as it is now; `positions`: up to where all sessions have got everything."""
    copies, outbound = _Copies(), session.outbound
    inflight = [
        (packet_id, delivery.released, value)
        for packet_id, delivery in outbound.inflight.items()
        if (value := copies.value(delivery)) is not None
    ]
    queue = [value for one in outbound.queue or () if (value := copies.value(one)) is not None]
    state = {
        "v": VERSION,
        "who": principal_value(session.principal),
        "inc": session.incarnation,
        "exp": session.expiry_s,
        "end": session.ends_ms,
        "sub": [(text, one.options, one.identifier) for text, one in session.subscriptions.items()],
        "in": [
            (packet_id, list(place))
            for packet_id, place in session.incoming.items()
            if place is not None
        ],
        "rel": _positions_value(session.released),
        "out": inflight,
        "que": queue,
        "pos": _positions_value(positions),
        "will": will_value(session.will),
        "due": session.will_due_ms,
    }
    if session.histories:
        state["rep"] = [
            (text, one.start.offset, one.start.since_ms, _positions_value(one.positions))
            for text, one in session.histories.items()
        ]
    return bytes(msgpack.packb(state))


def principal_value(principal: Principal) -> list[Any]:
    return [principal.name, principal.kind, dict(principal.attributes), list(principal.roles)]


def read_principal(value: list[Any]) -> Principal:
    name, kind, attributes, *roles = value
    return Principal(name, kind, attributes, tuple(roles[0]) if roles else ())


def will_value(will: Will | None) -> list[Any] | None:
    if will is None:
        return None
    named = will.properties
    properties = {
        name: getattr(named, name)
        for name in Properties.__dataclass_fields__
        if getattr(named, name) not in (None, ())
    }
    return [will.topic, will.payload, will.qos, will.retain, properties]


def read_will(value: list[Any] | None) -> Will | None:
    if value is None:
        return None
    topic, payload, qos, retain, named = value
    if "user_properties" in named:
        named["user_properties"] = tuple((key, text) for key, text in named["user_properties"])
    properties = Properties(**named) if named else NO_PROPERTIES
    return Will(topic, payload, qos, retain, properties)


def unpacked(data: bytes) -> Mapping[str, Any]:
    try:
        value = msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise BadSnapshot(f"no msgpack: {error}") from None
    if not isinstance(value, dict) or value.get("v") != VERSION:
        raise BadSnapshot("not a snapshot of version 1")
    return value


def read_session(client_id: str, data: bytes) -> SessionState:
    """Inverse of `session_bytes`. Raises BadSnapshot."""
    value = unpacked(data)
    try:
        inflight = []
        for packet_id, released, content in value["out"]:
            delivery = _delivery(content)
            delivery.released = released
            inflight.append((packet_id, delivery))
        return SessionState(
            client_id,
            read_principal(value["who"]),
            value["inc"],
            value["exp"],
            value["end"],
            [(text, options, identifier) for text, options, identifier in value["sub"]],
            {packet_id: Place(*place) for packet_id, place in value["in"]},
            _positions(value["rel"]),
            inflight,
            [_delivery(each) for each in value["que"]],
            _positions(value["pos"]),
            read_will(value["will"]),
            value["due"],
            {
                text: (Start(offset, since_ms), _positions(positions))
                for text, offset, since_ms, positions in value.get("rep", ())
            },
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadSnapshot(f"a field is missing or wrong: {error!r}") from None


def retained_bytes(message: Message) -> bytes:
    return bytes(msgpack.packb({"v": VERSION, "m": _message_value(message)}))


def read_retained(data: bytes) -> Message:
    """Inverse of `retained_bytes`. Raises BadSnapshot."""
    try:
        return _message(unpacked(data)["m"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadSnapshot(f"a field is missing or wrong: {error!r}") from None


def positions_bytes(positions: Positions) -> bytes:
    return bytes(msgpack.packb({"v": VERSION, "pos": _positions_value(positions)}))


def read_positions(data: bytes) -> Positions:
    """Inverse of `positions_bytes`. Raises BadSnapshot."""
    try:
        return _positions(unpacked(data)["pos"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadSnapshot(f"a field is missing or wrong: {error!r}") from None
