"""Damaged files: reported with file, position and offsets, never served, never silently dropped."""

from __future__ import annotations

import asyncio
import re

import pytest

from lakemq.broker_core.api.errors import CorruptBatch, CorruptLog
from lakemq.broker_core.api.records.batch import RecordBatch, encode, read_header, split
from lakemq.broker_core.api.types import Acks, Columns, TopicConfig
from tests.unit.journal.rig import FOLDER, Rig


@pytest.fixture
def rig(loop: asyncio.AbstractEventLoop) -> Rig:
    """Ten records in batches of one, five to a segment: two sealed segments and a third."""
    rig = Rig(loop, config=TopicConfig(segment_max_bytes=500), tail_max_bytes=0)
    for number in range(11):
        rig.append_durably(b"value %d" % number)
    assert [s.base_offset for s in rig.log.folder.manifest.segments] == [0, 5, 10]
    return rig


def read_on(rig: Rig, offset: int) -> tuple[dict[int, bytes | None], list[str]]:
    """What a reader gets who goes on behind what is damaged, as the error tells it."""
    found: dict[int, bytes | None] = {}
    errors = []
    while offset < rig.log.high_watermark:
        try:
            result = rig.fetch(offset)
        except CorruptLog as error:
            errors.append(str(error))
            match = re.search(r"offsets (\d+)\.\.(\d+) are damaged", str(error))
            assert match and int(match[1]) <= offset <= int(match[2])
            offset = int(match[2]) + 1
            continue
        for position, header in split(result.data):
            batch = RecordBatch(result.data[position : position + header.total_bytes])
            found.update({record.offset: record.value for record in batch.records()})
        offset = result.next_offset
    return found, errors


@pytest.mark.parametrize("crash", ["", "kill", "lose_power"])
@pytest.mark.parametrize("place", ["header", "body", "magic"])
def test_flipped_bit_in_a_sealed_segment_is_reported_and_not_served(
    rig: Rig, place: str, crash: str
) -> None:
    path = rig.segment_path(0)
    size = len(rig.disk.read(path)) // 5
    within = {"header": 20, "body": size - 1, "magic": 0}[place]
    rig.disk.flip_bit(path, 2 * size + within, 3)
    if crash:
        getattr(rig, crash)()
    found, errors = read_on(rig, 0)
    assert sorted(found) == [0, 1, 3, 4, *range(5, 11)]
    assert all(value == b"value %d" % offset for offset, value in found.items())
    assert len(errors) == 1
    assert f"{path.name} position {2 * size}..{3 * size}: offsets 2..2" in errors[0]
    assert errors[0] in rig.log.status().detail


@pytest.mark.parametrize("position", range(0, 500, 7))
def test_every_flipped_bit_is_found(rig: Rig, position: int) -> None:
    path = rig.segment_path(1)
    position %= len(rig.disk.read(path))
    rig.disk.flip_bit(path, position, position % 8)
    found, errors = read_on(rig, 0)
    assert len(errors) == 1 and len(found) == 10
    assert all(value == b"value %d" % offset for offset, value in found.items())


def test_damage_at_the_end_of_a_segment_names_the_last_offset(rig: Rig) -> None:
    path = rig.segment_path(0)
    size = len(rig.disk.read(path)) // 5
    for position in range(3 * size, 5 * size, 11):
        rig.disk.flip_bit(path, position, 1)
    found, errors = read_on(rig, 0)
    assert sorted(found) == [0, 1, 2, *range(5, 11)]
    assert "offsets 3..4 are damaged" in errors[0]


def test_a_reader_behind_the_damage_is_not_disturbed(rig: Rig) -> None:
    rig.disk.flip_bit(rig.segment_path(0), 20, 1)
    assert [header.base_offset for _, header in split(rig.fetch(3).data)] == [3, 4]


def test_timestamps_are_not_looked_up_across_damage(rig: Rig) -> None:
    rig.disk.flip_bit(rig.segment_path(0), 20, 1)
    with pytest.raises(CorruptLog):
        rig.loop.run_until_complete(rig.log.offset_for_timestamp(rig.now))


@pytest.mark.parametrize("harm", ["gone", "empty", "flipped", "of another"])
def test_wrong_index_is_made_anew(rig: Rig, harm: str) -> None:
    path = FOLDER / rig.log.folder.manifest.segments[0].index_name
    right = rig.disk.read(path)
    if harm == "gone":
        rig.disk.remove(path)
    elif harm == "empty":
        rig.disk.create(path).close()
    elif harm == "flipped":
        rig.disk.flip_bit(path, 30, 2)
    else:
        other = FOLDER / rig.log.folder.manifest.segments[1].index_name
        handle = rig.disk.create(path)
        handle.write_at(0, [rig.disk.read(other)])
    rig.kill()
    found, errors = read_on(rig, 0)
    assert len(found) == 11 and not errors
    assert rig.disk.read(path) == right


