"""What a storage engine must do to be replicated: the suite for the port `ReplicaLog`."""

from __future__ import annotations

import asyncio

import pytest

from lakemq.broker_core.api.errors import (
    CorruptBatch,
    LakeMQError,
    NotEnoughReplicas,
    NotLeader,
    OffsetOutOfRange,
)
from lakemq.broker_core.api.ports import Storage
from lakemq.broker_core.api.records.batch import ProducerStamp, encode, split
from lakemq.broker_core.api.replica_ports import EpochEnd, ReplicaLog
from lakemq.broker_core.api.types import Acks, Columns, CommittedBatch, Offset
from lakemq.testing.storage import TOPIC, MakeStorage, append, batch_of, read_all

LEADER, FOLLOWER = 0, 1
"""Partitions that stand for two replicas of one."""


async def open_replica(storage: Storage, partition: int) -> ReplicaLog:
    """A log without a role."""
    log = await storage.open_partition(TOPIC, partition)
    assert isinstance(log, ReplicaLog)
    return log


def sent(base: int, *values: bytes, epoch: int, producer: ProducerStamp | None = None) -> bytes:
    """A batch as a leader of `epoch` sends it."""
    columns = Columns(list(values))
    if producer is None:
        return encode(columns, now_ms=1000, base_offset=base, leader_epoch=epoch)
    return encode(columns, now_ms=1000, base_offset=base, leader_epoch=epoch, producer=producer)


async def copy(leader: ReplicaLog, follower: ReplicaLog) -> None:
    """Everything durable that the follower lacks, segment by segment."""
    while follower.log_end_offset < leader.durable_end:
        offset = follower.log_end_offset
        data = await leader.read_replica(offset, 1 << 20)
        follower.roll_at(leader.segment_start(offset))
        assert await follower.append_replica(data) == follower.durable_end


async def content(log: ReplicaLog) -> bytes:
    """All batches from the log's start to its durable end."""
    parts, offset = [], log.log_start_offset
    while offset < log.durable_end:
        parts.append(await log.read_replica(offset, 1 << 20))
        offset = Offset(offset + _records(parts[-1]))
    return b"".join(parts)


def _records(data: bytes) -> int:
    return sum(header.record_count for _, header in split(data))


def bounds(log: ReplicaLog) -> tuple[int, int, int]:
    """(high watermark, durable end, log end)."""
    return log.high_watermark, log.durable_end, log.log_end_offset


