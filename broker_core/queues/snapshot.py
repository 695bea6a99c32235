"""What is persisted of a queue's partition, as run lengths; and the keys of the topic of queues.

`docs/formats/native-queues.md` gives the bytes.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

QUEUES_TOPIC: Final = "_lakemq_queues"
_VERSION: Final = 1
_KEY_HEAD: Final = struct.Struct("<BHH")
_KEY_TAIL: Final = struct.Struct("<I")
_HEAD: Final = struct.Struct("<B16sq")
_DEAD_LETTERS: Final = struct.Struct("<qIH")
DONE: Final = 0
_RUNS_MAX: Final = 10_000_000


class DeadLetterReason(enum.IntEnum):
    """Why a record is not delivered any more. The values are stored."""

    NONE = 0
    """It is delivered."""
    ATTEMPTS = 1
    """It failed `attempts_max` times."""
    REJECTED = 2
    """A consumer rejected it."""


class DeliveryState(NamedTuple):
    """Of an unfinished record."""

    attempts: int = 0
    """Deliveries so far that count."""
    reason: DeadLetterReason = DeadLetterReason.NONE
    """Not NONE: it is on its way to the dead letters."""


class Run(NamedTuple):
    """Consecutive offsets in the same state; None: finished."""

    length: int
    delivery: DeliveryState | None


@dataclass(frozen=True, slots=True)
class DeadLetterBatch:
    """Records that are being written to the dead letters, under a producer id that makes a
    repetition a duplicate."""

    producer_id: int
    topic: str
    partition: int
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The persisted state of a partition."""

    topic_id: str
    start: int
    """Every record below is finished."""
    runs: tuple[Run, ...] = ()
    """From `start` on; above them nothing was ever delivered."""
    dead_letter_batch: DeadLetterBatch | None = None


class QueueKey(NamedTuple):
    """Key of a record of the topic: a queue's settings (partition -1), or one partition's state."""

    group: str
    topic: str
    partition: int = -1


def encode_key(key: QueueKey) -> bytes:
    """A key's bytes in the topic of queues."""
    group, topic = key.group.encode(), key.topic.encode()
    tail = b"" if key.partition < 0 else _KEY_TAIL.pack(key.partition)
    return b"".join((_KEY_HEAD.pack(_VERSION, len(group), len(topic)), group, topic, tail))


def decode_key(data: bytes) -> QueueKey:
    """ValueError: not a key of this version."""
    if len(data) < _KEY_HEAD.size or data[0] != _VERSION:
        raise ValueError(f"not a key of a queue: {data[:32]!r}")
    _, group_bytes, topic_bytes = _KEY_HEAD.unpack_from(data)
    topic_at = _KEY_HEAD.size + group_bytes
    tail = topic_at + topic_bytes
    if len(data) not in (tail, tail + _KEY_TAIL.size):
        raise ValueError(f"a key of a queue of {len(data)} bytes")
    partition = -1 if len(data) == tail else _KEY_TAIL.unpack_from(data, tail)[0]
    return QueueKey(
        data[_KEY_HEAD.size : topic_at].decode(), data[topic_at:tail].decode(), partition
    )


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """A snapshot's bytes in the topic of queues."""
    dead_letter_batch = snapshot.dead_letter_batch
    pieces = [_HEAD.pack(_VERSION, bytes.fromhex(snapshot.topic_id), snapshot.start)]
    pieces.append(_varints(_flat(snapshot.runs)))
    if dead_letter_batch is not None:
        name = dead_letter_batch.topic.encode()
        pieces.append(
            _DEAD_LETTERS.pack(
                dead_letter_batch.producer_id, dead_letter_batch.partition, len(name)
            )
            + name
        )
        pieces.append(_varints([offset - snapshot.start for offset in dead_letter_batch.offsets]))
    return b"".join(pieces)


def decode_snapshot(data: bytes) -> Snapshot:
    """ValueError: not a snapshot of this version."""
    if len(data) < _HEAD.size or data[0] != _VERSION:
        raise ValueError(f"not the state of a queue: {data[:32]!r}")
    _, topic_id, start = _HEAD.unpack_from(data)
    flat, at = _read_varints(data, _HEAD.size)
    if len(flat) % 2:
        raise ValueError("half a run")
    runs = tuple(
        Run(length, _delivery(value)) for length, value in zip(flat[::2], flat[1::2], strict=True)
    )
    dead_letter_batch = None
    if at < len(data):
        try:
            producer_id, partition, name_bytes = _DEAD_LETTERS.unpack_from(data, at)
        except struct.error as error:
            raise ValueError(f"dead letters: {error}") from None
        at += _DEAD_LETTERS.size
        name = data[at : at + name_bytes].decode()
        deltas, at = _read_varints(data, at + name_bytes)
        dead_letter_batch = DeadLetterBatch(
            producer_id, name, partition, tuple(start + delta for delta in deltas)
        )
    if at != len(data):
        raise ValueError(f"{len(data) - at} bytes too many")
    return Snapshot(topic_id.hex(), start, runs, dead_letter_batch)


def compact(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Adjacent runs in the same state as one; records at the end that were never delivered left
    out."""
    found: list[Run] = []
    for run in runs:
        if not run.length:
            continue
        if found and found[-1].delivery == run.delivery:
            found[-1] = Run(found[-1].length + run.length, run.delivery)
        else:
            found.append(run)
    while found and found[-1].delivery == DeliveryState():
        found.pop()
    return tuple(found)


def _flat(runs: Sequence[Run]) -> list[int]:
    found: list[int] = []
    for length, delivery in runs:
        # Attempts and reason share a number, so that a run takes two; 0 is left for finished ones.
        found += (length, DONE if delivery is None else 1 + 3 * delivery.attempts + delivery.reason)
    return found


def _delivery(value: int) -> DeliveryState | None:
    return (
        None
        if value == DONE
        else DeliveryState((value - 1) // 3, DeadLetterReason((value - 1) % 3))
    )


def _varints(numbers: Sequence[int]) -> bytes:
    """Count, then each number, as LEB128."""
    found = bytearray()
    for number in (len(numbers), *numbers):
        while number > 0x7F:
            found.append(number & 0x7F | 0x80)
            number >>= 7
        found.append(number)
    return bytes(found)


def _read_varints(data: bytes, at: int) -> tuple[list[int], int]:
    """(numbers, position after them). ValueError."""
    reader = _varints_from(data, at)
    count, at = next(reader)
    if count > _RUNS_MAX:
        raise ValueError(f"{count} numbers")
    found = []
    for _ in range(count):
        number, at = next(reader)
        found.append(number)
    return found, at


def _varints_from(data: bytes, at: int) -> Iterator[tuple[int, int]]:
    while True:
        number = shift = 0
        while True:
            if at >= len(data) or shift > 63:
                raise ValueError("a number without end")
            byte = data[at]
            at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        yield number, at
