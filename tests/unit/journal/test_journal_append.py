"""Appending: offsets, group commit, acks, idempotence, failed flushes, back-pressure."""

from __future__ import annotations

import asyncio
import errno

import pytest

from lakemq.broker_core.api.errors import (
    OutOfOrderSequence,
    ProducerFenced,
    StorageFenced,
    StorageFull,
    Unavailable,
)
from lakemq.broker_core.api.records.batch import (
    ProducerStamp,
    RecordBatch,
    encode,
    read_header,
    split,
    stamp,
)
from lakemq.broker_core.api.types import (
    Acks,
    AppendResult,
    Columns,
    CommittedBatch,
    Compression,
    Offset,
    TopicConfig,
)
from tests.unit.journal.rig import FOLDER, Rig


def values_in(data: bytes) -> list[bytes | None]:
    found: list[bytes | None] = []
    for position, header in split(data):
        found += RecordBatch(data[position : position + header.total_bytes]).values()
    return found


def test_offsets_follow_the_order_of_calls_and_are_answered_once_durable(rig: Rig) -> None:
    first = rig.append(b"a", b"b")
    second = rig.append(b"c")
    assert not first.done() and not second.done()
    assert (rig.log.log_end_offset, rig.log.high_watermark) == (3, 0)
    rig.flusher.run()
    assert (first.result().base_offset, first.result().last_offset) == (0, 1)
    assert second.result().base_offset == 2
    assert second.result().acks is Acks.LEADER
    assert rig.log.high_watermark == 3
    assert values_in(rig.fetch(0).data) == [b"a", b"b", b"c"]


def test_appends_of_one_turn_share_one_write_and_one_sync(rig: Rig) -> None:
    calls: list[str] = []

    def count(call: str, path: object) -> int:
        calls.append(call)
        return 0

    rig.append_durably(b"opens the file")
    rig.disk.fault = count
    for number in range(100):
        rig.append(b"%d" % number)
    rig.flusher.run()
    assert calls == ["write", "sync"]


def test_memory_acks_are_answered_at_once_and_readable_only_when_durable(rig: Rig) -> None:
    future = rig.append(b"a", acks=Acks.MEMORY)
    assert future.result().acks is Acks.MEMORY
    assert rig.fetch(0).data == b""
    rig.flusher.run()
    assert values_in(rig.fetch(0).data) == [b"a"]


def test_taps_see_each_batch_once_in_order_when_it_is_durable(rig: Rig) -> None:
    seen: list[list[CommittedBatch]] = []
    remove = rig.log.tap(lambda batches: seen.append(list(batches)))
    rig.append(b"a")
    rig.append(b"b", b"c")
    assert seen == []
    rig.flusher.run()
    assert [[batch.base_offset for batch in call] for call in seen] == [[0, 1]]
    assert values_in(b"".join(batch.data for batch in seen[0])) == [b"a", b"b", b"c"]
    remove()
    rig.append_durably(b"d")
    assert len(seen) == 1


