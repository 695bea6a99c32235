"""A batch whose columns are opened later: the same records, no copy, the same checks."""

from __future__ import annotations

import google_crc32c
import pytest

from lakemq.broker_core.api.errors import CorruptBatch
from lakemq.broker_core.api.records.batch import (
    HEADER_BYTES,
    RecordBatch,
    encode,
    pack_header,
    read_header,
)
from lakemq.broker_core.api.types import Columns, Compression

COLUMNS = Columns([b"one", None, b"three"], [b"k", b"", None], None, [5, 6, 9])


@pytest.mark.parametrize("compression", list(Compression))
def test_records_are_those_of_a_batch_opened_at_once(compression: Compression) -> None:
    data = encode(COLUMNS, compression=compression, offset_deltas=[0, 4, 9], base_offset=70)
    later = RecordBatch(b"before" + data + b"behind", 6, columns_later=True)
    assert later.records() == RecordBatch(data).records()
    assert later.body == RecordBatch(data).body
    assert b"three" in later.body


def test_an_uncompressed_body_is_not_copied() -> None:
    data = encode(COLUMNS)
    view = RecordBatch(data, columns_later=True).view
    assert isinstance(view, memoryview)
    assert view.obj is data


def test_a_damaged_body_is_refused_at_once() -> None:
    data = bytearray(encode(COLUMNS))
    data[-1] ^= 1
    with pytest.raises(CorruptBatch, match="CRC"):
        RecordBatch(bytes(data), columns_later=True)


def forged(position: int, value: int, *, sparse: bool = False) -> bytes:
    """A batch with a right CRC over a body in which one number is wrong."""
    data = encode(COLUMNS, offset_deltas=[0, 4, 9] if sparse else None)
    body = bytearray(data[HEADER_BYTES:])
    body[4 * position : 4 * position + 4] = value.to_bytes(4, "little")
    header = read_header(data)._replace(body_crc32c=google_crc32c.value(bytes(body)))
    return pack_header(header) + bytes(body)


FORGERIES = ((6, 99, False), (1, 9, True), (1, 0, True), (2, 8, True))


@pytest.mark.parametrize(("position", "value", "sparse"), FORGERIES)
def test_wrong_lengths_and_offsets_are_found_later(position: int, value: int, sparse: bool) -> None:
    data = forged(position, value, sparse=sparse)
    with pytest.raises(CorruptBatch):
        RecordBatch(data)
    with pytest.raises(CorruptBatch):
        RecordBatch(data, columns_later=True).values()
    with pytest.raises(CorruptBatch):
        RecordBatch(data, columns_later=True).offsets()
