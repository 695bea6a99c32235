"""Answers of a Fetch, built and parsed without protobuf's copies, are those of `native.proto`."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError

from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.wire.fetched import (
    fetch_many_response,
    fetch_response,
    parse_fetch_many_response,
    parse_fetch_response,
)

SIZES = (0, 1, 127, 128, 16_383, 16_384, 1 << 21)


@pytest.mark.parametrize("size", SIZES)
def test_protobuf_reads_what_is_built(size: int) -> None:
    batches = b"x" * size
    message = pb.FetchResponse.FromString(fetch_response(batches, 7, 2**40, 3, 5))
    assert (message.batches, message.next_offset, message.last_epoch) == (batches, 7, 5)
    assert (message.high_watermark, message.log_start_offset) == (2**40, 3)


@pytest.mark.parametrize("size", SIZES)
def test_what_protobuf_builds_is_read(size: int) -> None:
    batches = b"y" * size
    message = pb.FetchResponse(
        batches=batches, next_offset=9, high_watermark=2**62, log_start_offset=1, last_epoch=0
    )
    found = parse_fetch_response(message.SerializeToString())
    assert (bytes(found.batches), *found[1:]) == (batches, 9, 2**62, 1, 0)


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


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("partition", [0, 7, 2**31 - 1])
def test_protobuf_reads_an_answer_of_many_that_is_built(size: int, partition: int) -> None:
    data = fetch_many_response("t" * 200, partition, b"x" * size, 7, 2**40, 3)
    message = pb.FetchManyResponse.FromString(data)
    assert (message.topic, message.partition, message.HasField("error")) == (
        "t" * 200,
        partition,
        False,
    )
    assert message.fetched == pb.FetchResponse(
        batches=b"x" * size, next_offset=7, high_watermark=2**40, log_start_offset=3
    )


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("partition", [0, 9, -3])
def test_an_answer_of_many_that_protobuf_builds_is_read(size: int, partition: int) -> None:
    message = pb.FetchManyResponse(topic="some", partition=partition)
    message.fetched.CopyFrom(
        pb.FetchResponse(batches=b"y" * size, next_offset=9, high_watermark=10, log_start_offset=1)
    )
    found = parse_fetch_many_response(message.SerializeToString())
    assert (found.topic, found.partition, found.error) == ("some", partition, None)
    assert (bytes(found.fetched.batches), *found.fetched[1:]) == (b"y" * size, 9, 10, 1, -1)


def test_batches_of_many_are_not_copied() -> None:
    data = fetch_many_response("t", 3, b"x" * 1000, 7, 8, 0)
    batches = parse_fetch_many_response(data).fetched.batches
    assert isinstance(batches, memoryview) and batches.obj is data


def test_an_error_of_many_is_read() -> None:
    for partition in (0, 4, -1):
        message = pb.FetchManyResponse(
            topic="t", partition=partition, error=pb.Error(code="unknown_topic", message="gone")
        )
        found = parse_fetch_many_response(message.SerializeToString())
        assert found.error is not None
        assert (found.partition, found.error.code) == (partition, "unknown_topic")


def test_fields_of_many_in_another_order_are_read() -> None:
    fetched = pb.FetchManyResponse(fetched=pb.FetchResponse(batches=b"b", next_offset=2))
    named = pb.FetchManyResponse(topic="t", partition=5)
    found = parse_fetch_many_response(fetched.SerializeToString() + named.SerializeToString())
    assert (found.topic, found.partition, bytes(found.fetched.batches)) == ("t", 5, b"b")


@pytest.mark.parametrize("data", [b"\x0a\x05ab", b"\x1a\x05abc", b"\x1a\x02\x0a\x05", b"\x1a"])
def test_what_is_no_answer_of_many_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        parse_fetch_many_response(data)
