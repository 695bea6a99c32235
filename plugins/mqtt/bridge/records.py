"""Converts between records and the publishes that cross a bridge.

Header names are those of MQTT publishes (`docs/mqtt.md`); `mqtt.bridge` is the bridge's own: the
link that a record came by.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from lakemq.broker_core.api.errors import CorruptBatch
from lakemq.broker_core.api.records.batch import RecordBatch
from lakemq.broker_core.api.records.headers import decode_headers, encode_headers
from lakemq.plugins.mqtt.state.records import CLIENT, QOS, QOS_2_ID, RETAIN, TOPIC

BRIDGE: Final = "mqtt.bridge"
BROKERS_OWN: Final = (BRIDGE, CLIENT, QOS_2_ID)
"""Headers that the bridge trusts, so no other writer may set them in topics that it writes to."""
_ID_DIGITS_MAX: Final = 5
"""A packet identifier is 65535 at most."""
_PARSED_MAX: Final = 4096
_PARSED_MAX_BYTES: Final = 512


class BridgeHeaders(NamedTuple):
    """What a record's headers say."""

    name: str | None
    retain: bool
    client: str
    bridge: str
    qos_2_id: str


class BridgeRecord(NamedTuple):
    """A record to forward."""

    offset: int
    name: str
    payload: bytes
    retain: bool
    client: str
    bridge: str
    qos_2_id: str


class BridgeRecordReader:
    """Opens fetched batches; caches parsed headers, which repeat."""

    def __init__(self) -> None:
        self._parsed: dict[bytes, BridgeHeaders] = {}
        self.unreadable = 0
        """Records whose key is not UTF-8, or whose headers are broken."""

    def rows(self, batches: Iterable[RecordBatch], start: int) -> Iterator[BridgeRecord]:
        """Every readable record from offset `start` on."""
        for batch in batches:
            columns = zip(
                batch.offsets(),
                batch.keys(),
                batch.values(),
                batch.encoded_headers(),
                strict=True,
            )
            for offset, key, value, headers in columns:
                if offset < start:
                    continue
                try:
                    meta = self._parsed.get(headers) or self._parse(headers)
                    name = meta.name if meta.name is not None else (key or b"").decode()
                except (CorruptBatch, UnicodeDecodeError):
                    self.unreadable += 1
                    continue
                yield BridgeRecord(offset, name, value or b"", *meta[1:])

    def _parse(self, headers: bytes) -> BridgeHeaders:
        known = {name: value or b"" for name, value in decode_headers(headers)}
        text = {
            name: known[name].decode() if name in known else ""
            for name in (TOPIC, CLIENT, BRIDGE, QOS_2_ID)
        }
        meta = BridgeHeaders(
            text[TOPIC] or None,
            known.get(RETAIN) == b"1",
            text[CLIENT],
            text[BRIDGE],
            text[QOS_2_ID],
        )
        # Headers that identify one publish never repeat.
        if len(headers) <= _PARSED_MAX_BYTES and not meta.qos_2_id:
            if len(self._parsed) >= _PARSED_MAX:
                self._parsed.clear()
            self._parsed[headers] = meta
        return meta


def incoming_headers(link: str, client_id: str, qos: int, packet_id: int, *, retain: bool) -> bytes:
    """Encoded headers of a record that came by a link."""
    headers: list[tuple[str, bytes | None]] = [
        (CLIENT, client_id.encode()),
        (QOS, b"%d" % qos),
        (BRIDGE, link.encode()),
    ]
    if retain:
        headers.append((RETAIN, b"1"))
    if qos == 2:
        headers.append((QOS_2_ID, qos_2_id(link, packet_id).encode()))
    return encode_headers(tuple(headers))


def qos_2_id(link: str, packet_id: int) -> str:
    """Identifies a QoS 2 publish of the remote broker until PUBREL."""
    return f"bridge:{link}/{packet_id}"


def packet_id_of(text: str, link: str) -> int | None:
    """Packet identifier, if the text identifies a publish of this link."""
    head, _, number = text.partition("/")
    is_number = number.isascii() and number.isdigit() and len(number) <= _ID_DIGITS_MAX
    return int(number) if head == f"bridge:{link}" and is_number else None


def is_echo(row: BridgeRecord, link: str, no_echo_clients: list[str]) -> bool:
    """Whether a record must not go out by the link: it came by it, or from the other side's own
    bridge."""
    if row.bridge == link:
        return True
    return any(fnmatchcase(row.client, each) for each in no_echo_clients)
