"""Goal: a batch that a topic takes can be opened by every reader, whoever made it.

The bulk check is compared with the reader itself, batch by batch.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemq.broker_core.api.errors import BatchTooLarge, CorruptBatch, InvalidTimestamp
from lakemq.broker_core.api.records.batch import HAS_HEADERS, RecordBatch, encode, read_header
from lakemq.broker_core.api.records.headers import decode_headers, encode_headers
from lakemq.broker_core.api.types import Columns, Compression, TopicConfig, TopicInfo
from lakemq.broker_core.publishing import batch_check
from tests.support.poison import garbage_lengths, no_frame, sealed
from tests.support.record_batches import codecs, column_sets
from tests.support.seeds import examples

TOPIC = TopicInfo("t", "0" * 32, 1)


def check(batch: bytes) -> None:
    batch_check.check_columns(batch_check.checked_header(TOPIC, batch), batch)


def with_headers(cells: list[bytes]) -> bytes:
    """A batch whose records have these headers, encoded or not."""
    return encode(Columns([b"v"] * len(cells), None, cells))


@given(column_sets(), codecs)
@settings(max_examples=examples(100))
def test_what_an_encoder_makes_is_taken(columns: Columns, codec: Compression) -> None:
    check(encode(columns, compression=codec))


@pytest.mark.parametrize("poison", [garbage_lengths(), no_frame()], ids=["lengths", "zstd"])
def test_garbage_under_right_crcs_is_refused(poison: bytes) -> None:
    with pytest.raises(CorruptBatch):
        check(poison)


@given(st.binary(min_size=24, max_size=200), st.integers(1, 3), st.booleans())
def test_random_bodies_are_taken_only_if_they_can_be_read(
    body: bytes, records: int, headers: bool
) -> None:
    batch = sealed(body, records=records, attributes=HAS_HEADERS if headers else 0)
    try:
        check(batch)
    except CorruptBatch:
        return
    RecordBatch(batch).records()


@given(st.lists(st.binary(max_size=24), min_size=1, max_size=40))
def test_headers_are_taken_only_if_they_can_be_read(cells: list[bytes]) -> None:
    many = cells * 20  # enough of them to be looked through in bulk
    readable = True
    try:
        for cell in cells:
            decode_headers(cell)
    except CorruptBatch:
        readable = False
    for batch in (with_headers(cells), with_headers(many)):
        try:
            check(batch)
        except CorruptBatch:
            assert not readable
        else:
            assert readable


@pytest.mark.parametrize("copies", [1, 100], ids=["one by one", "in bulk"])
@pytest.mark.parametrize(
    ("cell", "fits"),
    [
        (encode_headers((("é", b"1"), ("b", None), ("", b""))), True),
        (b"\x01\x00\xc3" + b"\x01\x00\x00\x00x", False),
        (b"\x01\x00\xc3\x00\x00\x00\x00" + b"\x01\x00\xa9\x00\x00\x00\x00", False),
        (b"\x01\x00a\x05\x00\x00\x00bc", False),
        (b"\x01\x00a\x00", False),
        (b"\xff\xffa", False),
        (b"\x01", False),
    ],
    ids=["good", "bad name", "a letter in two names", "value", "size", "name", "half"],
)
def test_headers_must_be_pairs(copies: int, cell: bytes, fits: bool) -> None:
    batch = with_headers([cell] * copies)
    if fits:
        check(batch)
        return
    with pytest.raises(CorruptBatch):
        check(batch)


def test_a_record_has_a_bounded_number_of_headers() -> None:
    pair = encode_headers((("", b""),))
    check(with_headers([pair * batch_check.HEADERS_MAX]))
    with pytest.raises(CorruptBatch, match="more than 4096 headers"):
        check(with_headers([pair * (batch_check.HEADERS_MAX + 1)]))


def test_a_batch_has_a_bounded_number_of_records() -> None:
    most = encode(Columns([b""] * batch_check.RECORDS_MAX), compression=Compression.ZSTD)
    check(most)
    assert len(most) < 1000
    with pytest.raises(BatchTooLarge, match="250001 records"):
        check(encode(Columns([b""] * (batch_check.RECORDS_MAX + 1)), compression=Compression.ZSTD))


def test_only_what_is_quick_is_checked_on_the_event_loop() -> None:
    plain = encode(Columns([bytes(1000)] * 1000))
    small = encode(Columns([b"v"]), compression=Compression.ZSTD)
    large = encode(Columns([bytes(1000)] * 1000), compression=Compression.ZSTD)
    heads = encode(Columns([b""] * 10_000, None, [encode_headers((("a", b"b"),))] * 10_000))
    cheap = [batch_check.is_cheap(read_header(each)) for each in (plain, small, large, heads)]
    assert cheap == [True, True, False, False]


def test_timestamps_are_bounded() -> None:
    now_ms = 1_700_000_000_000
    ahead = TopicInfo("t", "0" * 32, 1, TopicConfig(timestamp_ahead_max_ms=1000))
    batch_check.check_times(ahead, [0, now_ms + 1000], now_ms)
    for times in ([-1], [now_ms + 1001], [5, 2**62]):
        with pytest.raises(InvalidTimestamp, match=f"topic t: timestamp {max(times, key=abs)} ms"):
            batch_check.check_times(ahead, times, now_ms)
    endless = TopicInfo("t", "0" * 32, 1, TopicConfig(timestamp_ahead_max_ms=None))
    batch_check.check_times(endless, [2**62], now_ms)
