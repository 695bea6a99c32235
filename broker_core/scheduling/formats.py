"""Records of the topic of schedules: bytes <-> values.

`docs/formats/transactions.md` gives every byte. Little-endian.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

_VERSION: Final = 1
STATE_KEY: Final = bytes((2,))
"""Of the record that says what is decided in a partition; its value is an owner's state."""
_WAITING: Final = 1
_ENDED: Final = 2
_HEAD: Final = struct.Struct("<BBq")
_REST: Final = struct.Struct("<B16sIIH")


class StoredSchedule(NamedTuple):
    """A scheduled batch, as it is stored."""

    deliver_at_ms: int
    keep_timestamps: bool
    topic: str
    topic_id: str
    partition: int
    records: int
    batch: bytes


class EndedSchedule(NamedTuple):
    """It was delivered or cancelled."""

    ended_ms: int


def encode_schedule_id(schedule_id: str) -> bytes:
    """Key of the topic of schedules."""
    return bytes((_VERSION,)) + schedule_id.encode()


def decode_schedule_id(key: bytes) -> str:
    """ValueError: not a key of this version."""
    if len(key) < 2 or key[0] != _VERSION:
        raise ValueError(f"not the id of a schedule: {key[:32]!r}")
    return key[1:].decode()


def encode_schedule(stored: StoredSchedule) -> bytes:
    """Value of a schedule that waits for its time; the batch comes last."""
    topic = stored.topic.encode()
    return b"".join(
        (
            _HEAD.pack(_VERSION, _WAITING, stored.deliver_at_ms),
            _REST.pack(
                stored.keep_timestamps,
                bytes.fromhex(stored.topic_id),
                stored.partition,
                stored.records,
                len(topic),
            ),
            topic,
            stored.batch,
        )
    )


def encode_ended(ended: EndedSchedule) -> bytes:
    """Value of a schedule that was delivered or cancelled."""
    return _HEAD.pack(_VERSION, _ENDED, ended.ended_ms)


def decode_schedule(value: bytes) -> StoredSchedule | EndedSchedule:
    """ValueError: not a value of this version."""
    try:
        version, kind, time_ms = _HEAD.unpack_from(value)
        if version != _VERSION or kind not in (_WAITING, _ENDED):
            raise ValueError(f"version {version} and kind {kind} of a schedule")
        if kind == _ENDED:
            return EndedSchedule(time_ms)
        keep, topic_id, partition, records, size = _REST.unpack_from(value, _HEAD.size)
    except struct.error as error:
        raise ValueError(f"a schedule of {len(value)} bytes: {error}") from None
    at = _HEAD.size + _REST.size
    if len(value) < at + size:
        raise ValueError(f"a schedule of {len(value)} bytes")
    topic = value[at : at + size].decode()
    return StoredSchedule(
        time_ms, bool(keep), topic, topic_id.hex(), partition, records, value[at + size :]
    )
