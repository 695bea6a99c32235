"""Sessions and retained messages <-> bytes, as internal topics keep them.

msgpack maps with short keys; `v` is the version of the format. Unknown keys are ignored, so that an
older build reads what a newer one added.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import msgpack

from lakemq.broker_core.api.limits.user_shares import Owner
from lakemq.broker_core.api.types import Principal
from lakemq.plugins.mqtt.state.delivery import ENTRY_BYTES, PACKET_ID_MAX, Delivery
from lakemq.plugins.mqtt.state.sessions import Positions, Session, Start
from lakemq.plugins.mqtt.state.stored_values import (
    LONG_MAX,
    U32_MAX,
    VERSION,
    BadSnapshot,
    any_text,
    binary,
    flag,
    items,
    number,
    number_or_none,
    properties,
    text,
    texts_by_text,
    topic_name,
    unpacked,
    unpacked_map,
)
from lakemq.plugins.mqtt.wire.messages import Message, Place
from lakemq.plugins.mqtt.wire.packets import Properties, Will

IDENTIFIER_MAX: Final = 268_435_455
"""Largest subscription identifier (a variable byte integer)."""
COPIES_MAX_BYTES: Final = 256 * 1024
"""Messages that lie in no topic are kept in their session's record, up to this."""


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
    cut: bool = False
    """The queue was longer: its rest lies behind `positions`, and some of the kept entries may,
    too."""
    taken: int = 0
    """`Session.taken` of the first owner whose publishes may lie behind `positions`."""


def _message_value(message: Message) -> list[Any]:
    return [
        message.topic,
        message.payload,
        message.qos,
        message.retain,
        message.arrived_ms,
        message.properties,
        message.expires_ms,
        message.origin,
    ]


def _message(value: Any) -> Message:
    topic, payload, qos, retain, arrived_ms, properties, expires_ms, origin = items(value, 8)
    message = Message(
        topic_name(topic),
        binary(payload),
        number(qos, 0, 2),
        flag(retain),
        number(arrived_ms, -LONG_MAX),
        binary(properties),
        origin=None if origin is None else text(origin),
    )
    message.expires_ms = number_or_none(expires_ms, -LONG_MAX)
    return message


def _positions_value(positions: Positions) -> list[tuple[str, int, int]]:
    return [(topic, partition, offset) for (topic, partition), offset in positions.items()]


def _positions(value: Any) -> Positions:
    return {place[:2]: place.offset for place in map(_place, items(value))}


def _place(value: Any) -> Place:
    topic, partition, offset = items(value, 3)
    return Place(any_text(topic), number(partition, 0, U32_MAX), number(offset))


class _Copies:
    """Counts the bytes of messages that are copied into one record."""

    def __init__(self) -> None:
        self.left = COPIES_MAX_BYTES

    def value(self, delivery: Delivery) -> tuple[Any, ...] | None:
        """A delivery as msgpack value; None: it cannot be kept."""
        content: Any = delivery.place
        if content is None:
            message = delivery.message
            if message is None or message.size_bytes > self.left:
                return None
            self.left -= message.size_bytes
            content = _message_value(message)
        return (delivery.qos, delivery.retain, delivery.identifiers, content)


def _delivery(value: Any) -> Delivery:
    qos, retain, identifiers, content = items(value, 4)
    named = tuple(number(each, 1, IDENTIFIER_MAX) for each in items(identifiers))
    head = (number(qos, 1, 2), flag(retain), named)
    if len(items(content)) == len(Place._fields):
        return Delivery(None, *head, place=_place(content))
    return Delivery(_message(content), *head)


def _queue(value: Any, sizes: Any) -> list[Delivery]:
    """`sizes`: bytes of each message; None: an older build wrote it."""
    queue = [_delivery(each) for each in items(value)]
    if sizes is not None:
        for one, size in zip(queue, items(sizes, len(queue)), strict=True):
            one.size_bytes = ENTRY_BYTES + number(size, 0, U32_MAX)
    return queue


def _inflight(value: Any) -> tuple[int, Delivery]:
    packet_id, released, content = items(value, 3)
    delivery = _delivery(content)
    delivery.released = flag(released)
    if delivery.released and delivery.qos != 2:
        raise BadSnapshot("PUBREC of a publish that is not of QoS 2")
    return number(packet_id, 1, PACKET_ID_MAX), delivery


def _incoming(value: Any) -> tuple[int, Place]:
    packet_id, place = items(value, 2)
    return number(packet_id, 1, PACKET_ID_MAX), _place(place)


def _subscription(value: Any) -> tuple[str, int, int]:
    topic_filter, options, identifier = items(value, 3)
    if number(options, 0, 0xFF) & 3 == 3:
        raise BadSnapshot("a subscription of QoS 3")
    return text(topic_filter), options, number(identifier, 0, IDENTIFIER_MAX)


def _history(value: Any) -> tuple[str, tuple[Start, Positions]]:
    topic_filter, offset, since_ms, positions = items(value, 4)
    start = Start(number(offset), number_or_none(since_ms))
    return text(topic_filter), (start, _positions(positions))


