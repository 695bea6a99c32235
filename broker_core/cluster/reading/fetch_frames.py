"""The messages of `Peer.Fetch` (`proto/peer.proto`): what readers of another node ask of a leader,
and what it answers. All sizes and counts are bounded before a message is parsed. No IO."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple

from lakemq.broker_core.api.errors import BY_CODE, CorruptBatch, LakeMQError, NotLeader
from lakemq.broker_core.api.partition_ports import Wanted
from lakemq.broker_core.api.records.batch import split
from lakemq.broker_core.api.types import FetchResult, Offset
from lakemq.broker_core.cluster.wire import (
    ENTRY_FIELDS_MAX,
    BadFrame,
    as_bytes,
    as_number,
    as_text,
    bytes_field,
    fields,
    length_head,
    number_field,
)

REQUESTS_MAX_BYTES: Final = 256 * 1024
REQUESTS_MAX: Final = 2048
"""Of one message at most; the largest ones fit into `REQUESTS_MAX_BYTES`."""
FETCHED_MAX_BYTES: Final = 288 * 1024 * 1024
"""Room for the largest record batch (256 MiB)."""
_TOPIC_ID_BYTES: Final = 16
_ID_MAX: Final = 2**63 - 1
_U32_MAX: Final = 2**32 - 1
_TEXT_MAX_BYTES: Final = 1600
_NAME_MAX_BYTES: Final = 64
_MESSAGE_MAX_CHARS: Final = 400


class Wants(IntEnum):
    """What a request is for."""

    BATCHES = 0
    BOUNDS = 1
    """Where the log starts, its high watermark, and where it ends."""
    TIME = 2
    """The first offset whose record is not older than a time."""


_REQUEST_NUMBERS: Final = {
    1: _ID_MAX, 3: _U32_MAX, 4: max(Wants), 5: _ID_MAX, 6: _U32_MAX, 7: _U32_MAX, 8: _ID_MAX,
    10: _ID_MAX,
}  # fmt: skip
"""Fields of PeerFetch that hold numbers, and the largest that each may hold."""


class FetchRequest(NamedTuple):
    """What a reader asks of the leader."""

    id: int
    """Of this request within the stream, from 1 on."""
    topic_id: str
    """32 hex digits."""
    partition: int
    wants: Wants
    offset: int = 0
    bytes_max: int = 0
    wait_ms: int = 0
    timestamp_ms: int = 0
    wanted: Wanted | None = None
    """The batches of which others may be left out; None: all."""


class FetchAnswer(NamedTuple):
    """What became of a request. Of `Wants.TIME`, the offset is `next_offset`."""

    id: int
    outcome: FetchResult | LakeMQError


def encode_requests(requests: Iterable[FetchRequest]) -> bytes:
    """The bytes of a PeerFetches."""
    return b"".join(map(_request_bytes, requests))


def _request_bytes(request: FetchRequest) -> bytes:
    number, topic_id, *others, wanted = request
    name, wanted_number = wanted or ("", 0)
    content = b"".join((
        number_field(1, number), bytes_field(2, bytes.fromhex(topic_id)),
        *(number_field(field, value) for field, value in enumerate(others, 3)),
        bytes_field(9, name.encode()), number_field(10, wanted_number),
    ))  # fmt: skip
    return length_head(1, len(content)) + content


def decode_requests(data: bytes) -> list[FetchRequest]:
    """Raises BadFrame."""
    if len(data) > REQUESTS_MAX_BYTES:
        raise BadFrame(f"requests of {len(data)} bytes; {REQUESTS_MAX_BYTES} is the most")
    found: list[FetchRequest] = []
    for field, value in fields(memoryview(data), REQUESTS_MAX + ENTRY_FIELDS_MAX):
        if field == 1:
            if len(found) == REQUESTS_MAX:
                raise BadFrame(f"a message of more than {REQUESTS_MAX} requests")
            found.append(_request(as_bytes(value, REQUESTS_MAX_BYTES)))
    return found


def _request(data: memoryview) -> FetchRequest:
    numbers: dict[int, int] = {}
    topic_id, name = memoryview(b""), ""
    for field, value in fields(data, ENTRY_FIELDS_MAX):
        if field in _REQUEST_NUMBERS:
            numbers[field] = as_number(value, _REQUEST_NUMBERS[field])
        elif field == 2:
            topic_id = as_bytes(value, _TOPIC_ID_BYTES)
        elif field == 9:
            name = as_text(value, _NAME_MAX_BYTES)
    if len(topic_id) != _TOPIC_ID_BYTES:
        raise BadFrame(f"a topic id of {len(topic_id)} bytes")
    number = numbers.get
    return FetchRequest(
        number(1, 0), topic_id.hex(), number(3, 0), Wants(number(4, 0)),
        number(5, 0), number(6, 0), number(7, 0), number(8, 0),
        Wanted(name, number(10, 0)) if name else None,
    )  # fmt: skip


def answer_parts(answer: FetchAnswer) -> tuple[bytes, bytes]:
    """The bytes of a PeerFetched, in two parts: what stands before the batches, and they."""
    outcome = answer.outcome
    if isinstance(outcome, LakeMQError):
        led = outcome if isinstance(outcome, NotLeader) else NotLeader()
        return b"".join((
            number_field(1, answer.id), bytes_field(2, outcome.code.encode()),
            bytes_field(3, str(outcome)[:_MESSAGE_MAX_CHARS].encode()),
            bytes_field(4, led.leader.encode()), number_field(5, led.epoch),
        )), b""  # fmt: skip
    head = b"".join((
        number_field(1, answer.id), number_field(6, outcome.next_offset),
        number_field(7, outcome.high_watermark), number_field(8, outcome.log_start_offset),
    ))  # fmt: skip
    return head + (length_head(9, len(outcome.data)) if outcome.data else b""), outcome.data


def decode_answer(data: bytes) -> FetchAnswer:
    """Raises BadFrame, also for what are no whole batches."""
    if len(data) > FETCHED_MAX_BYTES:
        raise BadFrame(f"an answer of {len(data)} bytes; {FETCHED_MAX_BYTES} is the most")
    numbers: dict[int, int] = {}
    texts: dict[int, str] = {}
    batches = memoryview(b"")
    for field, value in fields(memoryview(data), ENTRY_FIELDS_MAX):
        if field in (1, 5, 6, 7, 8):
            numbers[field] = as_number(value, _ID_MAX)
        elif field in (2, 3, 4):
            texts[field] = as_text(value, _TEXT_MAX_BYTES)
        elif field == 9:
            batches = as_bytes(value, FETCHED_MAX_BYTES)
    number = numbers.get
    if texts.get(2):
        return FetchAnswer(number(1, 0), _error(texts, number(5, 0)))
    result = FetchResult(
        bytes(batches), Offset(number(6, 0)), Offset(number(7, 0)), Offset(number(8, 0))
    )
    try:
        ends = [header.last_offset for _, header in split(result.data)]
    except CorruptBatch as error:
        raise BadFrame(f"not whole batches: {error}") from None
    if any(end >= result.next_offset for end in ends):
        raise BadFrame(f"a batch beyond offset {result.next_offset}")
    return FetchAnswer(number(1, 0), result)


def _error(texts: dict[int, str], epoch: int) -> LakeMQError:
    kind, message = BY_CODE.get(texts[2], LakeMQError), texts.get(3, "")
    if issubclass(kind, NotLeader):
        return kind(message, leader=texts.get(4, ""), epoch=epoch)
    return kind(message)