class ReplicaContract:
    """Give the fixture `make_storage`, as for `StorageContract`, of an engine whose logs are
    `ReplicaLog`s.

    The suite starts and stops what it makes. It kills nothing: that a cut is durable at any crash
    is for the engine's own tests.
    """

    pytestmark = pytest.mark.asyncio

    async def test_without_a_role_nothing_is_taken(self, make_storage: MakeStorage) -> None:
        """NotLeader for appends; a leader takes no replica batches, a follower no appends."""
        storage = make_storage()
        await storage.start()
        log = await open_replica(storage, LEADER)
        with pytest.raises(NotLeader):
            await append(log, batch_of(b"a"))
        with pytest.raises(LakeMQError):
            await log.append_replica(sent(0, b"a", epoch=1))
        log.follow(1)
        with pytest.raises(NotLeader):
            await append(log, batch_of(b"a"))
        log.lead(1, alone=False)
        with pytest.raises(LakeMQError):
            await log.append_replica(sent(0, b"a", epoch=1))
        assert bounds(log) == (0, 0, 0)
        await storage.stop()

    async def test_a_copy_is_equal_byte_by_byte(self, make_storage: MakeStorage) -> None:
        """Of several epochs, which both logs tell from their batches alone."""
        storage = make_storage()
        await storage.start()
        leader = await open_replica(storage, LEADER)
        for epoch in (2, 5):
            leader.lead(epoch, alone=False)
            await asyncio.gather(*(append(leader, batch_of(b"%d" % n)) for n in range(3)))
        follower = await open_replica(storage, FOLLOWER)
        follower.follow(9)
        await copy(leader, follower)
        assert bounds(follower) == (0, 6, 6)
        assert await content(follower) == await content(leader)
        for log in (leader, follower):
            assert [log.last_epoch(Offset(at)) for at in (0, 1, 3, 4)] == [-1, 2, 2, 5]
            assert log.last_epoch() == 5
            ends = [log.epoch_end(epoch) for epoch in (1, 2, 4, 5, 9)]
            two, five = EpochEnd(2, Offset(3)), EpochEnd(5, Offset(6))
            assert ends[0].epoch == -1 and ends[1:] == [two, two, five, five]
        await storage.stop()

    async def test_readable_is_what_is_committed(self, make_storage: MakeStorage) -> None:
        """Fetches, taps and acks `replicated` wait for the high watermark; offsets between it and
        the log's end are answered empty; it never passes the durable end, nor goes back."""
        storage = make_storage()
        await storage.start()
        log = await open_replica(storage, LEADER)
        log.lead(1, alone=False)
        seen: list[CommittedBatch] = []
        log.tap(seen.extend)
        replicated = append(log, batch_of(b"a"), Acks.REPLICATED)
        assert (await append(log, batch_of(b"b"))).acks is Acks.LEADER
        assert bounds(log) == (0, 2, 2) and not replicated.done() and not seen
        for offset in (0, 1, 2):
            result = await log.fetch(Offset(offset), bytes_max=1000)
            assert (result.data, result.next_offset) == (b"", offset)
        with pytest.raises(OffsetOutOfRange):
            await log.fetch(Offset(3), bytes_max=1000)
        log.commit_to(Offset(1))
        assert (await replicated).acks is Acks.REPLICATED
        assert [record.value for record in await read_all(log)] == [b"a"]
        log.commit_to(Offset(9))
        log.commit_to(Offset(0))
        assert bounds(log) == (2, 2, 2) and [each.base_offset for each in seen] == [0, 1]
        await storage.stop()

    async def test_alone_the_disk_commits(self, make_storage: MakeStorage) -> None:
        """At once what is durable already, then with each flush."""
        storage = make_storage()
        await storage.start()
        log = await open_replica(storage, LEADER)
        log.lead(1, alone=False)
        await append(log, batch_of(b"a"))
        log.lead(1, alone=True)
        assert log.high_watermark == 1
        await append(log, batch_of(b"b"), Acks.REPLICATED)
        assert bounds(log) == (2, 2, 2)
        await storage.stop()

    async def test_acks_are_raised_or_refused(self, make_storage: MakeStorage) -> None:
        """By `acks_min`; by `refuse_replicated`, before anything is stored."""
        storage = make_storage()
        await storage.start()
        log = await open_replica(storage, LEADER)
        log.lead(1, alone=False, acks_min=Acks.REPLICATED)
        raised = append(log, batch_of(b"a"), Acks.MEMORY)
        await _until_durable(log, 1)
        assert not raised.done()
        log.refuse_replicated("1 of 2 are in sync")
        with pytest.raises(NotEnoughReplicas, match="1 of 2"):
            await append(log, batch_of(b"b"), Acks.MEMORY)
        log.commit_to(Offset(1))
        assert (await raised).acks is Acks.REPLICATED
        log.refuse_replicated("")
        append(log, batch_of(b"b")).add_done_callback(lambda done: done.exception())
        assert log.log_end_offset == 2
        await storage.stop()

    async def test_who_waits_is_told_of_another_leader(self, make_storage: MakeStorage) -> None:
        """With NotLeader; an epoch that is over is no role."""
        storage = make_storage()
        await storage.start()
        log = await open_replica(storage, LEADER)
        log.lead(4, alone=False)
        waiting = append(log, batch_of(b"a"), Acks.REPLICATED)
        await _until_durable(log, 1)
        log.follow(5)
        with pytest.raises(NotLeader):
            await waiting
        for take in (log.follow, lambda epoch: log.lead(epoch, alone=True)):
            with pytest.raises(ValueError):
                take(3)
        await storage.stop()

    async def test_acks_end_with_the_right_to_lead(self, make_storage: MakeStorage) -> None:
        """Lost between an append and the end of its flush: NotLeader, and the record is stored."""
        storage = make_storage()
        await storage.start()
        log = await open_replica(storage, LEADER)
        log.lead(4, alone=False)
        holds = [True]
        log.answer_while(lambda: holds[0])
        await append(log, batch_of(b"a"), Acks.LEADER)
        late = append(log, batch_of(b"b"), Acks.LEADER)
        holds[0] = False
        with pytest.raises(NotLeader):
            await late
        await _until_durable(log, 2)
        log.answer_while(None)
        await append(log, batch_of(b"c"), Acks.LEADER)
        await storage.stop()

    async def test_bad_batches_are_refused_whole(self, make_storage: MakeStorage) -> None:
        """Damaged, cut short, out of order, of an epoch that falls or is not the leader's yet."""
        storage = make_storage()
        await storage.start()
        log = await open_replica(storage, FOLLOWER)
        log.follow(3)
        good = sent(0, b"a", epoch=2)
        assert await log.append_replica(good) == 1
        after = sent(1, b"b", epoch=2)
        for bad in (
            after + sent(2, b"c", epoch=2)[:-1], after[:-1] + b"?", good, after + after,
            sent(1, b"b", epoch=1), sent(1, b"b", epoch=4), after + b"no batch at all" * 9,
        ):  # fmt: skip
            with pytest.raises(CorruptBatch):
                await log.append_replica(bad)
        assert bounds(log) == (0, 1, 1) and await content(log) == good
        await storage.stop()

    async def test_what_is_cut_stays_cut(self, make_storage: MakeStorage) -> None:
        """Also after a restart; other records take its place. What is committed is not cut."""
        storage = make_storage()
        await storage.start()
        log = await open_replica(storage, FOLLOWER)
        log.follow(1)
        for number in range(5):
            await log.append_replica(sent(number, b"old", epoch=1))
        log.commit_to(Offset(2))
        log.follow(2)
        with pytest.raises(ValueError):
            await log.truncate(Offset(1))
        await log.truncate(Offset(9))
        assert log.log_end_offset == 5
        await log.truncate(Offset(3))
        assert bounds(log) == (2, 3, 3) and log.last_epoch() == 1
        await log.append_replica(sent(3, b"new", epoch=2))
        kept = await content(log)
        await storage.stop()
        storage = make_storage()
        await storage.start()
        log = await open_replica(storage, FOLLOWER)
        assert (log.durable_end, log.log_end_offset, log.last_epoch()) == (4, 4, 2)
        assert log.epoch_end(1) == EpochEnd(1, Offset(3)) and await content(log) == kept
        assert log.high_watermark <= 4
        await storage.stop()

    async def test_producers_of_what_is_cut_are_forgotten(self, make_storage: MakeStorage) -> None:
        """Their batches are taken again, those below the cut are still duplicates (KIP-98)."""
        storage = make_storage()
        await storage.start()
        log = await open_replica(storage, FOLLOWER)
        log.follow(1)
        stamps = [ProducerStamp(7, 0, sequence) for sequence in range(8)]
        for base, stamp in enumerate(stamps):
            await log.append_replica(sent(base, b"x", epoch=1, producer=stamp))
        await log.truncate(Offset(2))
        log.lead(2, alone=True)
        known = await append(log, batch_of(b"x", producer=stamps[1]))
        assert known.duplicate and known.base_offset == 1
        taken = await append(log, batch_of(b"x", producer=stamps[2]))
        assert not taken.duplicate and taken.base_offset == 2
        await storage.stop()

    async def test_a_log_restarts_elsewhere(self, make_storage: MakeStorage) -> None:
        """Where the leader's starts, behind this one's end or below its start; durably."""
        storage = make_storage()
        await storage.start()
        log = await open_replica(storage, FOLLOWER)
        log.follow(1)
        await log.append_replica(sent(0, b"a", epoch=1))
        for offset in (40, 20):
            await log.restart_at(Offset(offset))
            assert (log.log_start_offset, *bounds(log)) == (offset, offset, offset, offset)
            assert log.last_epoch() == -1
            await log.append_replica(sent(offset, b"b", epoch=1))
        await storage.stop()
        storage = make_storage()
        await storage.start()
        log = await open_replica(storage, FOLLOWER)
        assert (log.log_start_offset, log.log_end_offset) == (20, 21)
        await storage.stop()

    async def test_a_copy_may_begin_within_a_batch(self, make_storage: MakeStorage) -> None:
        """Records are deleted up to any offset, a log may start within a batch; who begins there
        takes that batch as a whole, as it lies."""
        storage = make_storage()
        await storage.start()
        leader = await open_replica(storage, LEADER)
        leader.lead(1, alone=True)
        await append(leader, batch_of(b"a", b"b", b"c"))
        await append(leader, batch_of(b"d"))
        await leader.delete_records(Offset(2))
        follower = await open_replica(storage, FOLLOWER)
        follower.follow(1)
        await follower.restart_at(leader.log_start_offset)
        await copy(leader, follower)
        assert await content(follower) == await content(leader)
        await storage.stop()
        storage = make_storage()
        await storage.start()
        follower = await open_replica(storage, FOLLOWER)
        assert (follower.log_start_offset, follower.log_end_offset) == (2, 4)
        follower.lead(1, alone=True)
        assert [record.value for record in await read_all(follower)] == [b"c", b"d"]
        await storage.stop()

    async def test_segments_begin_where_the_leaders_did(self, make_storage: MakeStorage) -> None:
        """Told by `roll_at`, and by nothing else; a read does not reach over their begin."""
        storage = make_storage()
        await storage.start()
        log = await open_replica(storage, FOLLOWER)
        log.follow(1)
        for base in range(6):
            if base in (2, 5):
                log.roll_at(Offset(base))
            await log.append_replica(sent(base, b"a", epoch=1))
        starts = [log.segment_start(Offset(offset)) for offset in range(6)]
        assert starts == [0, 0, 2, 2, 2, 5]
        assert _records(await log.read_replica(Offset(0), 1 << 20)) == 2
        assert await log.read_replica(Offset(6), 1 << 20) == b""
        with pytest.raises(OffsetOutOfRange):
            await log.read_replica(Offset(7), 1 << 20)
        await storage.stop()

    async def test_each_flush_is_told(self, make_storage: MakeStorage) -> None:
        """To the one callback, behind the new durable end."""
        storage = make_storage()
        await storage.start()
        log = await open_replica(storage, LEADER)
        log.lead(1, alone=False)
        ends: list[int] = []
        log.when_durable(lambda: ends.append(log.durable_end))
        await append(log, batch_of(b"a"))
        await append(log, batch_of(b"b"))
        await asyncio.sleep(0)
        assert ends == [1, 2]
        log.when_durable(None)
        await append(log, batch_of(b"c"))
        assert ends == [1, 2]
        await storage.stop()


async def _until_durable(log: ReplicaLog, offset: int) -> None:
    """Wait for the flush that makes `offset` the durable end."""
    told = asyncio.Event()
    log.when_durable(told.set)
    async with asyncio.timeout(30):
        while log.durable_end < offset:
            told.clear()
            await told.wait()
    log.when_durable(None)
