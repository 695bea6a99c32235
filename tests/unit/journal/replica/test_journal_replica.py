"""Goal: a log that leads with followers, or follows, keeps apart what is appended, durable here and
readable; a cut is on the disk before anything is appended behind it."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from lakemq.broker_core.api.errors import (
    CorruptBatch,
    NotEnoughReplicas,
    NotLeader,
    OffsetOutOfRange,
    Unavailable,
)
from lakemq.broker_core.api.records.batch import ProducerStamp, encode, read_header
from lakemq.broker_core.api.replica_ports import EpochEnd, ReplicaLog
from lakemq.broker_core.api.types import Acks, Columns, CommittedBatch, Offset, TopicConfig
from lakemq.plugins.journal.log.partition_log import JournalLog
from lakemq.plugins.journal.maintenance.housekeeping import retain
from tests.unit.journal.rig import FOLDER, Rig


def batch(
    base: int, *values: bytes, epoch: int = 1, producer: ProducerStamp | None = None
) -> bytes:
    more: dict[str, Any] = {} if producer is None else {"producer": producer}
    columns = Columns(list(values or (b"%d" % base,)))
    return encode(columns, now_ms=5, base_offset=base, leader_epoch=epoch, **more)


@pytest.fixture
def log(rig: Rig) -> JournalLog:
    """Without a role."""
    return rig.reopen()


def copy(rig: Rig, *batches: bytes) -> int:
    """Append a leader's batches, durably."""
    future = rig.log.append_replica(b"".join(batches))
    rig.flusher.run()
    return future.result()


def run(rig: Rig, work: Any) -> Any:
    return rig.loop.run_until_complete(work)


def bounds(log: JournalLog) -> tuple[int, int, int]:
    return log.high_watermark, log.durable_end, log.log_end_offset


def test_it_is_a_replica_log(log: JournalLog) -> None:
    assert isinstance(log, ReplicaLog)


def test_without_a_role_nothing_is_taken(rig: Rig, log: JournalLog) -> None:
    data = batch(0)
    assert isinstance(log.append(data, read_header(data), Acks.LEADER).exception(), NotLeader)
    assert isinstance(log.append_replica(data).exception(), Unavailable)
    log.follow(1)
    assert isinstance(log.append(data, read_header(data), Acks.LEADER).exception(), NotLeader)
    log.lead(1, alone=False)
    assert isinstance(log.append_replica(data).exception(), Unavailable)


def test_an_epoch_that_is_over_is_refused(rig: Rig, log: JournalLog) -> None:
    log.lead(4, alone=True)
    rig.append_durably(b"a")
    log = rig.lose_power()
    assert log.last_epoch() == 4
    for take in (log.follow, lambda epoch: log.lead(epoch, alone=True)):
        with pytest.raises(ValueError, match="epoch 3 .* is over"):
            take(3)


def test_replicated_waits_for_the_high_watermark(rig: Rig, log: JournalLog) -> None:
    log.lead(2, alone=False)
    seen: list[CommittedBatch] = []
    log.tap(seen.extend)
    leader, replicated = rig.append(b"a"), rig.append(b"b", acks=Acks.REPLICATED)
    rig.flusher.run()
    assert leader.result().acks is Acks.LEADER and not replicated.done()
    assert bounds(log) == (0, 2, 2) and not seen
    log.commit_to(Offset(1))
    assert not replicated.done() and [each.base_offset for each in seen] == [0]
    log.commit_to(Offset(9))
    assert replicated.result().acks is Acks.REPLICATED
    assert bounds(log) == (2, 2, 2) and [each.base_offset for each in seen] == [0, 1]


def test_readers_stop_at_the_high_watermark(rig: Rig, log: JournalLog) -> None:
    log.lead(2, alone=False)
    for value in (b"a", b"b", b"c"):
        rig.append_durably(value)
    log.commit_to(Offset(1))
    for forget in (False, True):
        if forget:
            rig.forget_tail()
        assert rig.fetch(0).next_offset == 1
        # A client may know of a higher one from the leader before.
        for offset in (1, 2, 3):
            result = rig.fetch(offset)
            assert (result.data, result.next_offset, result.high_watermark) == (b"", offset, 1)
        with pytest.raises(OffsetOutOfRange):
            rig.fetch(4)
        assert read_header(run(rig, log.read_replica(Offset(1), 1 << 20))).base_offset == 1


