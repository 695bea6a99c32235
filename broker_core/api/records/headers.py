"""Codec of record headers: tuples <-> bytes.

Per header: u16 key length, key (UTF-8), u32 value length (0xFFFFFFFF: null), value.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from lakemq.broker_core.api.errors import CorruptBatch
from lakemq.broker_core.api.types import Headers

NULL_LENGTH: Final = 0xFFFF_FFFF
"""Length that encodes null."""
_KEY: Final = struct.Struct("<H")
_VALUE: Final = struct.Struct("<I")


def encode_headers(headers: Iterable[tuple[str, bytes | None]]) -> bytes:
    """One record's headers as bytes. ValueError: a key over 65,535 bytes."""
    if not headers:
        return b""
    parts: list[bytes] = []
    for key, value in headers:
        name = key.encode()
        if len(name) > 0xFFFF:
            raise ValueError(f"header key is {len(name)} bytes long; 65535 is the most")
        size = NULL_LENGTH if value is None else len(value)
        parts += (_KEY.pack(len(name)), name, _VALUE.pack(size), value or b"")
    return b"".join(parts)


def decode_headers(data: bytes) -> Headers:
    """Inverse of `encode_headers`. Raises CorruptBatch on malformed bytes."""
    if not data:
        return ()
    found: list[tuple[str, bytes | None]] = []
    at, end = 0, len(data)
    try:
        while at < end:
            (size,) = _KEY.unpack_from(data, at)
            key = data[at + 2 : at + 2 + size].decode()
            at += 2 + size
            (size,) = _VALUE.unpack_from(data, at)
            at += 4
            if size == NULL_LENGTH:
                found.append((key, None))
                continue
            if at + size > end:
                raise CorruptBatch(f"header {key!r}: value ends {at + size - end} bytes too late")
            found.append((key, data[at : at + size]))
            at += size
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptBatch(f"record headers at byte {at} of {end}: {error}") from None
    return tuple(found)
