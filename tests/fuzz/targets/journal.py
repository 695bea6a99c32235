"""What the journal finds on disk: segments, indexes, checkpoints, manifests, marks."""

from __future__ import annotations

import contextlib
import json

import google_crc32c

from lakemq.broker_core.api.records.batch import ProducerStamp, encode, read_header, stamp
from lakemq.broker_core.api.types import Columns
from lakemq.plugins.journal.segment.checkpoint import (
    BadCheckpoint,
    Checkpoint,
    decode_checkpoint,
    encode_checkpoint,
)
from lakemq.plugins.journal.segment.damage import Damage, survey
from lakemq.plugins.journal.segment.fence_mark import (
    FenceMark,
    decode_fence_mark,
    encode_fence_mark,
)
from lakemq.plugins.journal.segment.index import BadIndex, SparseIndex, decode_index, encode_index
from lakemq.plugins.journal.segment.manifest import (
    BadManifest,
    Manifest,
    RemotePlace,
    SegmentInfo,
    decode_manifest,
    encode_manifest,
    segment_of,
)
from lakemq.plugins.journal.segment.producers import ProducerTable
from lakemq.plugins.journal.segment.sums import BadSums, decode_sums, encode_sums, sum_up
from lakemq.plugins.journal.segment.walk import BadBatch, cut_slice, walk
from tests.fuzz.registry import Values, target, with_crc


def _batch(offset: int, value: bytes) -> bytes:
    data = encode(Columns([value], None, None, [5]), producer=ProducerStamp(7, 1, offset))
    return stamp(data, read_header(data), offset, 1)[1]


SEGMENT = b"".join(_batch(number, b"x" * number) for number in range(5))
NESTED = _batch(0, SEGMENT) + _batch(1, b"y")


def _index() -> SparseIndex:
    index = SparseIndex(0, interval_bytes=100)
    for number in range(5):
        index.add(read_header(_batch(number, b"x" * number)))
    return index


def _producers() -> ProducerTable:
    table = ProducerTable()
    for number in range(5):
        table.note(read_header(_batch(number, b"")), 5)
    return table


@target("journal.segment", seeds=[
    SEGMENT, NESTED, SEGMENT[:200] + bytes(50) + SEGMENT[200:], SEGMENT + b"LMQB" * 50,
], bytes_max=16_384)  # fmt: skip
def segment(data: bytes) -> None:
    """A walk ends with BadBatch at the first bad byte; a survey finds every byte either whole or
    damaged; a fetch gives whole batches alone."""

    def read(position: int, size: int) -> bytes:
        return data[position : position + size]

    with contextlib.suppress(BadBatch):
        for batch in walk(read, 0, len(data), next_offset=0):
            assert data[batch.position :].startswith(batch.data)
    at, offset = 0, 0
    for found in survey(read, 0, len(data), 0):
        assert found.position == at
        if isinstance(found, Damage):
            at = found.end_position
        else:
            at += len(found.data)
            offset = found.header.last_offset
    assert at == len(data)
    with contextlib.suppress(BadBatch):
        for bytes_max in (1, 200, 1 << 20):
            cut_slice(
                read,
                0,
                len(data),
                offset=offset // 2,
                offset_end=offset + 1,
                bytes_max=bytes_max,
                skip=100,
            )


@target(
    "journal.formats",
    seeds=[
        encode_index(_index())[8:],
        encode_checkpoint(Checkpoint(_index(), _producers()))[8:],
        encode_sums(sum_up(lambda at, size: bytes(size), 40_000))[8:],
        _producers().encode(),
    ],
)
def formats(data: bytes) -> None:
    """Index, checkpoint, sums and producers, behind checksums that hold: each is refused by its own
    error, or can be used."""
    for magic in (b"", b"LMQI", b"LMQC", b"LMQS"):
        each = with_crc(magic, data) if magic else data
        with contextlib.suppress(BadIndex):
            _use_index(decode_index(each, 100))
        with contextlib.suppress(BadCheckpoint):
            checkpoint = decode_checkpoint(each, 100)
            _use_index(checkpoint.index)
            _use_producers(checkpoint.producers)
        with contextlib.suppress(BadSums):
            sums = decode_sums(each, 40_000, 0)
            assert len(sums.blocks) == 3
    head = b"LMQC", b"\x01\x00\x00\x00"
    index = encode_index(_index())
    with contextlib.suppress(BadCheckpoint):
        size = len(index).to_bytes(4, "little")
        kept = decode_checkpoint(with_crc(head[0], head[1] + size + index + data), 100)
        _use_producers(kept.producers)


def _use_index(index: SparseIndex) -> None:
    index.position_of(3)
    index.position_of_time(3)
    index.position_behind(3)
    assert decode_index(encode_index(index), index.interval_bytes) == index


def _use_producers(table: ProducerTable) -> None:
    table.note(read_header(_batch(3, b"")), 5)
    table.expire(3, 2)
    assert ProducerTable.decode(table.encode()).encode() == table.encode()


MANIFEST = Manifest(
    "t",
    "0" * 32,
    1,
    0,
    (
        SegmentInfo(0, 0, 5, 7, 100, 9, 9, False, RemotePlace("s3://b/x", 0, 100, 7)),
        SegmentInfo(7, 0, 5),
    ),
)
MARK = FenceMark(0, 0, 100, 7, "EIO")


@target("journal.manifest", seeds=[
    encode_manifest(MANIFEST).partition(b"\n")[2], encode_fence_mark(MARK).partition(b"\n")[2],
    encode_fence_mark(FenceMark(0, 0, -100, 7, "")).partition(b"\n")[2], b"5\n", b'"a"\n',
    b"[]\n", b'{"segments": ["a"], "garbage": []}', b"[" * 3000,
])  # fmt: skip
def manifest(data: bytes) -> None:
    """Manifests and fence marks are read or refused, also behind checksums that hold; what is
    read can be used."""
    built = json.dumps(next(Values(data).values(), None), default=str).encode()
    for body in (data, built):
        crc = google_crc32c.value(body)
        with contextlib.suppress(BadManifest):
            found = decode_manifest(b"LMQM 2 %08x\n" % crc + body)
            assert found.file_names
            assert decode_manifest(encode_manifest(found)) == found
        mark = decode_fence_mark(b"LMQF 1 %08x\n" % crc + body)
        if mark is not None:
            assert mark.durable_bytes >= 0 and mark.next_offset >= 0
    with contextlib.suppress(BadManifest):
        decode_manifest(data)
    decode_fence_mark(data)
    segment_of(data.decode("latin-1"))
