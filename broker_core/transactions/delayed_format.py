"""Records of the topic of delayed batches: bytes <-> values. Pure.

`docs/formats/transactions.md` gives every byte. Little-endian.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

_VERSION: Final = 1
_WAITING: Final = 1
_ENDED: Final = 2
_HEAD: Final = struct.Struct("<BBq")
_REST: Final = struct.Struct("<B16sIIH")


class Delayed(NamedTuple):
    """A batch that waits, as it is stored."""

    deliver_at_ms: int
    keep_timestamps: bool
    topic: str
    topic_id: str
    partition: int
    records: int
    batch: bytes


class Ended(NamedTuple):
    """It was delivered or cancelled."""

    ended_ms: int


def encode_id(schedule_id: str) -> bytes:
    return bytes((_VERSION,)) + schedule_id.encode()


def decode_id(key: bytes) -> str:
    """ValueError: not a key of this version."""
    if len(key) < 2 or key[0] != _VERSION:
        raise ValueError(f"not an id of a delayed batch: {key[:32]!r}")
    return key[1:].decode()


def encode_delayed(delayed: Delayed) -> bytes:
    topic = delayed.topic.encode()
    return b"".join(
        (
            _HEAD.pack(_VERSION, _WAITING, delayed.deliver_at_ms),
            _REST.pack(
                delayed.keep_timestamps, bytes.fromhex(delayed.topic_id), delayed.partition,
                delayed.records, len(topic),
            ),
            topic,
            delayed.batch,
        )
    )  # fmt: skip


def encode_ended(ended: Ended) -> bytes:
    return _HEAD.pack(_VERSION, _ENDED, ended.ended_ms)


def decode_delayed(value: bytes) -> Delayed | Ended:
    """ValueError: not a value of this version."""
    try:
        version, kind, time_ms = _HEAD.unpack_from(value)
        if version != _VERSION or kind not in (_WAITING, _ENDED):
            raise ValueError(f"version {version} and kind {kind} of a delayed batch")
        if kind == _ENDED:
            return Ended(time_ms)
        keep, topic_id, partition, records, size = _REST.unpack_from(value, _HEAD.size)
    except struct.error as error:
        raise ValueError(f"a delayed batch of {len(value)} bytes: {error}") from None
    at = _HEAD.size + _REST.size
    if len(value) < at + size:
        raise ValueError(f"a delayed batch of {len(value)} bytes")
    topic = value[at : at + size].decode()
    return Delayed(
        time_ms, bool(keep), topic, topic_id.hex(), partition, records, value[at + size :]
    )
