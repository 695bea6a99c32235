"""Publishes <-> records: which header holds what.

`docs/mqtt.md` lists the headers. Names that begin with `mqtt.` are the broker's; every other header
whose value is UTF-8 is an MQTT 5 user property, and the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, NamedTuple

from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.limits.user_shares import Owner
from lakemq.broker_core.api.records.batch import CONTROL, RecordBatch
from lakemq.broker_core.api.records.headers import decode_headers, encode_headers
from lakemq.broker_core.api.types import CommittedBatch, Headers
from lakemq.plugins.mqtt.wire.messages import Message, Place
from lakemq.plugins.mqtt.wire.packets import NO_PROPERTIES, Properties, Publish
from lakemq.plugins.mqtt.wire.primitives import STRING_MAX_BYTES
from lakemq.plugins.mqtt.wire.properties import bare_properties
from lakemq.plugins.mqtt.wire.reasons import MqttError
from lakemq.plugins.mqtt.wire.topics import TopicNames, check_topic_name

TOPIC: Final = "mqtt.topic"
CLIENT: Final = "mqtt.client"
QOS: Final = "mqtt.qos"
RETAIN: Final = "mqtt.retain"
PAYLOAD_FORMAT: Final = "mqtt.payload_format"
MESSAGE_EXPIRY: Final = "mqtt.message_expiry_s"
CONTENT_TYPE: Final = "mqtt.content_type"
RESPONSE_TOPIC: Final = "mqtt.response_topic"
CORRELATION_DATA: Final = "mqtt.correlation_data"
QOS_2_ID: Final = "mqtt.qos2_id"
"""Session and packet identifier of a QoS 2 publish: tells it again after a crash."""
DELAYED_ID: Final = "mqtt.delayed_id"
"""Key of the delayed record that a publish was: tells after a crash that it was published."""
OWNER: Final = "mqtt.owner"
"""Kind and name of the user whose share a retained publish counts in: where nodes share retained
messages, the publisher's session may be on another one."""
_RESERVED: Final = "mqtt."
BROKERS_OWN: Final = (CLIENT, QOS_2_ID, DELAYED_ID, OWNER)
"""Headers that are believed, so clients may not write them into bound topics."""
_ESCAPED: Final = "mqtt.user."
"""In front of a user property whose own name begins with `mqtt.`."""
_QOS_HEADERS: Final = tuple(encode_headers(((QOS, b"%d" % qos),)) for qos in range(3))
PlainHeaders = tuple[bytes, bytes, bytes]
_PARSED_MAX: Final = 4096
_BATCHES_MAX: Final = 256
_NAMES_MAX: Final = 4096
"""Names of one batch that are remembered; with more, any may be among them."""
Names = frozenset[str] | None
"""Topic names of a batch; None: a record matters whatever they are (retained, QoS 2), or there are
too many."""
_PARSED_MAX_BYTES: Final = 512


def record_headers(
    packet: Publish, client_id: str, *, key_is_client_id: bool, owner: Owner | None = None
) -> bytes:
    """The encoded record headers of a publish; with that of its owner, if it is retained."""
    headers: list[tuple[str, bytes | None]] = [
        (CLIENT, client_id.encode()),
        (QOS, b"%d" % packet.qos),
    ]
    if packet.retain:
        headers.append((RETAIN, b"1"))
        if owner is not None:
            headers.append((OWNER, "/".join(owner).encode()))
    if key_is_client_id:
        headers.append((TOPIC, packet.topic.encode()))
    if packet.properties is not NO_PROPERTIES:
        headers += _property_headers(packet.properties)
    return encode_headers(tuple(headers))


def plain_headers(topic: str, client_id: str, *, key_is_client_id: bool) -> PlainHeaders:
    """By QoS what `record_headers` says of publishes without properties that are not retained."""
    behind = encode_headers(((TOPIC, topic.encode()),)) if key_is_client_id else b""
    client = client_header(client_id)
    zero, one, two = (client + qos + behind for qos in _QOS_HEADERS)
    return zero, one, two


def client_header(client_id: str) -> bytes:
    """The encoded header that names the publisher."""
    return encode_headers(((CLIENT, client_id.encode()),))


def qos_2_header(stamp: str, packet_id: int) -> bytes:
    """Encoded header to put behind those of `record_headers`."""
    return encode_headers(((QOS_2_ID, f"{stamp}/{packet_id}".encode()),))


def delayed_header(key: str) -> bytes:
    """Encoded header to put behind those of `record_headers`."""
    return encode_headers(((DELAYED_ID, key.encode()),))


