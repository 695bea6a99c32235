"""Stored batches that tasks keep for the next ones: nothing missing, nothing twice, and bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.broker_core.api.records.batch import encode
from lakemq.broker_core.api.types import Columns, Compression
from lakemq.plugins.native.sdk import RecordBatch
from lakemq.spark_plugin.source import kept_batches
from lakemq.spark_plugin.source.broker_reader import read_arrow
from lakemq.spark_plugin.source.kept_batches import SECONDS_MAX, KeptBatches
from lakemq.spark_plugin.source.options import parse_options
from lakemq.spark_plugin.source.planning import OffsetRange
from lakemq.spark_plugin.source.reader import RangePartition, StreamReader
from tests.support.memory_journal import MemoryJournal


class Stored:
    """Partitions whose stored batches begin at the given offsets."""

    def __init__(self, *starts: int, value: bytes = b"x", **options) -> None:
        self.batches = []
        for first, end in zip(starts, starts[1:], strict=False):
            columns = Columns([value] * (end - first))
            self.batches.append(encode(columns, base_offset=first, **options))
        self.asked: list[tuple[int, int]] = []

    def read(self, part: OffsetRange):
        self.asked.append((part.start, part.end))
        for data in self.batches:
            batch = RecordBatch(data, columns_later=True)
            if batch.header.base_offset < part.end and batch.header.last_offset >= part.start:
                yield batch


def part(start: int, end: int, partition: int = 0, topic_id: str = "id") -> OffsetRange:
    return OffsetRange("t", topic_id, partition, start, end)


def offsets(batches, wanted: OffsetRange) -> list[int]:
    headers = [batch.header for batch in batches]
    found = [n for each in headers for n in range(each.base_offset, each.last_offset + 1)]
    return [offset for offset in found if wanted.start <= offset < wanted.end]


def read(kept: KeptBatches, stored: Stored, wanted: OffsetRange) -> list[int]:
    return offsets(kept.through(wanted, stored.read), wanted)


@given(
    starts=st.lists(st.integers(0, 60), min_size=3, max_size=8, unique=True).map(sorted),
    ranges=st.lists(
        st.tuples(st.integers(0, 59), st.integers(1, 40), st.integers(0, 1)), max_size=12
    ),
)
def test_each_range_holds_what_it_holds_without_them(starts, ranges) -> None:
    kept, stored = KeptBatches(), Stored(*starts)
    for start, length, partition in ranges:
        wanted = part(start, start + length, partition)
        assert read(kept, stored, wanted) == offsets(stored.read(wanted), wanted)


def test_one_batch_is_asked_for_once_by_small_ranges() -> None:
    kept, stored = KeptBatches(), Stored(0, 100, 200)
    for start in range(0, 200, 20):
        assert read(kept, stored, part(start, start + 20)) == [*range(start, start + 20)]
    assert stored.asked == [(0, 20), (100, 120)]
    assert kept.bytes_held == 0, "all of them was read"


def test_what_reaches_past_it_is_asked_for_from_there() -> None:
    kept, stored = KeptBatches(), Stored(0, 100, 200)
    read(kept, stored, part(0, 60))
    assert read(kept, stored, part(60, 130)) == [*range(60, 130)]
    assert read(kept, stored, part(130, 150)) == [*range(130, 150)]
    assert stored.asked == [(0, 60), (100, 130)]


def test_another_topic_of_the_same_name_has_nothing_kept() -> None:
    kept, stored = KeptBatches(), Stored(0, 100)
    read(kept, stored, part(0, 20))
    read(kept, stored, part(20, 40, topic_id="created again"))
    read(kept, stored, part(20, 40, partition=1))
    assert len(stored.asked) == 3


def test_they_are_kept_for_a_minute_after_they_were_asked_for() -> None:
    now = [0.0]
    kept, stored = KeptBatches(lambda: now[0]), Stored(0, 100)
    for now[0], times_asked in ((0.0, 1), (SECONDS_MAX - 1, 1), (SECONDS_MAX + 1, 2)):
        assert read(kept, stored, part(20, 40)) == [*range(20, 40)]
        assert len(stored.asked) == times_asked


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
def test_the_oldest_go_when_they_are_too_large_together(monkeypatch, compression) -> None:
    monkeypatch.setattr(kept_batches, "BYTES_MAX", 5000)
    kept, stored = KeptBatches(), Stored(0, 10, value=b"v" * 200, compression=compression)
    for partition in range(3):  # of 2 kB each
        read(kept, stored, part(0, 5, partition))
        assert 0 < kept.bytes_held <= 5000
    for partition, times_asked in ((2, 3), (1, 3), (0, 4)):
        assert read(kept, stored, part(5, 9, partition)) == [5, 6, 7, 8]
        assert len(stored.asked) == times_asked, partition
    large = Stored(0, 10, value=b"v" * 600)
    for _ in range(2):
        read(kept, large, part(0, 5, 7))
        assert kept.bytes_held == 0
    assert len(large.asked) == 2, "larger than all of them may be"


def test_a_batch_counts_with_the_answer_that_it_came_in(monkeypatch) -> None:
    monkeypatch.setattr(kept_batches, "BYTES_MAX", 5000)
    kept, stored = KeptBatches(), Stored(0, 10)
    (data,) = stored.batches
    stored.batches = [memoryview(data + bytes(6000))]
    for _ in range(2):
        read(kept, stored, part(0, 5))
    assert len(stored.asked) == 2


def test_tasks_of_a_stream_use_them(memory: MemoryJournal, monkeypatch) -> None:
    """Two micro-batches of one stored batch ask the broker for records once."""
    memory.create_topic("t")
    memory.append_values("t", 0, *(b"%d" % n for n in range(10)))
    asked, fetch = [], memory.fetch_batches
    monkeypatch.setattr(
        memory, "fetch_batches", lambda *a, **more: asked.append(a[:4]) or fetch(*a, **more)
    )
    reader = StreamReader(
        parse_options({"bootstrap": "memory", "subscribe": "t"}, streaming=True), ("offset",)
    )
    topic_id = memory.describe_topic("t").topic_id
    found = []
    for start, end in ((0, 4), (4, 8), (8, 10)):
        task = RangePartition(part(start, end, topic_id=topic_id))
        found += [n for batch in reader.read(task) for n in batch.column(0).to_pylist()]
    assert found == [*range(10)]
    assert asked == [("t", 0, 0, 4)]


def test_without_a_place_to_keep_them_each_range_is_asked_for(memory: MemoryJournal) -> None:
    memory.create_topic("t")
    memory.append_values("t", 0, b"0", b"1", b"2")
    wanted = part(1, 3, topic_id=memory.describe_topic("t").topic_id)
    (batch,) = read_arrow(memory, wanted, columns=("value",))
    assert batch.column(0).to_pylist() == [b"1", b"2"]
