"""Answers of a Fetch without copies of their batches: protobuf's own messages make one when they
are built or parsed and another when they are asked. Pure.

The bytes are those of `FetchResponse` in `native.proto`: its field `batches` comes first, and what
follows is a `FetchResponse` of its own, without batches
(https://protobuf.dev/programming-guides/encoding/#last-one-wins).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from plugins.native import native_pb2 as pb

_BATCHES: Final = b"\x0a"
"""Tag of field 1, length-delimited."""
_VARINT_BYTES_MAX: Final = 5
"""No length of a message below 2 GiB takes more."""


class Fetched(NamedTuple):
    """A FetchResponse that was parsed."""

    batches: bytes | memoryview
    """Back to back."""
    next_offset: int
    high_watermark: int
    log_start_offset: int


def fetch_response(
    batches: bytes, next_offset: int, high_watermark: int, log_start_offset: int
) -> bytes:
    """The bytes of a FetchResponse."""
    rest = pb.FetchResponse(
        next_offset=next_offset, high_watermark=high_watermark, log_start_offset=log_start_offset
    )
    return b"".join((_BATCHES, _varint(len(batches)), batches, rest.SerializeToString()))


def parse_fetch_response(data: bytes) -> Fetched:
    """The answer in `data`, which it keeps. DecodeError unless the bytes are a FetchResponse."""
    begin, end = _batches_in(data)
    message = pb.FetchResponse.FromString(data[end:])
    batches: bytes | memoryview = message.batches or memoryview(data)[begin:end]
    return Fetched(batches, message.next_offset, message.high_watermark, message.log_start_offset)


def _batches_in(data: bytes) -> tuple[int, int]:
    """Where the batches begin and end, if they come first; else (0, 0)."""
    if data[:1] != _BATCHES:
        return 0, 0
    size = 0
    for place, byte in enumerate(data[1 : 1 + _VARINT_BYTES_MAX]):
        size |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            begin = 2 + place
            if begin + size > len(data):
                raise DecodeError(f"{size} bytes of batches in an answer of {len(data)} bytes")
            return begin, begin + size
    raise DecodeError("the length of the batches has no end")


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
