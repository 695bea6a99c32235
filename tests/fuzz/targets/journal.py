"""What the journal finds on disk: segments, indexes, checkpoints, manifests, marks."""

from __future__ import annotations

import contextlib
import json

import google_crc32c

from lakemq.broker_core.api.errors import CorruptBatch
from lakemq.broker_core.api.records.batch import ProducerStamp, encode, read_header, stamp
from lakemq.broker_core.api.types import Columns
from lakemq.plugins.journal.inventory import decode_inventory
from lakemq.plugins.journal.log.replica_batches import checked_batches
from lakemq.plugins.journal.segment.checkpoint import (
    BadCheckpoint,
    Checkpoint,
    decode_checkpoint,
    encode_checkpoint,
)
from lakemq.plugins.journal.segment.damage import Damage, survey
from lakemq.plugins.journal.segment.epochs import EpochTable
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


def _sent(offset: int, epoch: int, value: bytes = b"x") -> bytes:
    return encode(Columns([value], None, None, [5]), base_offset=offset, leader_epoch=epoch)


@target(
    "journal.replica",
    seeds=[
        _sent(3, 2) + _sent(4, 2, b"") + _sent(9, 4),
        _sent(3, 5),
        _sent(2, 2),
        _sent(3, 1),
        _sent(3, 3) + _sent(4, 2),
        NESTED,
        _sent(3, 2)[:-1],
        b"",
    ],
    bytes_max=16_384,
)
def replica(data: bytes) -> None:
    """What a leader is said to have sent is refused, or is whole batches that continue the log and
    that recovery reads back."""
    try:
        found = checked_batches(data, log_end=3, last_epoch=2, epoch_max=4, empty=False)
    except CorruptBatch:
        return
    assert b"".join(batch.data for batch in found) == data
    end, epoch = 3, 2
    for header, _, _ in found:
        assert header.base_offset >= end and epoch <= header.leader_epoch <= 4
        end, epoch = header.last_offset + 1, header.leader_epoch
    read_back = walk(lambda at, size: data[at : at + size], 0, len(data), next_offset=3, gaps=True)
    assert [batch.header for batch in read_back] == [batch.header for batch in found]


@target(
    "journal.formats",
    seeds=[
        encode_index(_index())[8:],
        encode_checkpoint(Checkpoint(_index(), _producers()))[8:],
        encode_sums(sum_up(lambda at, size: bytes(size), 40_000))[8:],
        _producers().encode(),
        EpochTable([(1, 0), (3, 4)]).encode(),
        b"LMQV 1\n+ t 0 00000000\n- t 0 00000000\n",
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
    index = encode_index(_index())
    size = len(index).to_bytes(4, "little")
    for version, between in ((1, b""), (2, bytes(8) + EpochTable([(1, 0), (3, 4)]).encode())):
        head = version.to_bytes(4, "little") + size + between
        with contextlib.suppress(BadCheckpoint):
            kept = decode_checkpoint(with_crc(b"LMQC", head + index + data), 100)
            _use_producers(kept.producers)
    with contextlib.suppress(BadCheckpoint):
        head = b"\x02\x00\x00\x00" + size + bytes(8)
        tail = index + _producers().encode()
        kept = decode_checkpoint(with_crc(b"LMQC", head + data + tail), 100)
        assert EpochTable(kept.epochs.starts()) == kept.epochs
        kept.epochs.truncate(3)
        assert kept.epochs.epoch_at(1 << 62) == kept.epochs.last
    partitions, _, end = decode_inventory(data)
    assert end <= len(data) and all(partition >= 0 for _, partition in partitions)


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
