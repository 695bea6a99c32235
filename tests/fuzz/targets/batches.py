"""Record batches and what stands in them: the bytes that every producer sends."""

from __future__ import annotations

import contextlib

from google.protobuf.message import DecodeError

from lakemq.broker_core.api.errors import BatchTooLarge, CorruptBatch, InvalidRequest
from lakemq.broker_core.api.records.batch import (
    HEADER_BYTES,
    BatchHeader,
    RecordBatch,
    encode,
    pack_header,
    read_header,
    recompress,
    split,
    stamp,
)
from lakemq.broker_core.api.records.headers import decode_headers, encode_headers
from lakemq.broker_core.api.types import Columns, Compression, TopicConfig, TopicInfo
from lakemq.broker_core.publishing.batch_check import checked_header
from lakemq.plugins.native.wire.fetched import (
    fetch_many_response,
    fetch_response,
    parse_fetch_many_response,
    parse_fetch_response,
)
from lakemq.plugins.native.wire.filtering import RecordFilter
from tests.fuzz.registry import target, with_crc

TOPIC = TopicInfo("t", "0" * 32, 1, TopicConfig(), 1)
HEADERS = encode_headers((("a", b"b"), ("c", None)))
_RAW_MAX_BYTES = 1 << 20
"""Bodies that decompress to more take their time, as they may: the header says how much."""
COLUMNS = Columns([b"x", None, b"yy"], [b"k", None, b""], [HEADERS, b"", b""], [1, 5, 3])
BATCHES = [
    encode(COLUMNS, compression=Compression.NONE),
    encode(COLUMNS, compression=Compression.LZ4),
    encode(COLUMNS, compression=Compression.ZSTD),
    encode(Columns([b"x"] * 3, None, None, [0, 2**40, 5]), offset_deltas=[0, 7, 9]),
    encode(Columns([b""], None, None, None), now_ms=7, base_offset=2**62),
]


@target("batches.open", seeds=[*BATCHES, BATCHES[0] + BATCHES[1]])
def open_batches(data: bytes) -> None:
    """Batches open, or are CorruptBatch; what opens is encoded and opens the same."""
    for each in (data, _repaired(data)):
        with contextlib.suppress(CorruptBatch, BatchTooLarge):
            checked_header(TOPIC, each)
        with contextlib.suppress(CorruptBatch):
            for position, header in split(each):
                if header.raw_body_bytes <= _RAW_MAX_BYTES:
                    _open(each, position)


def _repaired(data: bytes) -> bytes:
    """The first batch with CRCs that hold, so that what lies behind them is reached."""
    if len(data) < HEADER_BYTES:
        return data
    body = data[HEADER_BYTES:]
    size = len(body).to_bytes(4, "little")
    crc = with_crc(b"", body)[:4]
    return with_crc(b"LMQB", b"\x01\x00" + data[10:12] + size + crc + data[20:HEADER_BYTES]) + body


def _open(data: bytes, position: int) -> None:
    batch = RecordBatch(data, position)
    later = RecordBatch(data, position, columns_later=True)
    assert later.values() == batch.values()
    header = batch.header
    assert len(batch) == header.record_count
    rows = batch.offsets(), batch.timestamps_ms(), batch.keys(), batch.values()
    assert {len(column) for column in rows} == {len(batch)}
    for each in batch.encoded_headers():
        with contextlib.suppress(CorruptBatch):
            assert encode_headers(decode_headers(each)) == each
    wanted = RecordFilter.of(key=b"k", headers={"a": b"b"})
    with contextlib.suppress(CorruptBatch):
        wanted.records(batch)
    whole = data[position : position + header.total_bytes]
    changed, again = recompress(whole, header, Compression.LZ4)
    assert RecordBatch(again).values() == batch.values()
    assert read_header(stamp(again, changed, 5, 6)[1]).leader_epoch == 6


@target("batches.header", seeds=[each[8:HEADER_BYTES] for each in BATCHES])
def header(data: bytes) -> None:
    """A header whose CRC holds is refused or makes sense, and is packed as it was."""
    with contextlib.suppress(CorruptBatch):
        found: BatchHeader = read_header(with_crc(b"LMQB", data[:72].ljust(72, b"\0")))
        assert found.last_offset >= found.base_offset >= 0
        assert found.record_count >= 1
        assert read_header(pack_header(found)) == found


@target("batches.headers", seeds=[HEADERS, encode_headers((("", b""),) * 500)])
def headers(data: bytes) -> None:
    """Record headers decode, or are CorruptBatch; there is one encoding."""
    with contextlib.suppress(CorruptBatch):
        assert encode_headers(decode_headers(data)) == data


@target(
    "batches.fetched",
    seeds=[
        fetch_response(BATCHES[0], 3, 4, 0),
        fetch_response(b"", 0, 0, 0),
    ],
)
def fetched(data: bytes) -> None:
    """What a client takes for a broker's answer."""
    with contextlib.suppress(DecodeError):
        found = parse_fetch_response(data)
        with contextlib.suppress(CorruptBatch, InvalidRequest):
            RecordFilter.of(key_prefix=b"k", header_prefixes={"a": b""}).batches(
                bytes(found.batches)
            )


@target(
    "batches.fetched_many",
    seeds=[
        fetch_many_response("t", 3, BATCHES[0], 3, 4, 0),
        fetch_many_response("", 0, b"", 0, 0, 0),
    ],
)
def fetched_many(data: bytes) -> None:
    """What a consumer takes for a broker's answer."""
    with contextlib.suppress(DecodeError):
        found = parse_fetch_many_response(data)
        assert isinstance(found.topic, str)
        with contextlib.suppress(CorruptBatch, InvalidRequest):
            RecordFilter.of(key_prefix=b"k").batches(bytes(found.fetched.batches))