def test_a_tap_that_raises_does_not_stop_the_log(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(batches: object) -> None:
        raise ValueError("tap")

    rig.log.tap(broken)
    assert rig.append_durably(b"a").base_offset == 0
    assert "a tap of t partition 0 failed" in caplog.text


def test_failed_fsync_fences_and_fails_everything_behind_it(rig: Rig) -> None:
    rig.append_durably(b"kept")
    first = rig.append(b"lost")
    flushable = rig.flusher.waiting.pop()
    flushable.begin_flush()
    behind = rig.append(b"behind")  # arrives while the flush is under way
    rig.disk.fault = lambda call, path: errno.EIO if call == "sync" else 0
    flushable.write_flush()
    flushable.sync_flush()
    flushable.end_flush()
    for future in (first, behind):
        assert isinstance(future.exception(), StorageFenced)
    rig.disk.fault = None
    assert isinstance(rig.append(b"later").exception(), StorageFenced)
    status = rig.log.status()
    assert status.state == "fenced" and "fsync failed" in status.detail
    assert rig.log.log_end_offset == 1
    assert values_in(rig.fetch(0).data) == [b"kept"]


def test_a_start_after_a_failed_fsync_does_not_believe_the_page_cache(rig: Rig) -> None:
    rig.append_durably(b"kept")
    rig.append(b"in the cache only")
    rig.disk.fault = lambda call, path: errno.EIO if call == "sync" and path.suffix == ".log" else 0
    rig.flusher.run()
    assert b"in the cache only" in rig.disk.read(rig.segment_path(0))
    log = rig.kill()
    assert log.high_watermark == 1
    assert "was fenced" in log.status().detail
    assert rig.append_durably(b"new").base_offset == 1
    rig.lose_power()
    assert values_in(rig.fetch(0).data) == [b"kept", b"new"]


def test_full_disk_is_retriable_and_recovers_when_space_returns(rig: Rig) -> None:
    rig.append_durably(b"kept")
    rig.disk.capacity_bytes = rig.disk.used + 100
    refused = rig.append(b"x" * 1000)
    behind = rig.append(b"y")
    rig.flusher.run()
    assert isinstance(refused.exception(), StorageFull) and StorageFull.retriable
    assert isinstance(behind.exception(), StorageFull)
    assert rig.log.status().state == "full"
    assert values_in(rig.fetch(0).data) == [b"kept"]
    assert len(rig.disk.read(rig.segment_path(0))) == rig.log.folder.active_index.covered_bytes
    rig.disk.capacity_bytes += 1 << 20
    assert rig.append_durably(b"z").base_offset == 1
    assert rig.log.status().state == "online"
    rig.lose_power()
    assert values_in(rig.fetch(0).data) == [b"kept", b"z"]


def test_write_error_other_than_full_fences(rig: Rig) -> None:
    rig.disk.fault = lambda call, path: errno.EIO if call == "write" else 0
    refused = rig.append(b"x")
    rig.flusher.run()
    assert isinstance(refused.exception(), StorageFenced)


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE])
def test_without_descriptors_a_write_is_retriable_and_the_log_goes_on(rig: Rig, error: int) -> None:
    rig.disk.fault = lambda call, path: error if call == "open" else 0
    refused = rig.append(b"x")
    rig.flusher.run()
    assert isinstance(refused.exception(), Unavailable) and Unavailable.retriable
    assert rig.log.status().state == "online"
    rig.disk.fault = None
    assert rig.append_durably(b"z").base_offset == 0
    rig.lose_power()
    assert values_in(rig.fetch(0).data) == [b"z"]


@pytest.mark.parametrize("failing", range(1, 5))
def test_without_descriptors_a_roll_is_made_later(rig: Rig, failing: int) -> None:
    rig.log.configure(TopicConfig(segment_max_bytes=4096))
    rig.append_durably(bytes(3000))
    left = failing

    def exhausted(call: str, path: object) -> int:
        nonlocal left
        left -= call in ("create", "open")
        return errno.EMFILE if call in ("create", "open") and left <= 0 else 0

    rig.disk.fault = exhausted
    outcome = rig.append(bytes(3000))
    rig.flusher.run()
    assert isinstance(outcome.exception(), Unavailable | None)
    rig.disk.fault = None
    offset = rig.append_durably(b"z").base_offset
    assert rig.log.status().state == "online"
    rig.lose_power()
    assert values_in(rig.fetch(offset).data) == [b"z"]


def test_duplicate_batch_answers_with_the_first_offsets(rig: Rig) -> None:
    stamp = ProducerStamp(7, 0, 0)
    original = rig.append_durably(b"a", b"b", producer=stamp)
    again = rig.append_durably(b"a", b"b", producer=stamp)
    assert not original.duplicate and again.duplicate
    assert (again.base_offset, again.last_offset) == (0, 1)
    assert rig.log.high_watermark == 2


def test_duplicate_of_a_batch_under_way_waits_for_it(rig: Rig) -> None:
    stamp = ProducerStamp(7, 0, 0)
    original = rig.append(b"a", producer=stamp)
    again = rig.append(b"a", producer=stamp)
    assert not again.done()
    rig.flusher.run()
    assert original.result().base_offset == again.result().base_offset == 0
    assert again.result().duplicate
    assert rig.log.high_watermark == 1


