"""Record headers: tuples <-> bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.broker_core.api.errors import CorruptBatch
from lakemq.broker_core.api.records.headers import decode_headers, encode_headers
from lakemq.broker_core.api.types import Headers

header_lists = st.lists(
    st.tuples(st.text(max_size=20), st.none() | st.binary(max_size=20)), max_size=6
).map(tuple)


@given(header_lists)
def test_what_is_encoded_is_decoded(headers: Headers) -> None:
    assert decode_headers(encode_headers(headers)) == headers


def test_bytes_are_as_the_document_says() -> None:
    encoded = encode_headers((("é", b"\x07"), ("", None), ("a", b"")))

    assert encoded == bytes.fromhex("0200 c3a9 01000000 07  0000 ffffffff  0100 61 00000000")


def test_keys_may_occur_more_than_once_and_keep_their_order() -> None:
    headers = (("b", b"1"), ("a", b"2"), ("b", b"3"))

    assert decode_headers(encode_headers(headers)) == headers


def test_key_that_is_too_long_is_refused() -> None:
    longest = (("k" * 65_535, None),)
    assert decode_headers(encode_headers(longest)) == longest
    with pytest.raises(ValueError, match="65536 bytes long; 65535 is the most"):
        encode_headers((("k" * 65_536, None),))


def test_every_truncation_inside_a_header_is_detected() -> None:
    encoded = encode_headers((("naïve", b"value"),))
    for size in range(1, len(encoded)):
        with pytest.raises(CorruptBatch):
            decode_headers(encoded[:size])


@given(st.binary(max_size=60))
def test_arbitrary_bytes_decode_or_raise_corrupt_batch(data: bytes) -> None:
    try:
        headers = decode_headers(data)
    except CorruptBatch:
        return
    assert encode_headers(headers) == data
