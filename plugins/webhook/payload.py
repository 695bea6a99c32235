"""What a webhook sends, and what an answer means. Pure.

A request is JSON: `docs/webhooks.md` describes it. Its headers are those of Standard Webhooks 1.0
(https://www.standardwebhooks.com): `webhook-id` names the records, so that a receiver can tell a
repeated request; `webhook-signature` is an HMAC-SHA256 of id, timestamp and body.
"""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Iterable, Iterator
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakemq.broker_core.api.errors import CorruptBatch
from lakemq.broker_core.api.records.batch import RecordBatch
from lakemq.broker_core.api.records.headers import decode_headers
from lakemq.broker_core.api.topic_filters import matches
from lakemq.broker_core.api.types import Headers

if TYPE_CHECKING:  # settings classes reach more than a pure module may
    from lakemq.plugins.webhook.config import WantedSettings

_LATER: Final = frozenset({408, 425, 429})
"""Of 4xx: not this request is wrong, but its time."""


class Verdict(Enum):
    """What an answer means."""

    TAKEN = auto()
    REFUSED = auto()
    FAILED = auto()


class Row(NamedTuple):
    """A record that is to be sent."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def size(self) -> int:
        """Bytes of key and value."""
        return len(self.key or b"") + len(self.value or b"")


class Post(NamedTuple):
    """A request: some records of a partition, in order."""

    request_id: str
    body: bytes
    records: int
    next_offset: int
    """Where to go on when it was taken."""


def verdict_of(status: int) -> Verdict:
    """2xx is taken, 4xx refused unless it may be taken later; anything else has failed."""
    if 200 <= status < 300:
        return Verdict.TAKEN
    if 400 <= status < 500 and status not in _LATER:
        return Verdict.REFUSED
    return Verdict.FAILED


def retry_after_s(text: str | None, max_s: float) -> float:
    """Seconds of a `Retry-After` (RFC 9110, 10.2.3), `max_s` at most; 0: none that is a number."""
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 9:
        return 0.0
    return min(float(text), max_s)


def rows_of(batches: Iterable[RecordBatch], start: int, wanted: WantedSettings) -> Iterator[Row]:
    """The wanted records from offset `start` on. A record whose headers can't be read has none."""
    for batch in batches:
        columns = zip(
            batch.offsets(), batch.timestamps_ms(), batch.keys(), batch.values(),
            batch.encoded_headers(), strict=True,
        )  # fmt: skip
        for offset, timestamp_ms, key, value, encoded in columns:
            if offset >= start and _key_fits(key, wanted):
                row = Row(offset, timestamp_ms, key, value, _headers(encoded))
                if _headers_fit(row.headers, wanted):
                    yield row


def posts_of(
    topic: str, partition: int, name: str, rows: Iterable[Row], records_max: int, bytes_max: int
) -> Iterator[Post]:
    """Requests for these records, cut where one would have too many or too large ones."""
    waiting: list[Row] = []
    size = 0
    for row in rows:
        if waiting and (len(waiting) == records_max or size + row.size > bytes_max):
            yield _post(topic, partition, name, waiting)
            waiting, size = [], 0
        waiting.append(row)
        size += row.size
    if waiting:
        yield _post(topic, partition, name, waiting)


def signature_of(secret: bytes, request_id: str, timestamp_s: int, body: bytes) -> str:
    """The header `webhook-signature`."""
    signed = b"%s.%d.%s" % (request_id.encode(), timestamp_s, body)
    return "v1," + base64.b64encode(hmac.digest(secret, signed, "sha256")).decode()


def secret_of(text: str) -> bytes:
    """A secret as text: `whsec_` and base64, or its bytes as they are. Raises ValueError."""
    if text.startswith("whsec_"):
        return base64.b64decode(text.removeprefix("whsec_"), validate=True)
    return text.encode()


def _post(topic: str, partition: int, name: str, rows: list[Row]) -> Post:
    first, last = rows[0].offset, rows[-1].offset
    body = {
        "webhook": name,
        "topic": topic,
        "partition": partition,
        "records": [_shown_row(row) for row in rows],
    }
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    # A lone surrogate can't come here: all text was decoded as UTF-8.
    return Post(f"{topic}/{partition}/{first}-{last}", text.encode(), len(rows), last + 1)


def _shown_row(row: Row) -> dict[str, Any]:
    key, key_encoding = _shown(row.key)
    value, value_encoding = _shown(row.value)
    return {
        "offset": row.offset,
        "timestamp_ms": row.timestamp_ms,
        "key": key,
        "key_encoding": key_encoding,
        "value": value,
        "value_encoding": value_encoding,
        "headers": [
            dict(zip(("name", "value", "encoding"), (header, *_shown(content)), strict=True))
            for header, content in row.headers
        ],
    }


def _shown(data: bytes | None) -> tuple[str | None, str]:
    if data is None:
        return None, "text"
    try:
        return data.decode(), "text"
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), "base64"


def _headers(encoded: bytes) -> Headers:
    try:
        return decode_headers(encoded)
    except CorruptBatch:
        return ()


def _key_fits(key: bytes | None, wanted: WantedSettings) -> bool:
    if wanted.key is not None and key != wanted.key.encode():
        return False
    if wanted.key_prefix and not (key or b"").startswith(wanted.key_prefix.encode()):
        return False
    if not wanted.key_filter:
        return True
    try:
        name = (key or b"").decode()
    except UnicodeDecodeError:
        return False
    return bool(name) and matches(wanted.key_filter, name)


def _headers_fit(headers: Headers, wanted: WantedSettings) -> bool:
    return all(
        any(name == each and value == text.encode() for name, value in headers)
        for each, text in wanted.headers.items()
    )