def test_duplicate_of_a_batch_under_way_fails_with_it(rig: Rig) -> None:
    stamp = ProducerStamp(7, 0, 0)
    original = rig.append(b"a" * 1000, producer=stamp)
    again = rig.append(b"a" * 1000, producer=stamp)
    rig.disk.capacity_bytes = rig.disk.used
    rig.flusher.run()
    assert isinstance(original.exception(), StorageFull)
    assert isinstance(again.exception(), StorageFull)
    rig.disk.capacity_bytes += 1 << 20
    retried = rig.append_durably(b"a" * 1000, producer=stamp)
    assert not retried.duplicate and retried.base_offset == 0


def test_gap_in_sequence_is_an_error_and_takes_nothing(rig: Rig) -> None:
    rig.append_durably(b"a", producer=ProducerStamp(7, 0, 0))
    refused = rig.append(b"c", producer=ProducerStamp(7, 0, 2))
    assert isinstance(refused.exception(), OutOfOrderSequence)
    assert "sequence 2, expected 1" in str(refused.exception())
    assert rig.log.log_end_offset == 1
    assert isinstance(
        rig.append(b"x", producer=ProducerStamp(8, 0, 5)).exception(), OutOfOrderSequence
    )


def test_older_epoch_is_fenced_and_newer_begins_at_zero(rig: Rig) -> None:
    rig.append_durably(b"a", producer=ProducerStamp(7, 1, 0))
    assert isinstance(rig.append(b"b", producer=ProducerStamp(7, 0, 1)).exception(), ProducerFenced)
    refused = rig.append(b"b", producer=ProducerStamp(7, 2, 1))
    assert isinstance(refused.exception(), OutOfOrderSequence)
    assert rig.append_durably(b"b", producer=ProducerStamp(7, 2, 0)).base_offset == 1


def test_sequence_begins_again_at_zero_behind_the_largest(rig: Rig) -> None:
    from lakemq.plugins.journal.segment.producers import Appended, Producer, ProducerTable

    largest = 2**31 - 1
    rig.log._producers = ProducerTable({7: Producer(0, 0, (Appended(largest, largest, 0, 0),))})
    assert rig.append_durably(b"a", producer=ProducerStamp(7, 0, 0)).base_offset == 0


@pytest.mark.parametrize("crash", ["kill", "lose_power"])
@pytest.mark.parametrize("checkpoint_interval_bytes", [1, 1 << 40])
def test_producers_survive_a_crash(
    loop: asyncio.AbstractEventLoop, crash: str, checkpoint_interval_bytes: int
) -> None:
    config = TopicConfig(segment_max_bytes=300)
    rig = Rig(loop, config=config, checkpoint_interval_bytes=checkpoint_interval_bytes)
    for sequence in range(8):
        rig.append_durably(b"v%d" % sequence, producer=ProducerStamp(7, 3, sequence))
    assert len(rig.log.folder.manifest.segments) > 2
    getattr(rig, crash)()
    again = rig.append_durably(b"v6", producer=ProducerStamp(7, 3, 6))
    assert again.duplicate and again.base_offset == 6
    assert isinstance(
        rig.append(b"x", producer=ProducerStamp(7, 3, 9)).exception(), OutOfOrderSequence
    )
    assert rig.append_durably(b"v8", producer=ProducerStamp(7, 3, 8)).base_offset == 8


def test_a_batch_that_was_taken_fits_whatever_the_limit_became(
    loop: asyncio.AbstractEventLoop,
) -> None:
    """Producers are refused before: `Broker.append` checks what comes from them."""
    rig = Rig(loop, config=TopicConfig(batch_max_bytes=1024, segment_max_bytes=4096))
    rig.context.unflushed_max_bytes = rig.context.unflushed_total_max_bytes = 2000
    assert rig.append_durably(b"x" * 9000).base_offset == 0
    assert rig.append_durably(b"y" * 9000).base_offset == 1
    rig.forget_tail()
    assert len(rig.fetch(1).data) > 9000


def test_back_pressure_refuses_what_the_disk_cannot_take_yet(rig: Rig) -> None:
    rig.context.unflushed_max_bytes = 250
    first = rig.append(b"a" * 100)
    refused = rig.append(b"b" * 100)
    assert isinstance(refused.exception(), Unavailable) and Unavailable.retriable
    rig.flusher.run()
    assert first.result().base_offset == 0
    assert rig.append_durably(b"b" * 100).base_offset == 1
    assert rig.context.unflushed_bytes == 0