def test_acks_are_raised_and_refused_while_too_few_are_in_sync(rig: Rig, log: JournalLog) -> None:
    log.lead(2, alone=False, acks_min=Acks.REPLICATED)
    memory = rig.append(b"a", acks=Acks.MEMORY)
    rig.flusher.run()
    assert not memory.done()
    log.refuse_replicated("1 of 2")
    refused = rig.append(b"b", acks=Acks.MEMORY)
    assert isinstance(refused.exception(), NotEnoughReplicas) and log.log_end_offset == 1
    log.commit_to(Offset(1))
    assert memory.result().acks is Acks.REPLICATED
    log.refuse_replicated("")
    assert not rig.append(b"b").done()


def test_who_waits_is_told_when_another_leads(rig: Rig, log: JournalLog) -> None:
    log.lead(2, alone=False)
    futures = [rig.append(b"a", acks=Acks.REPLICATED)]
    rig.flusher.run()
    futures += [rig.append(b"b"), rig.append(b"c", acks=Acks.REPLICATED)]
    log.follow(3)
    assert all(isinstance(future.exception(), NotLeader) for future in futures)
    rig.flusher.run()
    assert log.durable_end == 3, "what was appended stays until the new leader has it cut"


def test_a_copy_is_the_leaders_bytes(rig: Rig, log: JournalLog) -> None:
    log.follow(5)
    batches = [batch(0, b"a", b"b", epoch=1), batch(2, epoch=1), batch(3, epoch=4)]
    assert copy(rig, *batches) == 4
    assert bounds(log) == (0, 4, 4)
    assert run(rig, log.read_replica(Offset(0), 1 << 20)) == b"".join(batches)
    assert rig.disk.read(rig.segment_path(0)) == b"".join(batches)
    assert [log.last_epoch(Offset(at)) for at in (0, 1, 3, 4)] == [-1, 1, 1, 4]
    ends = [log.epoch_end(epoch) for epoch in (0, 1, 3, 4, 9)]
    assert ends == [EpochEnd(-1, Offset(0))] + [EpochEnd(1, Offset(3))] * 2 + (
        [EpochEnd(4, Offset(4))] * 2
    )


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (batch(0) + batch(0), "begins at offset 0, the log ends at 1"),
        (batch(0, epoch=3) + batch(1, epoch=2), "epoch 2, which is not within 3..5"),
        (batch(0, epoch=6), "epoch 6, which is not within 0..5"),
        (batch(0, epoch=-1), "epoch -1, which is not within 0..5"),
        (batch(0) + batch(1)[:-1], "ends after byte"),
        (batch(0) + batch(1)[:-1] + b"?", "body CRC-32C does not match"),
        (batch(0) + bytes(80), "magic is"),
    ],
)
def test_what_does_not_continue_the_log_is_refused_whole(
    rig: Rig, log: JournalLog, data: bytes, reason: str
) -> None:
    log.follow(5)
    error = log.append_replica(data).exception()
    assert isinstance(error, CorruptBatch) and reason in str(error)
    assert bounds(log) == (0, 0, 0) and log.last_epoch() == -1


def test_a_cut_log_goes_on_with_the_new_leaders_records(rig: Rig, log: JournalLog) -> None:
    log.follow(1)
    copy(rig, *(batch(number) for number in range(6)))
    log.commit_to(Offset(2))
    log.follow(2)
    run(rig, log.truncate(Offset(3)))
    assert bounds(log) == (2, 3, 3) and rig.disk.size(rig.segment_path(0)) == 3 * len(batch(0))
    assert copy(rig, batch(3, b"new", epoch=2)) == 4
    log = rig.lose_power()
    assert (log.log_end_offset, log.last_epoch(), log.epoch_end(1)) == (4, 2, (1, 3))
    assert b"new" in rig.fetch(3).data


def test_a_cut_below_the_high_watermark_is_refused(rig: Rig, log: JournalLog) -> None:
    log.follow(1)
    copy(rig, batch(0), batch(1, b"a", b"b"), batch(3))
    log.commit_to(Offset(1))
    with pytest.raises(ValueError, match="is committed"):
        run(rig, log.truncate(Offset(0)))
    log.lead(2, alone=False)
    with pytest.raises(ValueError, match="does not follow"):
        run(rig, log.truncate(Offset(3)))
    assert bounds(log) == (1, 4, 4)


