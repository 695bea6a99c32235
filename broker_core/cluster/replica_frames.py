"""The messages of `Peer.Replicate` (`proto/peer.proto`): what a follower asks, what a leader sends.

A `ReplicaSend` is written around the stored bytes and read as views of the received ones. All sizes
and counts are bounded before a message is parsed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from lakemq.broker_core.cluster.proto import peer_pb2 as pb
from lakemq.broker_core.cluster.wire import (
    ENTRY_FIELDS_MAX,
    BadFrame,
    as_bytes,
    as_number,
    as_signed,
    as_text,
    bytes_field,
    fields,
    length_head,
    number_field,
)

ENTRIES_MAX: Final = 4096
"""Partitions that one message names at most; a sender makes several messages of more."""
ASK_MAX_BYTES: Final = 256 * 1024
SEND_MAX_BYTES: Final = 288 * 1024 * 1024
"""Room for the largest record batch (256 MiB)."""
SEND_TARGET_BYTES: Final = 1024 * 1024
"""A message is sent when it has so much: gRPC carries 1 MiB messages best."""
CREDIT_MAX_BYTES: Final = 64 * 1024 * 1024
SLOT_MAX: Final = 2**32 - 1
_TOPIC_ID_BYTES: Final = 16
_CODE_MAX_BYTES: Final = 64
_I64_MAX: Final = 2**63 - 1
_NUMBERS_MAX: Final = {
    1: SLOT_MAX, 2: _I64_MAX, 4: _I64_MAX, 5: _I64_MAX, 6: _I64_MAX, 11: _I64_MAX
}  # fmt: skip
"""Fields of SlotSend that hold numbers, and the largest that each may hold."""


class SlotOpen(NamedTuple):
    """A follower names a partition by a number that it has not used before in the stream; the
    number stands for that leader epoch too."""

    slot: int
    topic_id: str
    """32 hex digits."""
    partition: int
    leader_epoch: int


class SlotAsk(NamedTuple):
    """What a follower has of a partition, and wants next."""

    slot: int
    offset: int
    """First offset that it has not got."""
    last_epoch: int
    """Leader epoch of the batch before `offset`; -1: it has none."""
    durable: int
    """Offset behind the last record that it has fsynced."""
    full: bool = False
    """Its disk has no room."""
    partition_epoch: int = 0
    """Of the newest row of the catalog that it has obeyed."""


class ReplicaAsk(NamedTuple):
    """One message of a follower."""

    opens: Sequence[SlotOpen] = ()
    asks: Sequence[SlotAsk] = ()
    closes: Sequence[int] = ()
    """Slots that are of no interest any more."""
    credit_bytes: int = 0
    """Bytes of batches that the leader may send beyond those that it was allowed before."""


class Diverging(NamedTuple):
    """The follower's log is not the leader's: it cuts its own where that epoch ends, or earlier."""

    epoch: int
    """Greatest leader epoch of the leader's log that is not above the one asked; -1: none."""
    end_offset: int
    """Offset behind the last record of that epoch in the leader's log."""


class SlotSend(NamedTuple):
    """What a leader says of a partition."""

    slot: int
    base: int = 0
    """Offset that was asked for."""
    batches: bytes | memoryview = b""
    """Back to back, as they lie; as received: a view of the message, which it keeps alive."""
    high_watermark: int = 0
    log_start: int = 0
    roll_at: int = 0
    """A segment of the leader begins there; 0: says nothing."""
    diverging: Diverging | None = None
    code: str = ""
    """A `replication.types.Code`; empty: no error."""
    leader_epoch: int = 0

    @property
    def says_positions_only(self) -> bool:
        """Whether a later one for the slot says all that this one does."""
        return not (self.batches or self.roll_at or self.code) and self.diverging is None


class ReplicaSend(NamedTuple):
    """One message of a leader."""

    sends: Sequence[SlotSend]
    turn: int
    """Counts up from 1."""


# -- a follower's side


def encode_ask(ask: ReplicaAsk) -> bytes:
    """The bytes of a ReplicaAsk."""
    return pb.ReplicaAsk(
        open=[
            pb.SlotOpen(
                slot=each.slot, topic_id=bytes.fromhex(each.topic_id),
                partition=each.partition, leader_epoch=each.leader_epoch,
            )
            for each in ask.opens
        ],
        asks=[
            pb.SlotAsk(
                slot=each.slot, offset=each.offset, last_epoch=each.last_epoch,
                durable=each.durable, full=each.full, partition_epoch=each.partition_epoch,
            )
            for each in ask.asks
        ],
        close=ask.closes,
        credit_bytes=ask.credit_bytes,
    ).SerializeToString()  # fmt: skip


def decode_ask(data: bytes) -> ReplicaAsk:
    """Raises BadFrame."""
    if len(data) > ASK_MAX_BYTES:
        raise BadFrame(f"a request of {len(data)} bytes; {ASK_MAX_BYTES} is the most")
    try:
        message = pb.ReplicaAsk.FromString(data)
    except DecodeError as error:
        raise BadFrame(f"not a ReplicaAsk: {error}") from None
    count = len(message.open) + len(message.asks) + len(message.close)
    if count > ENTRIES_MAX:
        raise BadFrame(f"a request about {count} partitions; {ENTRIES_MAX} is the most")
    return ReplicaAsk(
        [_opened(each) for each in message.open],
        [_asked(each) for each in message.asks],
        list(message.close),
        min(message.credit_bytes, CREDIT_MAX_BYTES),
    )


