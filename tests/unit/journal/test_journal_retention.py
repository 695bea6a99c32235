"""Retention, compaction, and readers meanwhile."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lakemq.broker_core.api.errors import OffsetOutOfRange
from lakemq.broker_core.api.records.batch import RecordBatch, read_header, split
from lakemq.broker_core.api.types import Acks, TopicConfig
from lakemq.plugins.journal.log.reading import read_slice
from lakemq.plugins.journal.maintenance.compactor import CompactionLimits, Compactor
from lakemq.plugins.journal.maintenance.housekeeping import retain
from lakemq.plugins.journal.maintenance.retention import below_start, expired, starting_at
from lakemq.plugins.journal.segment.manifest import Manifest, SegmentInfo
from tests.support.poison import garbage_lengths
from tests.unit.journal.rig import FOLDER, Rig

ALWAYS = CompactionLimits(keys_max=1000, dirty_ratio_min=0.0, lag_max_ms=0)
Row = tuple[int, bytes | None, bytes | None]


def rows(rig: Rig) -> list[Row]:
    """(offset, key, value) of all that can be read."""
    found: list[Row] = []
    offset = int(rig.log.log_start_offset)
    while offset < rig.log.high_watermark:
        result = rig.fetch(offset, 1)
        for position, header in split(result.data):
            batch = RecordBatch(result.data[position : position + header.total_bytes])
            found += [(record.offset, record.key, record.value) for record in batch.records()]
        offset = result.next_offset
    return found


def compact(rig: Rig, limits: CompactionLimits = ALWAYS) -> int:
    end = rig.log.checkpoint_offset()
    return Compactor(rig.log.folder, rig.config, limits, rig.now).run(end)


def retain_now(rig: Rig) -> int:
    return retain(rig.log.folder, rig.config, rig.now, rig.log.checkpoint_offset())


def segment(base: int, end: int, size: int, newest: int) -> SegmentInfo:
    return SegmentInfo(base, 0, 0, end, size, newest, sealed_ms=newest)


@pytest.mark.parametrize(
    ("start", "gone"), [(0, 0), (9, 0), (10, 1), (19, 1), (20, 2), (25, 2), (30, 3), (99, 3)]
)
def test_what_lies_below_the_logs_start(start: int, gone: int) -> None:
    """Whole sealed segments, also up to the very last one; never the active one."""
    sealed = tuple(segment(base, base + 10, 100, 5) for base in (0, 10, 20))
    manifest = Manifest("t", "0" * 32, 0, start, (*sealed, SegmentInfo(30, 0, 9)))
    assert below_start(manifest) == gone
    kept, dropped = starting_at(replace(manifest, log_start_offset=0), start, 20)
    assert list(dropped) == list(sealed[: min(gone, 2)]), "none at or behind the offset given"
    assert kept.segments == manifest.segments[len(dropped) :]
    assert kept.log_start_offset == start


@pytest.mark.parametrize(
    ("bytes_max", "age_max_ms", "gone"),
    [
        (None, None, 0), (10_000, None, 0), (350, None, 0), (349, None, 1), (250, None, 1),
        (0, None, 3), (None, 1000, 0), (None, 899, 1), (None, 700, 2), (349, 700, 2),
    ],
)  # fmt: skip
def test_what_expires(bytes_max: int | None, age_max_ms: int | None, gone: int) -> None:
    segments = [
        segment(0, 10, 100, 100), segment(10, 20, 100, 250), segment(20, 30, 100, 500),
        SegmentInfo(30, 0, 0),
    ]  # fmt: skip
    for retention_by in ("append", "record"):
        found = expired(
            segments, 50, 1000,
            bytes_max=bytes_max, age_max_ms=age_max_ms, retention_by=retention_by,
        )  # fmt: skip
        assert found == gone


@pytest.fixture
def make_rig(loop: asyncio.AbstractEventLoop) -> Callable[..., Rig]:
    def make(**config: object) -> Rig:
        more = {"segment_max_bytes": 400, "retention_ms": None} | config
        return Rig(loop, config=TopicConfig(**more), tail_max_bytes=0)  # type: ignore[arg-type]

    return make


def test_retention_by_bytes_frees_the_disk_and_moves_the_start(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig(retention_bytes=1000)
    for number in range(30):
        rig.append_durably(b"%02d" % number)
    assert rig.log.folder.size_bytes() > 2000
    assert retain_now(rig) > 0
    assert rig.log.folder.size_bytes() <= 1000
    start = rig.log.log_start_offset
    assert start > 10
    assert [row[0] for row in rows(rig)] == list(range(start, 30))
    with pytest.raises(OffsetOutOfRange):
        rig.fetch(0)
    names = {name for name in rig.disk.names(FOLDER) if name.endswith(".log")}
    assert names == {s.log_name for s in rig.log.folder.manifest.segments}
    assert rig.lose_power().log_start_offset == start


@pytest.mark.parametrize(
    ("retention_by", "newest_ms", "age_max_ms", "gone"),
    [
        ("append", 5, 400, 0),  # of long ago, and just appended
        ("append", 5, 399, 1),
        ("append", 2**62, 399, 1),  # of a far future: no older, no younger
        ("record", 5, 994, 1),
        ("record", 5, 995, 0),
        ("record", 2**62, 399, 1),  # no record is younger than its segment's end
        ("record", 2**62, 400, 0),
        ("record", -1, 399, 1),  # none can be read
        ("record", -(2**63), 399, 1),
    ],
)
def test_what_the_age_of_a_segment_is(
    retention_by: str, newest_ms: int, age_max_ms: int, gone: int
) -> None:
    segments = [SegmentInfo(0, 0, 0, 10, 100, newest_ms, sealed_ms=600), SegmentInfo(10, 0, 600)]
    found = expired(
        segments, 0, 1000, bytes_max=None, age_max_ms=age_max_ms, retention_by=retention_by
    )
    assert found == gone


@pytest.mark.parametrize("end", [Rig.kill, Rig.lose_power])
def test_back_filled_records_are_kept_for_their_time(
    make_rig: Callable[..., Rig], end: Callable[[Rig], object]
) -> None:
    rig = make_rig(retention_ms=10_000)
    for number in range(12):
        rig.append_durably(b"%02d" % number, timestamps_ms=[1000 + number])
        rig.now += 100
    assert retain_now(rig) == 0, "acknowledged a moment ago"
    end(rig)
    rig.log._writer.checkpoint()
    assert retain_now(rig) == 0
    assert len(rows(rig)) == 12
    rig.now += 10_001
    assert retain_now(rig) > 0


def test_by_record_back_filled_records_go_at_once(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(retention_ms=10_000, retention_by="record")
    for number in range(12):
        rig.append_durably(b"%02d" % number, timestamps_ms=[1000 + number])
    assert retain_now(rig) > 0


def test_retention_by_age_looks_at_the_newest_record(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(retention_ms=1000, retention_by="record")
    for number in range(12):
        rig.append_durably(b"%02d" % number)
        rig.now += 100
    assert retain_now(rig) == 0
    rig.now += 500
    gone = retain_now(rig)
    assert gone > 0
    oldest = rig.log.folder.manifest.segments[0]
    assert rig.now - oldest.max_timestamp_ms <= 1000


def test_retention_keeps_what_a_start_still_needs(make_rig: Callable[..., Rig]) -> None:
    """Nothing goes before a checkpoint behind it is durable: its producers would be forgotten."""
    rig = make_rig(retention_bytes=0)
    for number in range(12):
        rig.append_durably(b"%02d" % number)
    assert retain(rig.log.folder, rig.config, rig.now, 0) == 0
    assert retain_now(rig) > 0


def test_compacting_topics_keep_the_old(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(retention_bytes=0, cleanup="compact")
    for number in range(12):
        rig.append_durably(b"%02d" % number)
    assert retain_now(rig) == 0


def test_old_segment_is_sealed_by_time_alone(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(segment_age_max_ms=1000)
    rig.append_durably(b"a")
    rig.now += 1000
    rig.log.tick(rig.now, 0)
    rig.flusher.run()
    assert len(rig.log.folder.manifest.segments) == 2
    rig.now += 1000
    rig.log.tick(rig.now, 0)  # nothing in it: not sealed
    rig.flusher.run()
    assert len(rig.log.folder.manifest.segments) == 2


def test_a_checkpoint_that_is_due_seals_nothing(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(segment_max_bytes=500)
    rig.disk.fault = lambda call, path: errno.EIO if path.name.startswith("checkpoint") else 0
    while len(rig.log.folder.manifest.segments) < 2:
        rig.append_durably(b"a")
    rig.disk.fault = None
    begun = rig.log.folder.manifest.segments[-1].base_offset
    assert rig.log.checkpoint_offset() == 0 and rig.log.log_end_offset > begun
    rig.log.tick(rig.now, 0)
    rig.flusher.run()
    assert len(rig.log.folder.manifest.segments) == 2
    assert rig.log.checkpoint_offset() == begun


# ---------------------------------------------------------------- compaction


def fill(rig: Rig, count: int = 40) -> dict[bytes, bytes | None]:
    """Records of five keys in turn, two a batch; returns the latest values."""
    latest: dict[bytes, bytes | None] = {}
    for number in range(0, count, 2):
        keys = [b"k%d" % (number % 5), b"k%d" % ((number + 1) % 5)]
        values = [b"%03d" % number, b"%03d" % (number + 1)]
        rig.append_durably(*values, keys=list(keys))
        latest.update(zip(keys, values, strict=True))
    return latest


def test_compaction_keeps_the_latest_of_every_key(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(cleanup="compact")
    latest = fill(rig)
    before = rows(rig)
    assert compact(rig) > 0
    after = rows(rig)
    assert set(after) < set(before)
    assert [row[0] for row in after] == sorted(row[0] for row in after)
    assert {key: value for _, key, value in after} == latest
    sealed_end = rig.log.folder.manifest.segments[-1].base_offset
    sealed = [row for row in after if row[0] < sealed_end]
    assert len(sealed) == len({key for _, key, _ in sealed})
    assert compact(rig) == 0, "what is compacted is not compacted again"
    assert rows(rig) == after
    rig.lose_power()
    assert rows(rig) == after
    assert rig.append_durably(b"next", keys=[b"k0"]).base_offset == 40


def test_a_segment_that_changes_while_nothing_of_it_goes_keeps_its_file(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that tiering has uploaded meanwhile."""
    rig = make_rig(cleanup="compact")
    for number in range(60):
        rig.append_durably(b"%03d" % number, keys=[b"k%03d" % number])
    before = rows(rig)
    copy = Compactor._copy

    def changed_meanwhile(self: Compactor, *arguments: Any) -> None:
        copy(self, *arguments)
        folder = rig.log.folder
        segments = [
            replace(each, sealed_ms=each.sealed_ms + 1) for each in folder.manifest.segments
        ]
        folder.commit(folder.manifest.with_segments(*segments))

    monkeypatch.setattr(Compactor, "_copy", changed_meanwhile)
    compact(rig)
    assert rows(rig) == before
    names = {name for name in rig.disk.names(FOLDER) if name.endswith(".log")}
    assert names == {each.log_name for each in rig.log.folder.manifest.segments}


