"""Sums of a tiered segment's blocks: what its object must hold, wherever one reads in it.

A segment's own CRC-32C shows only to who reads it whole that an object is not the one stored: each
batch of another segment is valid too. So there is one sum for each block, which a reader of any
range can check. They are made while the segment is copied, and kept beside its index; lost, they
are made again from an object that as a whole has the CRC-32C that the manifest states.

Bytes (little-endian), `docs/formats/journal.md`: 32-byte header, then one u32 for each block.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import google_crc32c

MAGIC: Final = b"LMQS"
VERSION: Final = 1
BLOCK_BYTES: Final = 16 * 1024
_CHUNK_BYTES: Final = 512 * BLOCK_BYTES
_HEADER: Final = struct.Struct("<4sIHHIIIq")
HEADER_BYTES: Final = _HEADER.size


class BadSums(Exception):
    """Bytes that are no sums of this segment. Never crosses the journal's door."""


@dataclass(frozen=True, slots=True)
class BlockSums:
    """Checksums of a segment's blocks of equal size."""

    size_bytes: int
    """Of the segment."""
    crc32c: int
    """Of the whole segment."""
    blocks: array[int]
    """CRC-32C of each `BLOCK_BYTES`; the last block may be shorter."""

    def foreign(self, first: int, data: bytes) -> list[int]:
        """Which of the blocks from number `first` on, whose bytes `data` is, are not as stored."""
        view = memoryview(data)
        count = (len(data) + BLOCK_BYTES - 1) // BLOCK_BYTES
        return [
            first + at
            for at in range(count)
            if google_crc32c.value(bytes(view[at * BLOCK_BYTES : (at + 1) * BLOCK_BYTES]))
            != self.blocks[first + at]
        ]


def sum_up(read: Callable[[int, int], bytes], size_bytes: int) -> BlockSums:
    """The sums of what `read(position, size)` gives."""
    blocks, crc = array("I"), google_crc32c.value(b"")
    for position in range(0, size_bytes, _CHUNK_BYTES):
        chunk = read(position, min(_CHUNK_BYTES, size_bytes - position))
        crc = google_crc32c.extend(crc, chunk)
        blocks.extend(
            google_crc32c.value(chunk[at : at + BLOCK_BYTES])
            for at in range(0, len(chunk), BLOCK_BYTES)
        )
    return BlockSums(size_bytes, crc, blocks)


def encode_sums(sums: BlockSums) -> bytes:
    """Sums -> bytes."""
    packed = _HEADER.pack(
        MAGIC, 0, VERSION, 0, len(sums.blocks), BLOCK_BYTES, sums.crc32c, sums.size_bytes
    )
    guarded = packed[8:] + sums.blocks.tobytes()
    return b"".join((MAGIC, google_crc32c.value(guarded).to_bytes(4, "little"), guarded))


def decode_sums(data: bytes, size_bytes: int, crc32c: int) -> BlockSums:
    """Bytes -> the sums of the segment of that size and CRC-32C. BadSums says what is wrong."""
    if len(data) < HEADER_BYTES:
        raise BadSums(f"{len(data)} bytes; the header alone has {HEADER_BYTES}")
    magic, crc, version, _, count, block_bytes, whole, size = _HEADER.unpack_from(data)
    if (magic, version, block_bytes) != (MAGIC, VERSION, BLOCK_BYTES):
        raise BadSums(f"magic {magic!r} version {version}, blocks of {block_bytes} bytes")
    if google_crc32c.value(data[8:]) != crc:
        raise BadSums("CRC-32C does not match")
    if (size, whole) != (size_bytes, crc32c):
        raise BadSums(f"of a segment of {size} bytes with CRC-32C {whole:08x}")
    if count != (size + BLOCK_BYTES - 1) // BLOCK_BYTES or len(data) != HEADER_BYTES + 4 * count:
        raise BadSums(f"{count} blocks for {size} bytes")
    blocks = array("I")
    blocks.frombytes(data[HEADER_BYTES:])
    return BlockSums(size, whole, blocks)