def _opened(message: pb.SlotOpen) -> SlotOpen:
    if len(message.topic_id) != _TOPIC_ID_BYTES or message.leader_epoch > _I64_MAX:
        raise BadFrame(f"slot {message.slot} has no topic id, or no leader epoch")
    topic_id = message.topic_id.hex()
    return SlotOpen(message.slot, topic_id, message.partition, message.leader_epoch)


def _asked(message: pb.SlotAsk) -> SlotAsk:
    if not 0 <= message.durable <= message.offset or message.last_epoch < -1:
        raise BadFrame(
            f"slot {message.slot} asks for offset {message.offset} behind epoch "
            f"{message.last_epoch}, durable up to {message.durable}"
        )
    return SlotAsk(
        message.slot, message.offset, message.last_epoch, message.durable, message.full,
        message.partition_epoch,
    )  # fmt: skip


# -- a leader's side


class SendBuffer:
    """Gathers what a leader sends until it can go out."""

    def __init__(self) -> None:
        self.batch_bytes = 0
        """Bytes of batches that wait."""
        self._waiting: dict[int, SlotSend] = {}
        self._positions: dict[int, int] = {}
        """Slot -> number of its newest entry, if that says positions only."""
        self._next = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, send: SlotSend) -> None:
        """Take one more; of positions alone only the newest of a slot is kept."""
        if send.says_positions_only:
            before = self._positions.pop(send.slot, None)
            if before is not None:
                del self._waiting[before]
            self._positions[send.slot] = self._next
        else:
            self._positions.pop(send.slot, None)
        self._waiting[self._next] = send
        self._next += 1
        self.batch_bytes += len(send.batches)

    def take(self, turn: int) -> bytes:
        """A ReplicaSend of what waits: up to `SEND_TARGET_BYTES` of batches, at least one entry if
        one waits."""
        parts: list[bytes | memoryview] = []
        taken: list[int] = []
        size = 0
        for number, send in self._waiting.items():
            if taken and (
                len(taken) == ENTRIES_MAX or size + len(send.batches) > SEND_TARGET_BYTES
            ):
                break
            taken.append(number)
            size += len(send.batches)
            parts += _send_parts(send)
            if self._positions.get(send.slot) == number:
                del self._positions[send.slot]
        for number in taken:
            del self._waiting[number]
        self.batch_bytes -= size
        parts.append(number_field(2, turn))
        return b"".join(parts)


def encode_send(message: ReplicaSend) -> bytes:
    """The bytes of a ReplicaSend."""
    parts = [part for send in message.sends for part in _send_parts(send)]
    return b"".join((*parts, number_field(2, message.turn)))


def _send_parts(send: SlotSend) -> tuple[bytes | memoryview, ...]:
    head = number_field(1, send.slot) + number_field(2, send.base)
    size = len(send.batches)
    if size:
        head += length_head(3, size)
    tail = number_field(4, send.high_watermark) + number_field(5, send.log_start)
    if send.roll_at or send.diverging or send.code or send.leader_epoch:
        tail += _rare_fields(send)
    whole = len(head) + size + len(tail)
    return length_head(1, whole) + head, send.batches, tail


def _rare_fields(send: SlotSend) -> bytes:
    tail = number_field(6, send.roll_at)
    if send.diverging is not None:
        epoch, end = send.diverging
        inner = number_field(1, epoch) + number_field(2, end)
        tail += length_head(8, len(inner)) + inner
    return tail + bytes_field(9, send.code.encode()) + number_field(11, send.leader_epoch)


def decode_send(data: bytes) -> ReplicaSend:
    """The message in `data`, which its batches keep alive. Raises BadFrame."""
    if len(data) > SEND_MAX_BYTES:
        raise BadFrame(f"a message of {len(data)} bytes; {SEND_MAX_BYTES} is the most")
    sends: list[SlotSend] = []
    turn = 0
    for field, value in fields(memoryview(data), ENTRIES_MAX + ENTRY_FIELDS_MAX):
        if field == 1:
            if len(sends) == ENTRIES_MAX:
                raise BadFrame(f"a message about more than {ENTRIES_MAX} partitions")
            sends.append(_sent(as_bytes(value, SEND_MAX_BYTES)))
        elif field == 2:
            turn = as_number(value, _I64_MAX)
    return ReplicaSend(sends, turn)


def _sent(data: memoryview) -> SlotSend:
    batches: bytes | memoryview = b""
    diverging: Diverging | None = None
    code = ""
    numbers: dict[int, int] = {}
    for field, value in fields(data, ENTRY_FIELDS_MAX):
        if field in _NUMBERS_MAX:
            numbers[field] = as_number(value, _NUMBERS_MAX[field])
        elif field == 3:
            batches = as_bytes(value, SEND_MAX_BYTES)
        elif field == 8:
            diverging = _diverging(as_bytes(value, _CODE_MAX_BYTES))
        elif field == 9:
            code = as_text(value, _CODE_MAX_BYTES)
    number = numbers.get
    return SlotSend(
        number(1, 0), number(2, 0), batches, number(4, 0), number(5, 0), number(6, 0),
        diverging, code, number(11, 0),
    )  # fmt: skip


def _diverging(data: memoryview) -> Diverging:
    epoch = end_offset = 0
    for field, value in fields(data, ENTRY_FIELDS_MAX):
        if field == 1:
            epoch = as_signed(value)
        elif field == 2:
            end_offset = as_number(value, _I64_MAX)
    if epoch < -1:
        raise BadFrame(f"diverging from epoch {epoch} on")
    return Diverging(epoch, end_offset)
