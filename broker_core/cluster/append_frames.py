"""The messages of `Peer.Append` (`proto/peer.proto`): batches for partitions that another node
leads, and what became of them. All sizes and counts are bounded before a message is parsed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from lakemq.broker_core.api.errors import BY_CODE, LakeMQError, NotLeader
from lakemq.broker_core.api.types import Acks, AppendResult, Offset
from lakemq.broker_core.cluster.proto import peer_pb2 as pb
from lakemq.broker_core.cluster.wire import (
    ENTRY_FIELDS_MAX,
    BadFrame,
    as_bytes,
    as_number,
    fields,
    length_head,
    number_field,
)

APPENDS_MAX_BYTES: Final = 288 * 1024 * 1024
"""Room for the largest record batch (256 MiB)."""
APPENDS_TARGET_BYTES: Final = 1024 * 1024
"""A message is sent when it has so much."""
ENTRIES_MAX: Final = 4096
"""Batches, or answers, of one message at most."""
ANSWERS_MAX_BYTES: Final = 4 * 1024 * 1024
_TOPIC_ID_BYTES: Final = 16
_ID_MAX: Final = 2**63 - 1
_U32_MAX: Final = 2**32 - 1
_MESSAGE_MAX_CHARS: Final = 400
_NUMBERS_MAX: Final = {1: _ID_MAX, 3: _U32_MAX, 4: _ID_MAX, 5: max(Acks)}
"""Fields of PeerAppend that hold numbers, and the largest that each may hold."""


class AppendRequest(NamedTuple):
    """A batch for a partition that the callee leads."""

    id: int
    """Of this append within the stream."""
    topic_id: str
    """32 hex digits."""
    partition: int
    leader_epoch: int
    """Of the leadership that the caller knows."""
    acks: Acks
    batch: bytes | memoryview
    """As received: a view of the message."""


class AppendAnswer(NamedTuple):
    """What became of a batch."""

    id: int
    outcome: AppendResult | LakeMQError


def request_bytes(request: AppendRequest) -> tuple[bytes, bytes | memoryview]:
    """The bytes of one entry of PeerAppends, in two parts: what stands before the batch, and it."""
    head = b"".join((
        number_field(1, request.id), length_head(2, _TOPIC_ID_BYTES),
        bytes.fromhex(request.topic_id), number_field(3, request.partition),
        number_field(4, request.leader_epoch), number_field(5, request.acks),
        length_head(6, len(request.batch)),
    ))  # fmt: skip
    return length_head(1, len(head) + len(request.batch)) + head, request.batch


def decode_appends(data: bytes) -> list[AppendRequest]:
    """The message in `data`, which its batches keep alive. Raises BadFrame."""
    if len(data) > APPENDS_MAX_BYTES:
        raise BadFrame(f"a message of {len(data)} bytes; {APPENDS_MAX_BYTES} is the most")
    found: list[AppendRequest] = []
    for field, value in fields(memoryview(data), ENTRIES_MAX + ENTRY_FIELDS_MAX):
        if field == 1:
            if len(found) == ENTRIES_MAX:
                raise BadFrame(f"a message of more than {ENTRIES_MAX} batches")
            found.append(_request(as_bytes(value, APPENDS_MAX_BYTES)))
    return found


def _request(data: memoryview) -> AppendRequest:
    numbers: dict[int, int] = {}
    topic_id, batch = memoryview(b""), memoryview(b"")
    for field, value in fields(data, ENTRY_FIELDS_MAX):
        if field in _NUMBERS_MAX:
            numbers[field] = as_number(value, _NUMBERS_MAX[field])
        elif field == 2:
            topic_id = as_bytes(value, _TOPIC_ID_BYTES)
        elif field == 6:
            batch = as_bytes(value, APPENDS_MAX_BYTES)
    if len(topic_id) != _TOPIC_ID_BYTES:
        raise BadFrame(f"a topic id of {len(topic_id)} bytes")
    number = numbers.get
    return AppendRequest(
        number(1, 0), topic_id.hex(), number(3, 0), number(4, 0), Acks(number(5, 0)), batch
    )


def encode_answers(answers: Iterable[AppendAnswer]) -> bytes:
    """The bytes of a PeerAnswers."""
    return pb.PeerAnswers(answers=[_answer(each) for each in answers]).SerializeToString()


def _answer(answer: AppendAnswer) -> pb.PeerAnswer:
    outcome = answer.outcome
    if isinstance(outcome, LakeMQError):
        led = outcome if isinstance(outcome, NotLeader) else NotLeader()
        return pb.PeerAnswer(
            id=answer.id, code=outcome.code, message=str(outcome)[:_MESSAGE_MAX_CHARS],
            leader=led.leader, leader_epoch=led.epoch,
        )  # fmt: skip
    return pb.PeerAnswer(
        id=answer.id, base_offset=outcome.base_offset, last_offset=outcome.last_offset,
        acks=outcome.acks, duplicate=outcome.duplicate,
    )  # fmt: skip


def decode_answers(data: bytes) -> list[AppendAnswer]:
    """Raises BadFrame."""
    if len(data) > ANSWERS_MAX_BYTES:
        raise BadFrame(f"answers of {len(data)} bytes; {ANSWERS_MAX_BYTES} is the most")
    try:
        message = pb.PeerAnswers.FromString(data)
    except DecodeError as error:
        raise BadFrame(f"not a PeerAnswers: {error}") from None
    if len(message.answers) > ENTRIES_MAX:
        raise BadFrame(f"{len(message.answers)} answers; {ENTRIES_MAX} is the most")
    return [AppendAnswer(each.id, _outcome(each)) for each in message.answers]


def _outcome(answer: pb.PeerAnswer) -> AppendResult | LakeMQError:
    if answer.code:
        kind = BY_CODE.get(answer.code, LakeMQError)
        text = answer.message[:_MESSAGE_MAX_CHARS]
        if issubclass(kind, NotLeader):
            return kind(text, leader=answer.leader, epoch=answer.leader_epoch)
        return kind(text)
    if not 0 <= answer.base_offset <= answer.last_offset or answer.acks > max(Acks):
        raise BadFrame(
            f"an answer with offsets {answer.base_offset} to {answer.last_offset}, acks "
            f"{answer.acks}"
        )
    return AppendResult(
        Offset(answer.base_offset), Offset(answer.last_offset), Acks(answer.acks), answer.duplicate
    )