def test_space_reserve_refuses_early(rig: Rig) -> None:
    """Whatever was appended since the space was looked at takes of it."""
    rig.context.room_bytes = 250
    assert rig.append_durably(b"a" * 100).base_offset == 0
    assert isinstance(rig.append(b"b" * 100).exception(), StorageFull)
    assert rig.log.status().state == "online"
    rig.context.room_bytes = 0
    assert rig.log.status().state == "full"


@pytest.mark.parametrize("codec", ["lz4", "zstd", "none"])
def test_topic_compression_is_obeyed(loop: asyncio.AbstractEventLoop, codec: str) -> None:
    rig = Rig(loop, config=TopicConfig(compression=codec))
    values = [b"same " * 50] * 20
    rig.append_durably(*values)
    data = rig.fetch(0).data
    batch = RecordBatch(data)
    assert batch.header.compression is Compression[codec.upper()]
    assert batch.values() == values
    assert rig.lose_power().high_watermark == 20


def test_segments_roll_by_size_and_age(loop: asyncio.AbstractEventLoop) -> None:
    rig = Rig(loop, config=TopicConfig(segment_max_bytes=400, segment_age_max_ms=1000))
    for number in range(6):
        rig.append(b"%d" % number * 40)
    rig.flusher.run()
    bases = [segment.base_offset for segment in rig.log.folder.manifest.segments]
    assert bases == [0, 3]
    rig.now += 1000
    rig.append_durably(b"x")
    assert [s.base_offset for s in rig.log.folder.manifest.segments] == [0, 3, 6]
    assert values_in(rig.fetch(0).data)[:3] == [b"%d" % n * 40 for n in range(3)]
    assert f"{0:020d}-000000.index" in rig.disk.names(FOLDER)


def test_closing_flushes_what_waits(rig: Rig) -> None:
    future = rig.append(b"a")
    rig.loop.call_soon(rig.flusher.run)
    rig.loop.run_until_complete(rig.log.close())
    assert future.result().base_offset == 0
    assert isinstance(rig.append(b"b").exception(), Unavailable)
    assert rig.log.status().state == "offline"


def test_records_become_the_bytes_that_a_stamped_batch_has(rig: Rig) -> None:
    told: list[object] = []
    columns = Columns([b"a", None, b"c"], [b"k", b"k", None], None, [7, 9, 8])
    for _ in range(2):
        rig.log.append_records(columns, rig.now, Acks.LEADER, told.append)
    assert told == []
    rig.flusher.run()
    assert told == [
        AppendResult(Offset(0), Offset(2), Acks.LEADER),
        AppendResult(Offset(3), Offset(5), Acks.LEADER),
    ]
    expected = encode(columns, now_ms=rig.now)
    stamped = [stamp(expected, read_header(expected), base, 0)[1] for base in (0, 3)]
    assert rig.fetch(0).data == b"".join(stamped)


def test_records_are_answered_at_once_from_memory_and_refused_when_full(rig: Rig) -> None:
    told: list[object] = []
    rig.log.append_records(Columns([b"a"]), rig.now, Acks.MEMORY, told.append)
    assert told == [AppendResult(Offset(0), Offset(0), Acks.MEMORY)]
    rig.flusher.run()
    rig.context.room_bytes = 0
    rig.log.append_records(Columns([b"b"]), rig.now, Acks.LEADER, told.append)
    assert isinstance(told[1], StorageFull)
    assert rig.log.log_end_offset == 1


def test_appends_of_a_deleted_topic_fail_once(rig: Rig) -> None:
    told: list[object] = []
    rig.log.append_records(Columns([b"a"]), rig.now, Acks.LEADER, told.append)
    rig.log.discard_appends(Unavailable("the topic is deleted"))
    assert [str(outcome) for outcome in told] == ["the topic is deleted"]


def test_a_callback_that_raises_does_not_stop_the_log(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(outcome: object) -> None:
        raise ValueError("callback")

    told: list[object] = []
    rig.log.append_records(Columns([b"a"]), rig.now, Acks.LEADER, broken)
    rig.log.append_records(Columns([b"b"]), rig.now, Acks.LEADER, told.append)
    rig.flusher.run()
    assert told == [AppendResult(Offset(1), Offset(1), Acks.LEADER)]
    assert "an append's callback failed" in caplog.text