def test_a_batch_that_a_cut_goes_through_goes_as_a_whole(rig: Rig, log: JournalLog) -> None:
    """The leader's copy of it may be shorter, by what compaction took."""
    log.follow(1)
    copy(rig, batch(0), batch(1, b"a", b"b"), batch(3))
    run(rig, log.truncate(Offset(2)))
    assert bounds(log) == (0, 1, 1)
    copy(rig, batch(1, b"a", b"b"))
    log.commit_to(Offset(2))
    with pytest.raises(ValueError, match="within a batch that is committed"):
        run(rig, log.truncate(Offset(2)))
    assert bounds(rig.lose_power()) == (3, 3, 3)


def test_an_epoch_begins_where_the_batch_before_it_ends(rig: Rig, log: JournalLog) -> None:
    """Also where compaction took its first records: a log that has others there parts there."""
    log.follow(2)
    copy(rig, batch(0), batch(5, epoch=2))
    assert log.epoch_end(1) == EpochEnd(1, Offset(1))
    assert rig.lose_power().epoch_end(1) == EpochEnd(1, Offset(1))


def test_segments_roll_where_the_leaders_did(rig: Rig, log: JournalLog) -> None:
    log.follow(1)
    for base in range(6):
        if base in (2, 5):
            log.roll_at(Offset(base))
        copy(rig, batch(base))
    segments = log.folder.manifest.segments
    assert [each.base_offset for each in segments] == [0, 2, 5]
    assert [log.segment_start(Offset(at)) for at in (0, 1, 2, 4, 5, 6)] == [0, 0, 2, 2, 5, 5]
    # What a follower gets never reaches over the begin of a segment.
    assert len(run(rig, log.read_replica(Offset(0), 1 << 20))) == 2 * len(batch(0))


def test_a_cut_where_a_segment_begins_goes_on_in_the_one_before(rig: Rig, log: JournalLog) -> None:
    log.follow(1)
    copy(rig, batch(0), batch(1))
    log.roll_at(Offset(2))
    copy(rig, batch(2))
    run(rig, log.truncate(Offset(2)))
    copy(rig, batch(2))
    assert [each.base_offset for each in log.folder.manifest.segments] == [0]
    log = rig.lose_power()
    assert log.high_watermark == 3


def test_an_empty_segment_goes_at_the_end_of_the_log(rig: Rig, log: JournalLog) -> None:
    """One that this replica began as leader, and that no other one has."""
    log.lead(1, alone=True)
    rig.append_durably(b"a")
    log._writer.roll(0)
    assert [each.base_offset for each in log.folder.manifest.segments] == [0, 1]
    log.follow(2)
    run(rig, log.truncate(Offset(2)))
    assert len(log.folder.manifest.segments) == 2, "it does not begin there"
    run(rig, log.truncate(Offset(1)))
    copy(rig, batch(1, epoch=2))
    assert [each.base_offset for each in log.folder.manifest.segments] == [0]
    log = rig.lose_power()
    assert (log.log_end_offset, log.last_epoch()) == (2, 2)


def test_an_empty_segment_stays_behind_one_that_was_rewritten(rig: Rig, log: JournalLog) -> None:
    log.lead(1, alone=True)
    rig.append_durably(b"a")
    log._writer.roll(0)
    log.follow(2)
    *sealed, active = log.folder.manifest.segments
    with log.folder.changing:
        rewritten = [replace(each, compacted=True) for each in sealed]
        log.folder.commit(log.folder.manifest.with_segments(*rewritten, active))
    run(rig, log.truncate(Offset(1)))
    copy(rig, batch(1, epoch=2))
    assert [each.base_offset for each in log.folder.manifest.segments] == [0, 1]


def test_a_log_is_restarted_where_the_leaders_starts(rig: Rig, log: JournalLog) -> None:
    log.follow(1)
    producer = ProducerStamp(7, 0, 0)
    copy(rig, batch(0, producer=producer), batch(1))
    run(rig, log.restart_at(Offset(40)))
    assert (*bounds(log), log.log_start_offset) == (40, 40, 40, 40)
    assert log.last_epoch() == -1 and len(log.folder.manifest.segments) == 1
    copy(rig, batch(41, b"x"))
    log = rig.lose_power()
    assert (log.log_start_offset, log.log_end_offset) == (40, 42)
    assert rig.fetch(40).next_offset == 42
    assert not rig.append_durably(b"y", producer=producer).duplicate


