"""Golden files: every file of a partition's folder, byte for byte.

`tests/data/journal/v2/` holds one small partition as hex dumps, `v1/` one as it was written before
there were epochs. What is written today must be the bytes of version 2, and both must be read.
After an intended change of format (a new version, a new folder)
`JOURNAL_GOLDEN=write pytest <this file>` writes the dumps anew.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from lakemq.broker_core.api.records.batch import ProducerStamp, RecordBatch, split
from lakemq.broker_core.api.types import Offset, TopicConfig
from lakemq.plugins.journal.segment.checkpoint import (
    UNKNOWN,
    BadCheckpoint,
    decode_checkpoint,
    encode_checkpoint,
)
from lakemq.plugins.journal.segment.epochs import EpochStarts, EpochTable
from lakemq.plugins.journal.segment.fence_mark import (
    FenceMark,
    decode_fence_mark,
    encode_fence_mark,
)
from lakemq.plugins.journal.segment.index import BadIndex, decode_index, encode_index
from lakemq.plugins.journal.segment.manifest import (
    BadManifest,
    Manifest,
    RemotePlace,
    SegmentInfo,
    decode_manifest,
    encode_manifest,
)
from lakemq.plugins.journal.segment.producers import Appended, Producer, ProducerTable
from tests.unit.journal.rig import FOLDER, Rig

VERSIONS = Path(__file__).parents[2] / "data" / "journal"
GOLDEN = VERSIONS / "v2"
CONFIG = TopicConfig(segment_max_bytes=650, segment_age_max_ms=10**15)
MARK = FenceMark(4, 0, 139, 5, "fsync failed: [Errno 5] Input/output error")


def to_hex(data: bytes) -> str:
    """Offset, sixteen bytes, and what of them is text."""
    lines = []
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:08x}  {row.hex(' '):<47}  {text}\n")
    return "".join(lines)


def from_hex(text: str) -> bytes:
    return b"".join(bytes.fromhex(line[10:57]) for line in text.splitlines())


def small_partition(loop: asyncio.AbstractEventLoop) -> Rig:
    """Two segments: a compressed batch, one with keys and nulls, and an idempotent producer's."""
    rig = Rig(loop, config=CONFIG, interval_bytes=150)
    rig.now = 1_700_000_000_000
    rig.append_durably(b"21.5", b"21.6", timestamps_ms=[1_700_000_000_000, 1_700_000_000_250])
    rig.append_durably(b"on", None, keys=[b"lamp", b"heater"])
    stamp = ProducerStamp(7, 1, 0)
    rig.log.lead(3, alone=True)
    rig.append_durably(b"x" * 300, producer=stamp)
    rig.now += 1000
    rig.log.lead(4, alone=True)
    rig.append_durably(b"last", producer=stamp._replace(base_sequence=1))
    rig.log.close_files(checkpoint=True)
    return rig


def contents(rig: Rig) -> dict[str, bytes]:
    files = {name: rig.disk.read(FOLDER / name) for name in rig.disk.names(FOLDER)}
    return files | {"fenced": encode_fence_mark(MARK)}


def test_todays_bytes_are_the_golden_ones(loop: asyncio.AbstractEventLoop) -> None:
    files = contents(small_partition(loop))
    if os.environ.get("JOURNAL_GOLDEN") == "write":
        GOLDEN.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (GOLDEN / f"{name}.hex").write_text(to_hex(data))
    assert sorted(files) == sorted(path.stem for path in GOLDEN.glob("*.hex"))
    for name, data in files.items():
        assert to_hex(data) == (GOLDEN / f"{name}.hex").read_text(), name


@pytest.mark.parametrize(
    ("version", "epochs"), [("v1", [0, 0, 0]), ("v2", [0, 3, 4])], ids=["v1", "v2"]
)
def test_golden_bytes_are_read(
    loop: asyncio.AbstractEventLoop, version: str, epochs: list[int]
) -> None:
    rig = Rig(loop)
    for path in (VERSIONS / version).glob("*.hex"):
        if path.stem != "fenced":
            handle = rig.disk.create(FOLDER / path.stem)
            handle.write_at(0, [from_hex(path.read_text())])
    log = rig.kill()
    assert log.status().detail == ""
    assert (log.log_start_offset, log.high_watermark) == (0, 6)
    values: list[bytes | None] = []
    for start in (0, 5):
        data = rig.fetch(start).data
        for position, header in split(data):
            values += RecordBatch(data[position : position + header.total_bytes]).values()
    assert values == [b"21.5", b"21.6", b"on", None, b"x" * 300, b"last"]
    again = rig.append_durably(b"last", producer=ProducerStamp(7, 1, 1))
    assert again.duplicate and again.base_offset == 5
    assert [log.last_epoch(Offset(end)) for end in (4, 5, 6)] == epochs