def test_compacted_segments_are_merged(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(cleanup="compact")
    fill(rig, 200)
    many = len(rig.log.folder.manifest.segments)
    compact(rig)
    fill(rig, 20)
    compact(rig)
    assert len(rig.log.folder.manifest.segments) < many / 4
    names = {name for name in rig.disk.names(FOLDER) if name.endswith(".log")}
    assert names == {s.log_name for s in rig.log.folder.manifest.segments}


def test_tombstones_go_after_their_time(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(cleanup="compact", tombstone_retention_ms=1000)
    rig.append_durably(b"old", keys=[b"gone"])
    rig.append_durably(None, keys=[b"gone"])
    latest = fill(rig)
    compact(rig)
    assert (1, b"gone", None) in rows(rig)
    assert (0, b"gone", b"old") not in rows(rig)
    rig.now += 2000
    latest |= fill(rig)
    compact(rig)
    assert all(key != b"gone" for _, key, _ in rows(rig))
    assert {key: value for _, key, value in rows(rig)} == latest


def test_young_tombstones_stay(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(cleanup="compact", tombstone_retention_ms=1000)
    rig.append_durably(None, keys=[b"gone"])
    for _ in range(3):
        fill(rig)
        rig.now += 300
        compact(rig)
    assert (0, b"gone", None) in rows(rig)


def test_records_without_key_stay(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(cleanup="compact")
    rig.append_durably(b"a", b"b", keys=[None, b"k0"])
    rig.append_durably(b"no keys at all")
    fill(rig)
    compact(rig)
    values = {value for _, key, value in rows(rig) if key is None}
    assert values == {b"a", b"no keys at all"}


def test_there_is_always_a_batch_below_the_high_watermark(make_rig: Callable[..., Rig]) -> None:
    """Even when all that is sealed is due to go and the active segment is empty."""
    rig = make_rig(cleanup="compact", tombstone_retention_ms=0, segment_age_max_ms=10_000)
    for _ in range(2):
        rig.append_durably(None, keys=[b"k"])
        rig.now += 10_000
        rig.log.tick(rig.now, 0)
        rig.flusher.run()
        compact(rig)
    assert rows(rig) == [(1, b"k", None)]
    assert rig.fetch(0).next_offset == 2


def test_more_keys_than_memory_are_done_in_steps(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(cleanup="compact")
    latest = {}
    for number in range(60):
        key = b"k%d" % (number % 20)
        rig.append_durably(b"%d" % number, keys=[key])
        latest[key] = b"%d" % number
    few = CompactionLimits(keys_max=8, dirty_ratio_min=0.0, lag_max_ms=0)
    for _ in range(30):
        compact(rig, few)
    found = rows(rig)
    assert {key: value for _, key, value in found} == latest
    assert len(found) < 40


def test_damaged_segments_are_not_compacted_away(
    make_rig: Callable[..., Rig], caplog: pytest.LogCaptureFixture
) -> None:
    rig = make_rig(cleanup="compact")
    fill(rig)
    names = [s.log_name for s in rig.log.folder.manifest.segments]
    rig.disk.flip_bit(rig.segment_path(1), 20, 1)
    assert compact(rig) == 0
    assert [s.log_name for s in rig.log.folder.manifest.segments] == names
    assert "is not compacted" in caplog.text


def test_a_reader_keeps_the_file_it_has_open(make_rig: Callable[..., Rig]) -> None:
    """Compaction ends between a reader's choice of a file and its reading of it."""
    rig = make_rig(cleanup="compact")
    fill(rig)
    folder = rig.log.folder
    manifest = folder.manifest

    class Slow(type(folder)):  # type: ignore[misc]
        def covered_bytes(self, segment: SegmentInfo) -> int:
            if self.manifest is manifest:
                compact(rig)
            return super().covered_bytes(segment)  # type: ignore[no-any-return]

    folder.__class__ = Slow
    cut = read_slice(folder, 0, rig.log.high_watermark, 1 << 20)
    assert folder.manifest is not manifest
    (_, first), *_ = split(cut.data)
    assert first.last_offset >= 0 and cut.next_offset > 0


def test_producers_survive_compaction_and_a_crash(make_rig: Callable[..., Rig]) -> None:
    from lakemq.broker_core.api.records.batch import ProducerStamp

    rig = make_rig(cleanup="compact")
    for sequence in range(30):
        rig.append_durably(b"v", keys=[b"k"], producer=ProducerStamp(4, 0, sequence))
    compact(rig)
    rig.lose_power()
    again = rig.append_durably(b"v", keys=[b"k"], producer=ProducerStamp(4, 0, 29))
    assert again.duplicate and again.base_offset == 29
    assert rig.append_durably(b"v", producer=ProducerStamp(4, 0, 30)).base_offset == 30


def test_compaction_and_times_go_on_behind_a_batch_that_is_corrupt_inside(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig(cleanup="compact")
    for number in range(12):
        rig.append_durably(b"%02d" % number, keys=[b"k"])
        if number == 3:
            poison = garbage_lengths()
            rig.log.append(poison, read_header(poison), Acks.LEADER)
            rig.flusher.run()
    assert compact(rig) > 0
    stored = rig.fetch(rig.log.log_start_offset, 1 << 20).data
    offsets = [header.base_offset for _, header in split(stored)]
    assert 4 in offsets, "what it holds is not known, so it stays"
    assert 0 not in offsets
    found = rig.loop.run_until_complete(rig.log.offset_for_timestamp(1_600_000_000_000))
    assert found == rig.log.high_watermark, "no readable record is so young"
