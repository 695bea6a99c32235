"""Answers of `Fetch` and `FetchMany` without copies of their batches: protobuf's own messages copy
them when they are built or parsed, and again when they are read.

The bytes are those of `FetchResponse` in `native.proto`: its field `batches` comes first, and what
follows is a `FetchResponse` of its own, without batches
(https://protobuf.dev/programming-guides/encoding/#last-one-wins). A `FetchManyResponse` ends with
such a `FetchResponse`; one that does not is parsed by protobuf.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from lakemq.plugins.native.proto import native_pb2 as pb

_BATCHES: Final = b"\x0a"
"""Tag of field 1 of FetchResponse, length-delimited."""
_TOPIC: Final = b"\x0a"
_PARTITION: Final = b"\x10"
_FETCHED: Final = b"\x1a"
"""Tags of fields 1 to 3 of FetchManyResponse."""
_VARINT_MAX_BYTES: Final = 5
"""No length of a message below 2 GiB takes more."""


class Fetched(NamedTuple):
    """A FetchResponse that was parsed."""

    batches: bytes | memoryview
    """Back to back."""
    next_offset: int
    high_watermark: int
    log_start_offset: int
    last_epoch: int = -1
    """Leader epoch of the batch before `next_offset`; -1: it was not told."""


class FetchedPartition(NamedTuple):
    """A FetchManyResponse that was parsed."""

    topic: str
    partition: int
    fetched: Fetched
    error: pb.Error | None
    """Why the partition is read no further."""


def fetch_response(
    batches: bytes,
    next_offset: int,
    high_watermark: int,
    log_start_offset: int,
    last_epoch: int = -1,
) -> bytes:
    """The bytes of a FetchResponse."""
    return b"".join(_parts(batches, next_offset, high_watermark, log_start_offset, last_epoch))


def fetch_many_response(
    topic: str,
    partition: int,
    batches: bytes,
    next_offset: int,
    high_watermark: int,
    log_start_offset: int,
    last_epoch: int = -1,
) -> bytes:
    """The bytes of a FetchManyResponse without an error."""
    named = pb.FetchManyResponse(topic=topic, partition=partition).SerializeToString()
    parts = _parts(batches, next_offset, high_watermark, log_start_offset, last_epoch)
    return b"".join((named, _FETCHED, _varint(sum(map(len, parts))), *parts))


def _parts(
    batches: bytes, next_offset: int, high_watermark: int, log_start_offset: int, last_epoch: int
) -> tuple[bytes, ...]:
    rest = pb.FetchResponse(
        next_offset=next_offset,
        high_watermark=high_watermark,
        log_start_offset=log_start_offset,
        last_epoch=last_epoch if last_epoch >= 0 else None,
    )
    return _BATCHES, _varint(len(batches)), batches, rest.SerializeToString()


def parse_fetch_response(data: bytes) -> Fetched:
    """The answer in `data`, which it keeps. DecodeError unless the bytes are a FetchResponse."""
    return _parse(memoryview(data))


def parse_fetch_many_response(data: bytes) -> FetchedPartition:
    """The answer in `data`, which it keeps. DecodeError unless the bytes are a
    FetchManyResponse."""
    try:
        begin = _fetched_at(data)
    except DecodeError:
        # Not our layout, but perhaps valid protobuf: let protobuf decide, and raise if it is not.
        begin = None
    message = pb.FetchManyResponse.FromString(data if begin is None else data[: begin[0]])
    fetched = message.fetched
    return FetchedPartition(
        message.topic,
        message.partition,
        _fetched(fetched, fetched.batches)
        if begin is None
        else _parse(memoryview(data)[begin[1] :]),
        message.error if message.HasField("error") else None,
    )


def _parse(data: memoryview) -> Fetched:
    begin, end = _batches_in(data)
    message = pb.FetchResponse.FromString(bytes(data[end:]))
    # Protobuf says that the last occurrence of a field wins: another `batches` behind the first one
    # replaces it.
    batches: bytes | memoryview = message.batches or data[begin:end]
    return _fetched(message, batches)


def _fetched(message: pb.FetchResponse, batches: bytes | memoryview) -> Fetched:
    return Fetched(
        batches,
        message.next_offset,
        message.high_watermark,
        message.log_start_offset,
        message.last_epoch if message.HasField("last_epoch") else -1,
    )


def _fetched_at(data: bytes) -> tuple[int, int] | None:
    """Where field `fetched` begins, tag and content, if nothing but `topic` and `partition` comes
    before it and nothing after it; None: that is for protobuf to read. Raises DecodeError."""
    at = 0
    if data[:1] == _TOPIC:
        size, at = _length(data, 1)
        at += size
    if data[at : at + 1] == _PARTITION:
        _, at = _length(data, at + 1)
    if data[at : at + 1] != _FETCHED:
        return None
    size, begin = _length(data, at + 1)
    return (at, begin) if begin + size == len(data) else None


def _batches_in(data: memoryview) -> tuple[int, int]:
    """Where the batches begin and end, if they come first; else (0, 0)."""
    if not data or data[0] != _BATCHES[0]:
        return 0, 0
    size, begin = _length(data, 1)
    if begin + size > len(data):
        raise DecodeError(f"{size} bytes of batches in an answer of {len(data)} bytes")
    return begin, begin + size


def _length(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """A varint, and where it ends."""
    size = 0
    for index, byte in enumerate(data[at : at + _VARINT_MAX_BYTES]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return size, at + index + 1
    raise DecodeError("a length has no end")


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
