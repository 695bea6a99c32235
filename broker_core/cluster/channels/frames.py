"""The messages of `Peer.Talk` (`proto/peer.proto`). All sizes and counts are bounded before a
message is parsed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from lakemq.broker_core.api.cluster.channels import PAYLOAD_MAX_BYTES
from lakemq.broker_core.api.errors import BY_CODE, LakeMQError, NotLeader
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

TARGET_BYTES: Final = 1024 * 1024
"""A message is sent when it has so much."""
ENTRIES_MAX: Final = 4096
CHANNELS_MAX: Final = 64
NAME_MAX_BYTES: Final = 64
TALK_MAX_BYTES: Final = TARGET_BYTES + PAYLOAD_MAX_BYTES + 1024 * 1024
"""Room for the last payload, which may go beyond the target, and for what stands around them."""
_ID_MAX: Final = 2**63 - 1
_TEXT_MAX_BYTES: Final = 1600
_TEXT_MAX_CHARS: Final = 400


class Said(NamedTuple):
    """A message or a request."""

    channel: str
    payload: bytes
    request: int = 0
    """Number of the request within the stream; 0: a message."""


class Answer(NamedTuple):
    """What became of a request."""

    request: int
    outcome: bytes | LakeMQError


class Told(NamedTuple):
    """What a callee sends."""

    answers: list[Answer]
    channels: frozenset[str] | None
    """All that it has; None: says nothing of it."""


def encode_said(entries: Iterable[Said]) -> bytes:
    """The bytes of a TalkSaid."""
    parts: list[bytes] = []
    for entry in entries:
        head = number_field(1, entry.request) + bytes_field(2, entry.channel.encode())
        content = head + length_head(3, len(entry.payload))
        parts += (length_head(1, len(content) + len(entry.payload)), content, entry.payload)
    return b"".join(parts)


def decode_said(data: bytes) -> list[Said]:
    """Raises BadFrame."""
    found: list[Said] = []
    for field, value in _entries(data):
        if field == 1:
            found.append(_said(as_bytes(value, TALK_MAX_BYTES)))
    return found


def encode_told(answers: Iterable[Answer], channels: Sequence[str] | None) -> bytes:
    """The bytes of a TalkTold. `channels`: all that this node has; None: says nothing of it."""
    parts = [_block(1, _answer_bytes(each)) for each in answers]
    if channels is not None:
        parts.append(_block(2, b"".join(_block(1, name.encode()) for name in channels)))
    return b"".join(parts)


def decode_told(data: bytes) -> Told:
    """Raises BadFrame."""
    told = Told([], None)
    for field, value in _entries(data):
        if field == 1:
            told.answers.append(_answer(as_bytes(value, TALK_MAX_BYTES)))
        elif field == 2:
            told = told._replace(channels=_names(as_bytes(value, TALK_MAX_BYTES)))
    return told


def _entries(data: bytes) -> Iterable[tuple[int, int | memoryview]]:
    if len(data) > TALK_MAX_BYTES:
        raise BadFrame(f"a message of {len(data)} bytes; {TALK_MAX_BYTES} is the most")
    return fields(memoryview(data), ENTRIES_MAX + ENTRY_FIELDS_MAX)


def _block(field: int, content: bytes) -> bytes:
    return length_head(field, len(content)) + content


def _said(data: memoryview) -> Said:
    channel, payload, request = "", memoryview(b""), 0
    for field, value in fields(data, ENTRY_FIELDS_MAX):
        if field == 1:
            request = as_number(value, _ID_MAX)
        elif field == 2:
            channel = as_text(value, NAME_MAX_BYTES)
        elif field == 3:
            payload = as_bytes(value, PAYLOAD_MAX_BYTES)
    return Said(channel, bytes(payload), request)


def _answer_bytes(answer: Answer) -> bytes:
    outcome = answer.outcome
    head = number_field(1, answer.request)
    if isinstance(outcome, bytes):
        return head + bytes_field(2, outcome)
    led = outcome if isinstance(outcome, NotLeader) else NotLeader()
    return b"".join((
        head, bytes_field(3, outcome.code.encode()),
        bytes_field(4, str(outcome)[:_TEXT_MAX_CHARS].encode("utf-8", "replace")),
        bytes_field(5, led.leader.encode()), number_field(6, led.epoch),
    ))  # fmt: skip


def _answer(data: memoryview) -> Answer:
    numbers, texts, payload = {1: 0, 6: 0}, {3: "", 4: "", 5: ""}, memoryview(b"")
    for field, value in fields(data, ENTRY_FIELDS_MAX):
        if field in numbers:
            numbers[field] = as_number(value, _ID_MAX)
        elif field in texts:
            texts[field] = as_text(value, _TEXT_MAX_BYTES)
        elif field == 2:
            payload = as_bytes(value, PAYLOAD_MAX_BYTES)
    code, text = texts[3], texts[4][:_TEXT_MAX_CHARS]
    if not code:
        return Answer(numbers[1], bytes(payload))
    kind = BY_CODE.get(code, LakeMQError)
    if issubclass(kind, NotLeader):
        return Answer(numbers[1], kind(text, leader=texts[5], epoch=numbers[6]))
    return Answer(numbers[1], kind(text))


def _names(data: memoryview) -> frozenset[str]:
    return frozenset(
        as_text(value, NAME_MAX_BYTES)
        for field, value in fields(data, CHANNELS_MAX + ENTRY_FIELDS_MAX)
        if field == 1
    )