def test_a_log_that_begins_within_a_batch_survives_a_power_cut(rig: Rig, log: JournalLog) -> None:
    """Else recovery would take its first batch for the end of the log."""
    log.follow(1)
    run(rig, log.restart_at(Offset(41)))
    with pytest.raises(CorruptBatch):
        run(rig, log.append_replica(batch(40, b"a")))  # it ends where the log starts
    copy(rig, batch(40, b"a", b"b", b"c"))
    with pytest.raises(CorruptBatch):
        run(rig, log.append_replica(batch(42, b"d", b"e")))
    copy(rig, batch(43, b"d"))
    log = rig.lose_power()
    assert (log.log_start_offset, log.log_end_offset) == (41, 44)
    assert rig.fetch(41).next_offset == 44
    assert log.epoch_end(1) == EpochEnd(1, Offset(44)) and log.last_epoch(Offset(41)) == -1


def test_producers_are_those_of_the_cut(rig: Rig, log: JournalLog) -> None:
    """As of each offset they are the same whether the log was cut there or ended there."""
    rng = random.Random(3)
    sequences = {(1, 0): 0, (2, 0): 0, (3, 0): 0}
    batches: list[bytes] = []
    for base in range(40):
        producer, epoch = rng.choice(list(sequences))
        if rng.random() < 0.1:
            del sequences[producer, epoch]
            epoch += 1
            sequences[producer, epoch] = 0
        stamp = ProducerStamp(producer, epoch, sequences[producer, epoch])
        sequences[producer, epoch] += 1
        batches.append(batch(base, b"x" * rng.randrange(60), producer=stamp))
    for cut in range(39, -1, -3):
        whole, short = Rig(rig.loop, interval_bytes=300), Rig(rig.loop)
        for each, count in ((whole, 40), (short, cut)):
            each.log.follow(1)
            for base in range(count):
                if base % 7 == 6:
                    each.log.roll_at(Offset(base))
                copy(each, batches[base])
        run(whole, whole.log.truncate(Offset(cut)))
        assert whole.log._producers == short.log._producers, f"cut at {cut}"
        assert whole.lose_power()._producers == short.log._producers, f"restart at {cut}"


def test_a_poll_waits_behind_the_high_watermark(rig: Rig, log: JournalLog) -> None:
    log.lead(1, alone=False)
    rig.append_durably(b"a")
    rig.append_durably(b"b")

    async def poll() -> int:
        waiting = asyncio.ensure_future(log.fetch(Offset(1), bytes_max=1000, wait_ms=60_000))
        await asyncio.sleep(0)
        log.commit_to(Offset(1))
        await asyncio.sleep(0)
        assert not waiting.done(), "offset 1 is not readable yet"
        log.commit_to(Offset(2))
        return (await waiting).next_offset

    assert run(rig, poll()) == 2


def test_taps_get_what_was_too_much_to_hold(rig: Rig, log: JournalLog) -> None:
    """Read again, in order; also by a tap that came when part of it was durable already."""
    rig.unflushed_max_bytes = 300
    log = rig.reopen()
    log.lead(1, alone=False)
    seen: list[int] = []
    late: list[int] = []
    log.tap(lambda batches: seen.extend(each.base_offset for each in batches))
    for number in range(20):
        rig.append_durably(b"%d" % number * 30)
        if number == 10:
            log.commit_to(Offset(5))
            log.tap(lambda batches: late.extend(each.base_offset for each in batches))
    log.commit_to(Offset(18))
    run(rig, asyncio.sleep(0))
    while len(seen) < 18:
        run(rig, asyncio.sleep(0))
    assert seen == list(range(18)) and late == list(range(5, 18))
    log.commit_to(Offset(20))
    while len(seen) < 20:
        run(rig, asyncio.sleep(0))
    rig.append_durably(b"next")
    log.commit_to(Offset(21))
    run(rig, asyncio.sleep(0))
    assert seen == list(range(21)) and late == list(range(5, 21))


def test_offline_tools_know_the_gaps_of_a_copy(rig: Rig, log: JournalLog) -> None:
    log.follow(1)
    copy(rig, batch(0), batch(5))
    log.roll_at(Offset(9))
    copy(rig, batch(9), batch(10))
    first, second = log.folder.manifest.segments
    assert (first.may_have_gaps, second.may_have_gaps) == (True, False)
    reread = rig.lose_power()
    assert bounds(reread) == (11, 11, 11)
    assert [each.gaps for each in reread.folder.manifest.segments] == [True, False]