def _property_headers(properties: Properties) -> Iterator[tuple[str, bytes]]:
    if properties.payload_format is not None:
        yield PAYLOAD_FORMAT, b"%d" % properties.payload_format
    if properties.message_expiry_s is not None:
        yield MESSAGE_EXPIRY, b"%d" % properties.message_expiry_s
    if properties.content_type is not None:
        yield CONTENT_TYPE, properties.content_type.encode()
    if properties.response_topic is not None:
        yield RESPONSE_TOPIC, properties.response_topic.encode()
    if properties.correlation_data is not None:
        yield CORRELATION_DATA, properties.correlation_data
    for name, value in properties.user_properties:
        prefix = _ESCAPED if name.startswith(_RESERVED) else ""
        key = prefix + name
        # With the prefix, the longest names no longer fit an MQTT string.
        if len(key.encode()) <= STRING_MAX_BYTES:
            yield key, value.encode()


class Meta(NamedTuple):
    """What a record's headers say about its publish."""

    topic: str | None
    origin: str | None
    qos: int
    retain: bool
    properties: bytes
    expiry_s: int | None
    qos_2_id: tuple[str, int] | None = None
    """`Session.stamp` and packet identifier."""
    delayed_id: str | None = None
    """Key of the delayed record that it was."""
    owner: Owner | None = None
    """Whose share it counts in if it is retained; None: it does not say."""

    @property
    def marked(self) -> bool:
        """Whether the broker must take note of the record, beside delivering it."""
        return self.qos_2_id is not None or self.delayed_id is not None


def parse_headers(headers: Headers) -> Meta:
    """Read a record's headers. What a native producer wrote wrongly is left out, not refused."""
    known: dict[str, bytes] = {}
    users: list[tuple[str, str]] = []
    for name, value in headers:
        if value is None or len(value) > STRING_MAX_BYTES:
            continue
        if name.startswith(_RESERVED) and not name.startswith(_ESCAPED):
            known[name] = value
            continue
        text, plain = _text(value), name.removeprefix(_ESCAPED)
        if text is not None and "\0" not in plain:
            users.append((plain, text))
    response = _text(known.get(RESPONSE_TOPIC))
    properties = Properties(
        payload_format={b"0": 0, b"1": 1}.get(known.get(PAYLOAD_FORMAT, b"")),
        content_type=_text(known.get(CONTENT_TYPE)),
        response_topic=response if response and _is_topic_name(response) else None,
        correlation_data=known.get(CORRELATION_DATA),
        user_properties=tuple(users),
    )
    return Meta(
        _text(known.get(TOPIC)),
        _text(known.get(CLIENT)),
        # A record of a native producer names no QoS and counts as QoS 1.
        {b"0": 0, b"2": 2}.get(known.get(QOS, b"1"), 1),
        known.get(RETAIN) == b"1",
        bare_properties(properties),
        _number(known.get(MESSAGE_EXPIRY)),
        _qos_2_id(_text(known.get(QOS_2_ID))),
        _text(known.get(DELAYED_ID)),
        _owner(_text(known.get(OWNER))),
    )


def _owner(text: str | None) -> Owner | None:
    kind, slash, name = (text or "").partition("/")
    return (kind, name) if slash else None


def _qos_2_id(text: str | None) -> tuple[str, int] | None:
    incarnation, _, packet_id = (text or "").partition("/")
    number = packet_id.isascii() and packet_id.isdigit() and len(packet_id) <= 5
    return (incarnation, int(packet_id)) if number else None


def _text(value: bytes | None) -> str | None:
    if value is None:
        return None
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _is_topic_name(text: str) -> bool:
    try:
        check_topic_name(text)
    except MqttError:
        return False
    return True


def _number(value: bytes | None) -> int | None:
    if value is None or not value.isdigit() or len(value) > 10:
        return None
    return min(int(value), 0xFFFF_FFFF)


_Row = tuple[int, bytes | None, bytes | None, bytes, int]
"""Offset, key, value, encoded headers and timestamp of a record."""


def _rows(batch: CommittedBatch, opened: RecordBatch | None) -> Iterable[_Row]:
    """The user records of a batch, `opened` if it is by now. CorruptBatch when it is broken
    inside."""
    if batch.columns is not None:
        values, keys, headers, times = batch.columns
        count, base = len(values), batch.base_offset
        assert times is not None
        return zip(
            range(base, base + count),
            [None] * count if keys is None else keys,
            values,
            [b""] * count if headers is None else headers,
            times,
            strict=True,
        )
    opened = opened or RecordBatch(batch.data)
    if opened.header.attributes & CONTROL:
        return ()
    return zip(
        opened.offsets(),
        opened.keys(),
        opened.values(),
        opened.encoded_headers(),
        opened.timestamps_ms(),
        strict=True,
    )


