"""Which partition a key belongs to: Kafka's murmur2, so that both place keys alike.

Source: Austin Appleby's MurmurHash2 (public domain) with Kafka's seed, and Kafka's
`toPositive(murmur2(key)) % partitions` (clients, `Utils.murmur2`, `BuiltInPartitioner`).
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_MASK: Final = 0xFFFF_FFFF
CACHED_KEY_MAX_BYTES: Final = 256
"""Longer keys are not cached, so that the cache stays below some 20 MiB."""


def murmur2(data: bytes) -> int:
    """32-bit hash of `data`, unsigned."""
    size = len(data)
    value = (_SEED ^ size) & _MASK
    whole = size & ~3
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        word = (word * _MULTIPLIER) & _MASK
        word = ((word ^ (word >> 24)) * _MULTIPLIER) & _MASK
        value = ((value * _MULTIPLIER) & _MASK) ^ word
    if size > whole:
        value ^= int.from_bytes(data[whole:], "little")
        value = (value * _MULTIPLIER) & _MASK
    value = ((value ^ (value >> 13)) * _MULTIPLIER) & _MASK
    return value ^ (value >> 15)


def partition_of(key: bytes, partitions: int) -> int:
    """Partition (0-based) that records with `key` go to."""
    if len(key) > CACHED_KEY_MAX_BYTES:
        return (murmur2(key) & 0x7FFF_FFFF) % partitions
    return _partition_of_short(key, partitions)


@lru_cache(maxsize=65536)
def _partition_of_short(key: bytes, partitions: int) -> int:
    return (murmur2(key) & 0x7FFF_FFFF) % partitions