def test_a_closed_log_leaves_the_answer_to_the_next_leader(rig: Rig, log: JournalLog) -> None:
    log.lead(1, alone=False)
    waiting = rig.append(b"a", acks=Acks.REPLICATED)
    rig.flusher.run()
    run(rig, log.close())
    assert isinstance(waiting.exception(), NotLeader)


def test_what_is_copied_is_not_compressed_again(rig: Rig) -> None:
    """Not even by a follower that leads before it has written it."""
    rig.config = replace(rig.config, compression="zstd")
    log = rig.reopen()
    log.follow(1)
    copied = batch(0, b"x" * 500)
    log.append_replica(copied)
    log.lead(2, alone=True)
    rig.append_durably(b"y" * 500)
    data = run(rig, log.read_replica(Offset(0), 1 << 20))
    assert data.startswith(copied) and len(data) < 2 * len(copied)


def test_only_the_leader_retains_by_policy(rig: Rig, log: JournalLog) -> None:
    log.follow(1)
    for base in range(4):
        log.roll_at(Offset(base))
        copy(rig, batch(base))
    log.commit_to(Offset(4))
    assert not log.leads and log.retention_end() == 3
    config = replace(rig.config, retention_bytes=0, retention_ms=None)
    end = log.retention_end()
    assert retain(log.folder, config, rig.now, end, by_policy=log.leads) == 0
    run(rig, log.delete_records(Offset(1)))
    assert [each.base_offset for each in log.folder.manifest.segments] == [1, 2, 3]
    log.lead(2, alone=True)
    assert log.leads
    assert retain(log.folder, config, rig.now, end, by_policy=log.leads) == 2


def test_a_duplicate_waits_for_its_original_alone(rig: Rig, log: JournalLog) -> None:
    """Not for what was appended behind that."""
    log.lead(1, alone=False)
    producer = ProducerStamp(7, 0, 0)
    first = rig.append(b"a", acks=Acks.REPLICATED, producer=producer)
    rig.append_durably(b"b")
    behind = rig.append(b"c", acks=Acks.REPLICATED)
    rig.flusher.run()
    again = rig.append(b"a", acks=Acks.REPLICATED, producer=producer)
    durable = rig.append(b"a", producer=producer)
    assert durable.result().duplicate and durable.result().acks is Acks.LEADER
    log.commit_to(Offset(1))
    assert first.done() and again.result().duplicate and not behind.done()
    assert again.result().base_offset == 0 and again.result().acks is Acks.REPLICATED


def sealed_files(rig: Rig) -> dict[str, bytes]:
    segments = rig.log.folder.manifest.segments[:-1]
    return {each.log_name: rig.disk.read(FOLDER / each.log_name) for each in segments}


def test_sealed_segments_are_equal_on_all_replicas(loop: asyncio.AbstractEventLoop) -> None:
    """Also when the leadership changes in the middle of a segment, and the one that led has more
    than the next leader."""
    small = TopicConfig(segment_max_bytes=700, retention_ms=None)
    leader, follower = Rig(loop, config=small), Rig(loop, config=small)
    # A follower's own limits say nothing.
    follower.log.configure(replace(small, segment_max_bytes=150, segment_age_max_ms=1))
    rng = random.Random(8)
    for epoch in range(1, 6):
        leader.log.lead(epoch, alone=False)
        follower.log.follow(epoch)
        for _ in range(rng.randrange(8, 20)):
            leader.append_durably(b"x" * rng.randrange(200))
            if rng.random() < 0.7 and follower.log.log_end_offset < leader.log.durable_end:
                offset = follower.log.log_end_offset
                data = run(leader, leader.log.read_replica(offset, rng.choice([1, 600])))
                follower.log.roll_at(leader.log.segment_start(offset))
                copy(follower, data)
            follower.now += 10
            follower.log.tick(follower.now, 0)
        end = follower.log.log_end_offset
        leader.log.follow(epoch + 1)
        run(leader, leader.log.truncate(end))
        follower.log.configure(small)
        leader.log.configure(replace(small, segment_max_bytes=150))
        leader, follower = follower, leader
    ours, theirs = sealed_files(leader), sealed_files(follower)
    assert len(ours) > 5 and ours == theirs
