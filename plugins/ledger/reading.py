"""Record batches -> what the ledger must know of each record. Pure: runs in a thread."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import repeat
from typing import Any, Final, NamedTuple

from lakemq.broker_core.api.errors import CorruptBatch
from lakemq.broker_core.api.records.headers import decode_headers
from lakemq.broker_core.api.records.ledger_rule import NUMBER_MAX, LedgerRule, Place
from lakemq.broker_core.api.records.stored import readable_batches

DEVICE_MAX_BYTES: Final = 256
"""A longer name is none."""
VALUE_MAX_BYTES: Final = 64 * 1024
"""Larger values are not decoded."""
_SECONDS_BELOW: Final = 10**11
"""Numbers below are seconds: as milliseconds they would be before March 1973."""


class Reading(NamedTuple):
    """What one record says. `number` and `time_ms` are None where it does not."""

    offset: int
    timestamp_ms: int
    """Of the record: for MQTT, when it reached the broker."""
    device: str | None
    number: int | None
    time_ms: int | None
    """By the device."""


def readings(
    rule: LedgerRule, data: bytes, topic: str, partition: int, start: int
) -> list[Reading]:
    """Of the records in fetched `data` from offset `start` on. Raises CorruptBatch."""
    places = [each for each in (rule.device, rule.sequence, rule.time) if each is not None]
    with_headers = any(each.kind == "header" for each in places)
    with_fields = any(each.kind == "field" for each in places)
    found: list[Reading] = []
    for batch in readable_batches(data, topic, partition, start=start):
        rows = zip(
            batch.offsets(),
            batch.timestamps_ms(),
            batch.keys(),
            batch.encoded_headers() if with_headers else repeat(b""),
            batch.values() if with_fields else repeat(None),
            strict=False,
        )
        for offset, timestamp_ms, key, head, value in rows:
            if offset < start:
                continue
            headers = _headers(head) if head else {}
            record = key, headers, _document(value) if value else None
            number = None if rule.sequence is None else _whole(_at(rule.sequence, record))
            time_ms = None if rule.time is None else _time_ms(_at(rule.time, record))
            device = _name(_at(rule.device, record))
            found.append(Reading(offset, timestamp_ms, device, number, time_ms))
    return found


_Record = tuple[bytes | None, dict[str, bytes | None], Any]


def _at(place: Place, record: _Record) -> Any:
    key, headers, document = record
    if place.kind == "key":
        return key
    if place.kind == "header":
        return headers.get(place.path[0])
    for name in place.path:
        if not isinstance(document, dict):
            return None
        document = document.get(name)
    return document


def _headers(encoded: bytes) -> dict[str, bytes | None]:
    """The first of each name."""
    try:
        return dict(reversed(decode_headers(encoded)))
    except CorruptBatch:
        return {}


def _document(value: bytes) -> Any:
    if len(value) > VALUE_MAX_BYTES:
        return None
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def _name(found: Any) -> str | None:
    if isinstance(found, bytes):
        found = found.decode(errors="backslashreplace")
    elif isinstance(found, int) and not isinstance(found, bool):
        found = str(found) if abs(found) < NUMBER_MAX else None
    if not isinstance(found, str):
        return None
    try:
        return found if len(found.encode()) <= DEVICE_MAX_BYTES else None
    except UnicodeEncodeError:  # JSON may hold half a surrogate pair
        return None


def _whole(found: Any) -> int | None:
    """JSON has one kind of number: 7.0 is 7."""
    if isinstance(found, bytes | str) and len(found) < 20:
        text = found.decode("latin-1") if isinstance(found, bytes) else found
        found = int(text) if text.isascii() and text.isdecimal() else None
    elif isinstance(found, float) and found.is_integer():
        found = int(found)
    if not isinstance(found, int) or isinstance(found, bool):
        return None
    return found if 0 <= found < NUMBER_MAX else None


def _time_ms(found: Any) -> int | None:
    """A number: seconds or milliseconds since 1970; a text: such a number, or ISO 8601."""
    if isinstance(found, bytes):
        found = found.decode("latin-1")
    if isinstance(found, str):
        text, found = found[:40], None
        try:
            found = float(text)
        except ValueError:
            try:
                at = datetime.fromisoformat(text)
                found = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000
                return round(found) if found >= 0 else None
            except (ValueError, OverflowError):
                return None
    if not isinstance(found, int | float) or isinstance(found, bool):
        return None
    if not 0 <= found < NUMBER_MAX:  # neither is a number that is none
        return None
    return round(found * 1000 if found < _SECONDS_BELOW else found)