class RecordReader:
    """Opens committed batches as messages; remembers what it parsed, since headers repeat."""

    __slots__ = ("_batches", "_names", "_parsed", "unreadable")

    def __init__(self, names: TopicNames) -> None:
        self._names = names
        self._parsed: dict[bytes, Meta] = {b"": parse_headers(())}
        self._batches: dict[tuple[str, int, int, int], Names] = {}
        self.unreadable = 0
        """Records whose key is no topic name, or whose headers are broken."""

    def messages(self, batch: CommittedBatch) -> Iterator[Message]:
        """The message of every record, with its place."""
        for message, _ in self.read(batch):
            yield message

    def read(
        self,
        batch: CommittedBatch,
        heard: Callable[[str], bool] | None = None,
        opened: RecordBatch | None = None,
        at: Collection[int] | None = None,
    ) -> Iterator[tuple[Message, Meta]]:
        """Every record's message and what its headers say. CorruptBatch when the batch is broken.
        `opened`: the same batch, if it is open by now.

        `heard`: leaves records out whose topic name is not, unless they matter otherwise (retained,
        QoS 2). `at`: leaves out all but the records at these offsets.
        """
        parsed, names = self._parsed.get, self._names
        for offset, key, value, headers, timestamp_ms in _rows(batch, opened):
            if at is not None and offset not in at:
                continue
            try:
                meta = parsed(headers) or self._parse(headers)
                topic = meta.topic
                if topic is None:
                    topic = names[key or b""]
                else:
                    names.check(topic)
            except (MqttError, LakeMQError):
                topic = ""
            if not topic:
                self.unreadable += 1
                continue
            # Before a Message is made of it.
            if heard and not (heard(topic) or meta.retain or meta.marked):
                continue
            place = Place(batch.topic, batch.partition, offset)
            message = Message(
                topic,
                value or b"",
                meta.qos,
                meta.retain,
                timestamp_ms,
                meta.properties,
                meta.expiry_s,
                meta.origin,
                place,
            )
            if meta.owner is not None:
                message = message.owned_by(meta.owner)
            yield message, meta

    def names(self, batch: CommittedBatch, opened: RecordBatch | None = None) -> Names:
        """Topic names of the records, "" for one that cannot be read. Costs a fraction of `read`,
        as keys and headers repeat; remembered of the last batches, which several readers ask for.
        CorruptBatch when the batch is broken; `opened`: the same batch, if it is open by now."""
        # The size tells batches apart that came behind another in a topic of the same name.
        place = (batch.topic, batch.partition, batch.base_offset, len(batch.data))
        known = self._batches
        if place not in known:
            found = self._names_of(batch, opened)
            if len(known) >= _BATCHES_MAX:
                del known[next(iter(known))]
            known[place] = found if found is None or len(found) <= _NAMES_MAX else None
        return known[place]

    def _names_of(self, batch: CommittedBatch, opened: RecordBatch | None) -> Names:
        found: set[str] = set()
        keyed = False
        columns = batch.columns
        if columns is None:
            opened = opened or RecordBatch(batch.data)
            if opened.header.attributes & CONTROL:
                return frozenset()
        every = columns.headers if columns is not None else opened and opened.encoded_headers()
        for headers in set(every or (b"",)):
            try:
                meta = self._parsed.get(headers) or self._parse(headers)
                if meta.retain or meta.marked:
                    return None
                if meta.topic is None:
                    keyed = True
                else:
                    found.add(self._names.check(meta.topic))
            except (MqttError, LakeMQError):
                found.add("")
        if not keyed:
            return frozenset(found)
        keys = columns.keys if columns is not None else opened and opened.keys()
        for key in set(keys or (b"",)):
            try:
                found.add(self._names[key or b""])
            except MqttError:
                found.add("")
        return frozenset(found)

    def _parse(self, headers: bytes) -> Meta:
        meta = parse_headers(decode_headers(headers))
        # Headers that identify one publish never repeat: they would only push out those that do.
        if len(headers) <= _PARSED_MAX_BYTES and not meta.marked:
            if len(self._parsed) >= _PARSED_MAX:
                self._parsed.clear()
            self._parsed[headers] = meta
        return meta
