"""Answers of a Fetch, built and parsed without protobuf's copies, are those of `native.proto`."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError

from plugins.native import native_pb2 as pb
from plugins.native.sdk.fetched import fetch_response, parse_fetch_response

SIZES = (0, 1, 127, 128, 16_383, 16_384, 1 << 21)


@pytest.mark.parametrize("size", SIZES)
def test_protobuf_reads_what_is_built(size: int) -> None:
    batches = b"x" * size
    message = pb.FetchResponse.FromString(fetch_response(batches, 7, 2**40, 3))
    assert (message.batches, message.next_offset) == (batches, 7)
    assert (message.high_watermark, message.log_start_offset) == (2**40, 3)


@pytest.mark.parametrize("size", SIZES)
def test_what_protobuf_builds_is_read(size: int) -> None:
    batches = b"y" * size
    message = pb.FetchResponse(
        batches=batches, next_offset=9, high_watermark=2**62, log_start_offset=1
    )
    found = parse_fetch_response(message.SerializeToString())
    assert (bytes(found.batches), *found[1:]) == (batches, 9, 2**62, 1)


def test_fields_in_another_order_and_unknown_ones_are_read() -> None:
    rest = pb.FetchResponse(next_offset=5, high_watermark=6).SerializeToString()
    first = pb.FetchResponse(batches=b"batches").SerializeToString()
    unknown = bytes((15 << 3, 1))
    assert bytes(parse_fetch_response(rest + first).batches) == b"batches"
    found = parse_fetch_response(first + unknown + rest)
    assert (bytes(found.batches), found.next_offset, found.high_watermark) == (b"batches", 5, 6)


def test_of_batches_told_twice_the_last_ones_count() -> None:
    twice = b"".join(pb.FetchResponse(batches=each).SerializeToString() for each in (b"a", b"b"))
    assert bytes(parse_fetch_response(twice).batches) == b"b"


@pytest.mark.parametrize(
    "data", [b"\x0a", b"\x0a\x05abc", b"\x0a" + b"\xff" * 9, b"\x0a\x01a\x10", b"\x0f"]
)
def test_what_is_no_answer_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        parse_fetch_response(data)
