"""Checkpoint of a partition: up to where its active segment is known to be durable.

It holds the index of that part and the producers as of its end, so a start after a crash scans
only what was written since. It is a hint that can be made again from the segments.

Bytes (little-endian), `docs/formats/journal.md`: magic `LMQC`, u32 CRC-32C of all that follows,
u16 version, u16 0, u32 size of the index, i64 committed, the epochs, the index (as in an index
file), the producers. Version 1, which is still read, had neither committed nor epochs.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

import google_crc32c

from lakemq.plugins.journal.segment.epochs import EpochTable
from lakemq.plugins.journal.segment.index import BadIndex, SparseIndex, decode_index, encode_index
from lakemq.plugins.journal.segment.producers import ProducerTable

MAGIC: Final = b"LMQC"
VERSION: Final = 2
_VERSION_1: Final = 1
_HEADER: Final = struct.Struct("<4sIHHI")
_COMMITTED: Final = struct.Struct("<q")
UNKNOWN: Final = -1
"""`committed` of a checkpoint that does not tell."""


class BadCheckpoint(Exception):
    """Bytes that are no checkpoint of this version. Never crosses the journal's door."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A durable position of the active segment: recovery need not verify what is below it."""

    index: SparseIndex
    """Its `base_offset` and `generation` name the segment, `covered_bytes` its durable part."""
    producers: ProducerTable
    epochs: EpochTable = field(default_factory=EpochTable)
    """Of the log up to that position."""
    committed: int = UNKNOWN
    """High watermark when it was written: what is below it was on every in-sync replica."""


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Checkpoint -> bytes."""
    index = encode_index(checkpoint.index)
    head = _HEADER.pack(MAGIC, 0, VERSION, 0, len(index))
    guarded = b"".join(
        (
            head[8:],
            _COMMITTED.pack(checkpoint.committed),
            checkpoint.epochs.encode(),
            index,
            checkpoint.producers.encode(),
        )
    )
    return b"".join((MAGIC, google_crc32c.value(guarded).to_bytes(4, "little"), guarded))


def decode_checkpoint(data: bytes, interval_bytes: int) -> Checkpoint:
    """Bytes -> checkpoint. BadCheckpoint says what is wrong."""
    if len(data) < _HEADER.size:
        raise BadCheckpoint(f"{len(data)} bytes; the header alone has {_HEADER.size}")
    magic, crc, version, _, size = _HEADER.unpack_from(data)
    if magic != MAGIC or version not in (_VERSION_1, VERSION):
        raise BadCheckpoint(f"magic {magic!r} version {version}, not {MAGIC!r} version {VERSION}")
    if google_crc32c.value(data[8:]) != crc:
        raise BadCheckpoint("CRC-32C does not match")
    epochs, committed, at = EpochTable(), UNKNOWN, _HEADER.size
    try:
        if version != _VERSION_1:
            (committed,) = _COMMITTED.unpack_from(data, at)
            epochs, at = EpochTable.decode(data, at + _COMMITTED.size)
        index = decode_index(data[at : at + size], interval_bytes)
        producers = ProducerTable.decode(data[at + size :])
    except (BadIndex, struct.error, ValueError) as error:
        raise BadCheckpoint(str(error)) from None
    if version == _VERSION_1 and index.covered_bytes:
        # Writers of version 1 stamped epoch 0 on every batch.
        epochs = EpochTable([(0, index.base_offset)])
    return Checkpoint(index, producers, epochs, committed)
