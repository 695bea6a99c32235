"""Fence mark: what a failed fsync leaves for the next start.

After a failed fsync the kernel may hold pages that never reached the disk and call them clean, so
the next start must not believe what it reads behind the last position that was certain: nothing
there was ever acknowledged, and it is cut off.

Bytes, `docs/formats/journal.md`: a line `LMQF 1 <CRC-32C of the rest, 8 hex digits>`, then JSON.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final

import google_crc32c

FENCE_NAME: Final = "fenced"
_MAGIC: Final = b"LMQF"


@dataclass(frozen=True, slots=True)
class FenceMark:
    """What was in question when fsync failed."""

    base_offset: int
    generation: int
    durable_bytes: int
    """Size of the part of that segment that is certainly on disk."""
    next_offset: int
    """Offset behind it."""
    reason: str


def encode_fence_mark(mark: FenceMark) -> bytes:
    """Fence mark -> bytes."""
    body = json.dumps(asdict(mark)).encode() + b"\n"
    return b"%s 1 %08x\n" % (_MAGIC, google_crc32c.value(body)) + body


def decode_fence_mark(data: bytes) -> FenceMark | None:
    """Bytes -> fence mark; None: they hold none that can be believed."""
    line, _, body = data.partition(b"\n")
    if line != b"%s 1 %08x" % (_MAGIC, google_crc32c.value(body)):
        return None
    try:
        mark = FenceMark(**json.loads(body))
    except (ValueError, TypeError, RecursionError):
        return None
    numbers = (mark.base_offset, mark.generation, mark.durable_bytes, mark.next_offset)
    good = all(type(each) is int and each >= 0 for each in numbers)
    return mark if good and isinstance(mark.reason, str) else None