@pytest.mark.parametrize("harm", ["gone", "empty", "flipped"])
def test_lost_manifest_is_made_anew_and_told(rig: Rig, harm: str) -> None:
    path = FOLDER / "manifest"
    if harm == "gone":
        rig.disk.remove(path)
    elif harm == "empty":
        rig.disk.create(path).close()
    else:
        rig.disk.flip_bit(path, 100, 2)
    log = rig.kill()
    assert "manifest" in log.status().detail
    found, errors = read_on(rig, 0)
    assert len(found) == 11 and not errors
    assert rig.append_durably(b"next").base_offset == 11
    assert rig.lose_power().status().detail == ""


@pytest.mark.parametrize("harm", ["gone", "flipped"])
def test_lost_checkpoint_costs_time_only(rig: Rig, harm: str) -> None:
    path = FOLDER / "checkpoint"
    rig.disk.remove(path) if harm == "gone" else rig.disk.flip_bit(path, 50, 2)
    rig.kill()
    assert len(read_on(rig, 0)[0]) == 11


def test_missing_sealed_segment_is_told(rig: Rig) -> None:
    path = rig.segment_path(1)
    rig.disk.remove(path)
    log = rig.kill()
    assert f"{path.name} is missing: offsets 5..9 are gone" in log.status().detail
    assert len(rig.fetch(0).data) > 0
    with pytest.raises(CorruptLog, match="is missing"):
        rig.fetch(7)
    assert len(rig.fetch(10).data) > 0


def test_missing_active_segment_fences(rig: Rig) -> None:
    rig.disk.remove(rig.segment_path(2))
    status = rig.kill().status()
    assert status.state == "fenced" and "is missing" in status.detail


def test_shrunk_active_segment_fences(rig: Rig) -> None:
    rig.log.close_files(checkpoint=True)
    handle = rig.disk.open(rig.segment_path(2), writable=True)
    handle.truncate(10)
    status = rig.kill().status()
    assert status.state == "fenced" and "the disk lost offsets up to 10" in status.detail


def test_torn_tail_is_cut_at_the_last_whole_batch(rig: Rig) -> None:
    path = rig.segment_path(2)
    whole = rig.disk.read(path)
    handle = rig.disk.open(path, writable=True)
    handle.write_at(len(whole), [whole[:-1]])
    log = rig.kill()
    assert log.high_watermark == 11
    assert rig.disk.read(path) == whole
    assert "no whole batch" in log.status().detail


def test_whole_batches_behind_a_tear_are_put_aside(rig: Rig) -> None:
    rig.append_durably(b"value 11")
    path = rig.segment_path(2)
    whole = rig.disk.read(path)
    rig.disk.flip_bit(path, 20, 1)
    log = rig.kill()
    assert log.high_watermark == 10
    (aside,) = [name for name in rig.disk.names(FOLDER) if name.endswith(".cut")]
    assert rig.disk.read(FOLDER / aside)[30:] == whole[30:]
    assert aside in log.status().detail


def test_batches_of_another_place_are_not_believed(rig: Rig) -> None:
    """A whole batch with the wrong offset behind the end is no part of the log."""
    other = rig.disk.read(rig.segment_path(0))
    path = rig.segment_path(2)
    handle = rig.disk.open(path, writable=True)
    handle.write_at(handle.size(), [other])
    assert rig.kill().high_watermark == 11


@pytest.mark.parametrize("position", [0, 5, 9, 12, 13, 16, 19, 30, 70, 85, 120])
def test_a_batch_within_a_damaged_batch_is_not_taken_for_one_of_the_log(
    loop: asyncio.AbstractEventLoop, position: int
) -> None:
    """A value that is itself a whole batch, with an offset that would fit, at the body's end."""
    rig = Rig(loop, config=TopicConfig(segment_max_bytes=2000), tail_max_bytes=0)
    rig.append_durably(b"first")
    inner = encode(Columns([b"never appended"]), base_offset=1)
    rig.append_durably(b"padding" + inner)
    for _ in range(30):
        rig.append_durably(b"after" + b"x" * 40)
    path = rig.segment_path(0)
    start = len(encode(Columns([b"first"])))
    assert rig.disk.read(path)[start : start + 4] == b"LMQB"
    rig.disk.flip_bit(path, start + position, 2)
    found, errors = read_on(rig, 0)
    assert "offsets 1..1 are damaged" in errors[0] and len(errors) == 1
    assert sorted(found) == [0, *range(2, 32)]


def test_a_lost_page_costs_the_batches_in_it_alone(loop: asyncio.AbstractEventLoop) -> None:
    rig = Rig(loop, config=TopicConfig(segment_max_bytes=20_000), tail_max_bytes=0)
    for number in range(300):
        rig.append_durably(b"value %03d" % number)
    path = rig.segment_path(0)
    size = len(encode(Columns([b"value 000"])))
    handle = rig.disk.open(path, writable=True)
    handle.write_at(4096, [bytes(4096)])
    lost = range(4096 // size, -(-8192 // size))
    found, errors = read_on(rig, 0)
    assert len(errors) == 1
    assert sorted(found) == [offset for offset in range(300) if offset not in lost]


def test_a_header_that_does_not_fit_its_batch_is_refused(rig: Rig) -> None:
    data = encode(Columns([b"a"]))
    future = rig.log.append(data + b"more", read_header(data), Acks.LEADER)
    assert isinstance(future.exception(), CorruptBatch)