def session_bytes(session: Session, positions: Positions) -> bytes:
    """A session as it is now; `positions`: up to where all sessions have got everything."""
    copies, outbound = _Copies(), session.outbound
    inflight = [
        (packet_id, delivery.released, value)
        for packet_id, delivery in outbound.inflight.items()
        if (value := copies.value(delivery)) is not None
    ]
    waiting, again_from = outbound.kept_queue()
    queue = [(one, value) for one in waiting if (value := copies.value(one)) is not None]
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
            # Of one that is being stored the record, if there will be one, tells its session
            # after a crash (`Hub.note_stored`).
            if isinstance(place, Place)
        ],
        "rel": _positions_value(session.released),
        "out": inflight,
        "que": [value for _, value in queue],
        "siz": [one.size_bytes - ENTRY_BYTES for one, _ in queue],
        # What is cut off the queue is matched again, from its first record on.
        "pos": _positions_value({**positions, **again_from}),
        "will": will_value(session.will),
        "due": session.will_due_ms,
    }
    if again_from:
        state["cut"] = True
    # Until it has come, what an owner before had stored may not have been found.
    taken = session.taken if session.coming is None else session.former
    if taken:
        state["tak"] = taken
    if session.histories:
        state["rep"] = [
            (text, one.start.offset, one.start.since_ms, _positions_value(one.positions))
            for text, one in session.histories.items()
        ]
    return bytes(msgpack.packb(state))


def principal_value(principal: Principal) -> list[Any]:
    """A principal as msgpack value: name, kind, attributes, roles; its rules are not kept."""
    return [principal.name, principal.kind, dict(principal.attributes), list(principal.roles)]


def read_principal(value: Any) -> Principal:
    """A user or an anonymous client: what the broker itself is is never read from a record, so
    that no record gives its rights."""
    name, kind, attributes, *roles = items(value, 3, 4)
    if kind not in ("user", "anonymous"):
        raise BadSnapshot(f"nothing is kept for a principal of kind {kind!r:.40}")
    known = tuple(any_text(role) for role in items(roles[0])) if roles else ()
    return Principal(any_text(name), kind, texts_by_text(attributes), known)


def will_value(will: Will | None) -> list[Any] | None:
    """A will as msgpack value, with the properties that are set; None: there is none."""
    if will is None:
        return None
    named = will.properties
    properties = {
        name: getattr(named, name)
        for name in Properties.__dataclass_fields__
        if getattr(named, name) not in (None, ())
    }
    return [will.topic, will.payload, will.qos, will.retain, properties]


def read_will(value: Any) -> Will | None:
    """Inverse of `will_value`. Raises BadSnapshot."""
    if value is None:
        return None
    topic, payload, qos, retain, named = items(value, 5)
    return Will(
        topic_name(topic), binary(payload), number(qos, 0, 2), flag(retain), properties(named)
    )


def read_session(client_id: str, data: bytes) -> SessionState:
    """Inverse of `session_bytes`. Raises BadSnapshot."""
    value = unpacked(data)
    try:
        return SessionState(
            text(client_id),
            read_principal(value["who"]),
            any_text(value["inc"]),
            number(value["exp"], 0, U32_MAX),
            number_or_none(value["end"]),
            [_subscription(each) for each in items(value["sub"])],
            dict(map(_incoming, items(value["in"]))),
            _positions(value["rel"]),
            [_inflight(each) for each in items(value["out"])],
            _queue(value["que"], value.get("siz")),
            _positions(value["pos"]),
            read_will(value["will"]),
            number_or_none(value["due"]),
            dict(map(_history, items(value.get("rep", [])))),
            flag(value.get("cut", False)),
            number(value.get("tak", 0)),
        )
    except KeyError as error:
        raise BadSnapshot(f"{error} is missing") from None


def retained_bytes(message: Message, owner: Owner | None = None) -> bytes:
    """A retained message, and the owner in whose share it counts."""
    value: dict[str, Any] = {"v": VERSION, "m": _message_value(message)}
    if owner is not None:
        value["own"] = list(owner)
    return bytes(msgpack.packb(value))


def read_retained(data: bytes) -> tuple[Message, Owner | None]:
    """Inverse of `retained_bytes`. Raises BadSnapshot."""
    try:
        value = unpacked(data)
        message = _message(value["m"])
        if value.get("own") is None:
            return message, None
        kind, name = map(any_text, items(value["own"], 2))
        return message, (kind, name)
    except KeyError as error:
        raise BadSnapshot(f"{error} is missing") from None


def positions_bytes(positions: Positions) -> bytes:
    """Positions alone, as the topics of retained and delayed messages keep them."""
    return bytes(msgpack.packb({"v": VERSION, "pos": _positions_value(positions)}))


def read_positions(data: bytes) -> Positions:
    """Inverse of `positions_bytes`. Raises BadSnapshot."""
    try:
        return _positions(unpacked(data)["pos"])
    except KeyError as error:
        raise BadSnapshot(f"{error} is missing") from None


def source_bytes(place: Place, topic_id: str) -> bytes:
    """Which record a message was retained by."""
    topic, partition, offset = place
    return bytes(msgpack.packb({"t": topic, "id": topic_id, "p": partition, "o": offset}))


def read_source(data: bytes) -> tuple[Place, str]:
    """Inverse of `source_bytes`. Raises BadSnapshot."""
    found = unpacked_map(data)
    try:
        place = Place(text(found["t"]), number(found["p"]), number(found["o"]))
        return place, any_text(found["id"])
    except KeyError as error:
        raise BadSnapshot(f"{error} is missing") from None