def test_version_1_becomes_version_2_when_it_is_written(loop: asyncio.AbstractEventLoop) -> None:
    manifest = decode_manifest(golden("manifest", "v1"))
    assert manifest.epochs == ((0, 0),)
    assert decode_manifest(encode_manifest(manifest)) == manifest
    assert encode_manifest(manifest).startswith(b"LMQM 2 ")
    checkpoint = decode_checkpoint(golden("checkpoint", "v1"), 150)
    assert checkpoint.epochs.starts() == ((0, 5),) and checkpoint.committed == UNKNOWN
    again = decode_checkpoint(encode_checkpoint(checkpoint), 150)
    assert again == checkpoint


def golden(name: str, version: str = "v2") -> bytes:
    return from_hex((VERSIONS / version / f"{name}.hex").read_text())


def test_golden_index_and_checkpoint_decode() -> None:
    index = decode_index(golden("00000000000000000000-000000.index"), 150)
    assert (index.base_offset, index.next_offset) == (0, 5)
    assert list(index.offsets) == [0, 4] and index.positions[0] == 0
    checkpoint = decode_checkpoint(golden("checkpoint"), 150)
    assert checkpoint.index.base_offset == 5
    assert checkpoint.epochs.starts() == ((0, 0), (3, 4), (4, 5)) and checkpoint.committed == 6
    assert decode_manifest(golden("manifest")).epochs == ((0, 0), (3, 4))
    batches = (Appended(0, 0, 4, 4), Appended(1, 1, 5, 5))
    assert checkpoint.producers == ProducerTable({7: Producer(1, 1_700_000_001_000, batches)})
    assert decode_fence_mark(golden("fenced")) == MARK


def manifest() -> Manifest:
    place = RemotePlace("s3://archive/t/0/x.log", 0, 100, 0x1234)
    sealed = SegmentInfo(3, 2, 5, 9, 100, 77, 8, True, False, place)
    active = SegmentInfo(9, 0, 6, gaps=True)
    epochs = ((1, 3), (4, 7))
    return Manifest("t", "a" * 32, 4, 3, (sealed, active), ("s3://archive/old",), epochs)


def test_manifest_and_back() -> None:
    assert decode_manifest(encode_manifest(manifest())) == manifest()


@pytest.mark.parametrize("epochs", [((1, 3), (1, 4)), ((1, 3), (2, 3)), ((-1, 3),)])
def test_epochs_that_do_not_ascend_are_refused(epochs: EpochStarts) -> None:
    with pytest.raises(BadManifest, match="follow"):
        decode_manifest(encode_manifest(replace(manifest(), epochs=epochs)))
    checkpoint = decode_checkpoint(golden("checkpoint"), 150)
    table = EpochTable()
    table._epochs, table._starts = [each[0] for each in epochs], [each[1] for each in epochs]
    with pytest.raises(BadCheckpoint, match="follow"):
        decode_checkpoint(encode_checkpoint(replace(checkpoint, epochs=table)), 150)


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("name", ["index", "checkpoint", "manifest", "fenced"])
def test_every_flipped_bit_and_every_cut_is_refused(name: str, version: str) -> None:
    file = "00000000000000000000-000000.index" if name == "index" else name
    data = golden(file, version)
    for size in range(len(data)):
        assert not accepted(name, data[:size]), f"cut to {size} bytes"
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << position % 8
        assert not accepted(name, bytes(flipped)), f"flipped at {position}"


def accepted(name: str, data: bytes) -> bool:
    try:
        if name == "index":
            decode_index(data, 150)
        elif name == "checkpoint":
            decode_checkpoint(data, 150)
        elif name == "manifest":
            decode_manifest(data)
        else:
            return decode_fence_mark(data) is not None
    except (BadIndex, BadCheckpoint, BadManifest):
        return False
    return True


def test_a_manifest_with_a_gap_between_segments_is_refused() -> None:
    gap = manifest().with_segments(SegmentInfo(0, 0, 0, 5, 1), SegmentInfo(6, 0, 0))
    with pytest.raises(BadManifest, match="is followed by"):
        decode_manifest(encode_manifest(gap))


def test_encoders_are_the_decoders_inverse() -> None:
    index = golden("00000000000000000000-000000.index")
    assert encode_index(decode_index(index, 150)) == index
    checkpoint = golden("checkpoint")
    assert encode_checkpoint(decode_checkpoint(checkpoint, 150)) == checkpoint


@pytest.mark.parametrize("name", ["00000000000000000000-000000.index", "checkpoint"])
def test_the_worked_example_is_the_golden_file(name: str) -> None:
    page = (Path(__file__).parents[3] / "docs" / "formats" / "journal.md").read_text()
    dump = (GOLDEN / f"{name}.hex").read_text()
    assert "".join(f"    {line}\n" for line in dump.splitlines()) in page
