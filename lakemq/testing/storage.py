"""What every storage engine must do: the suite for the ports `Storage` and `PartitionLog`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from lakemq.broker_core.api.errors import (
    LakeMQError,
    OffsetOutOfRange,
    OutOfOrderSequence,
    Unavailable,
)
from lakemq.broker_core.api.ports import PartitionLog, Storage
from lakemq.broker_core.api.records.batch import (
    NOT_IDEMPOTENT,
    ProducerStamp,
    RecordBatch,
    encode,
    read_header,
    split,
)
from lakemq.broker_core.api.replica_ports import ReplicaLog
from lakemq.broker_core.api.types import (
    Acks,
    AppendResult,
    Columns,
    CommittedBatch,
    Offset,
    Record,
    TopicInfo,
)

MakeStorage = Callable[[], Storage]
"""Gives an engine that has not started, over the same data each time."""

TOPIC = TopicInfo("sensors", "a" * 32, 3)
REBORN = TopicInfo("sensors", "b" * 32, 3)


def batch_of(
    *values: bytes | None,
    keys: list[bytes | None] | None = None,
    times: list[int] | None = None,
    producer: ProducerStamp = NOT_IDEMPOTENT,
) -> bytes:
    """A record batch of these values; `times`: their timestamps, else 1000 ms."""
    return encode(Columns(list(values), keys, None, times), producer=producer, now_ms=1000)


def append(
    log: PartitionLog, data: bytes, acks: Acks = Acks.LEADER
) -> asyncio.Future[AppendResult]:
    """Append a batch whose header is as the caller of a log would give it."""
    return log.append(data, read_header(data), acks)


def records(data: bytes) -> list[Record]:
    """The records of batches that lie back to back."""
    found: list[Record] = []
    for position, header in split(data):
        found += RecordBatch(data[position : position + header.total_bytes]).records()
    return found


async def open_alone(storage: Storage, topic: TopicInfo, partition: int) -> PartitionLog:
    """The partition's log, as the node opens it that holds its only replica."""
    log = await storage.open_partition(topic, partition)
    if isinstance(log, ReplicaLog):
        log.lead(max(1, log.last_epoch()), alone=True)
    return log


async def read_all(log: PartitionLog, bytes_max: int = 1 << 20) -> list[Record]:
    """All records that readers see, fetch by fetch."""
    found: list[Record] = []
    offset = log.log_start_offset
    while offset < log.high_watermark:
        result = await log.fetch(offset, bytes_max=bytes_max)
        assert result.data and result.next_offset > offset
        found += [record for record in records(result.data) if record.offset >= offset]
        offset = result.next_offset
    return found


class StorageContract:
    """Give the fixture `make_storage`: a `MakeStorage` over a fresh folder or store.

        class TestMyStorage(StorageContract):
            @pytest.fixture
            def make_storage(self, tmp_path):
                return lambda: MyStorage(tmp_path)

    The suite starts and stops what it makes. It kills nothing: that acknowledged records survive
    kill -9 and a full disk is for the engine's own tests.
    """

    pytestmark = pytest.mark.asyncio

    async def test_what_was_acknowledged_is_read_back_in_order(
        self, make_storage: MakeStorage
    ) -> None:
        """Appends made at once get successive offsets, and fetches of any size return them all."""
        storage = make_storage()
        await storage.start()
        log = await open_alone(storage, TOPIC, 0)
        answers = await asyncio.gather(
            *(append(log, batch_of(b"%d" % n, None, keys=[b"k", None])) for n in range(50))
        )
        assert [answer.base_offset for answer in answers] == list(range(0, 100, 2))
        assert {answer.acks for answer in answers} == {Acks.LEADER}
        for bytes_max in (1, 500, 1 << 20):
            found = await read_all(log, bytes_max)
            assert [record.offset for record in found] == list(range(100))
            assert [record.value for record in found[::2]] == [b"%d" % n for n in range(50)]
            assert found[1].key is None and found[1].value is None and found[0].key == b"k"
        await storage.stop()

    async def test_data_outlives_stop_and_start(self, make_storage: MakeStorage) -> None:
        """Also an append that had no answer when `stop` was called."""
        storage = make_storage()
        await storage.start()
        log = await open_alone(storage, TOPIC, 2)
        await append(log, batch_of(b"a", b"b"))
        last = append(log, batch_of(b"c"))
        await storage.stop()
        assert (await last).base_offset == 2
        storage = make_storage()
        await storage.start()
        log = await open_alone(storage, TOPIC, 2)
        assert (log.high_watermark, log.log_end_offset) == (3, 3)
        assert [record.value for record in await read_all(log)] == [b"a", b"b", b"c"]
        assert (await append(log, batch_of(b"d"))).base_offset == 3
        await storage.stop()

    async def test_partitions_are_apart(self, make_storage: MakeStorage) -> None:
        """Two partitions share no offsets; a partition that is open is opened once."""
        storage = make_storage()
        await storage.start()
        first, second = [await open_alone(storage, TOPIC, number) for number in (0, 1)]
        assert await open_alone(storage, TOPIC, 0) is first
        await append(first, batch_of(b"a"))
        assert (first.high_watermark, second.high_watermark) == (1, 0)
        await storage.stop()

    async def test_long_poll_ends_with_the_next_record(self, make_storage: MakeStorage) -> None:
        """All polls that wait get it."""
        storage = make_storage()
        await storage.start()
        log = await open_alone(storage, TOPIC, 0)
        polls = [
            asyncio.ensure_future(log.fetch(Offset(0), bytes_max=1000, wait_ms=60_000))
            for _ in range(3)
        ]
        await asyncio.sleep(0)
        assert not any(poll.done() for poll in polls)
        await append(log, batch_of(b"a"))
        for poll in polls:
            assert [record.value for record in records((await poll).data)] == [b"a"]
        await storage.stop()

    async def test_fetch_at_the_end_answers_empty(self, make_storage: MakeStorage) -> None:
        """At the high watermark no data, beyond it and below 0 OffsetOutOfRange."""
        storage = make_storage()
        await storage.start()
        log = await open_alone(storage, TOPIC, 0)
        await append(log, batch_of(b"a"))
        for wait_ms in (0, 5):
            result = await log.fetch(Offset(1), bytes_max=1000, wait_ms=wait_ms)
            assert (result.data, result.next_offset, result.high_watermark) == (b"", 1, 1)
        for outside in (2, -1):
            with pytest.raises(OffsetOutOfRange):
                await log.fetch(Offset(outside), bytes_max=1000)
        await storage.stop()

    async def test_offset_for_timestamp(self, make_storage: MakeStorage) -> None:
        """The first record at or after the time, also where timestamps are not in order; else the
        end."""
        storage = make_storage()
        await storage.start()
        log = await open_alone(storage, TOPIC, 0)
        await append(log, batch_of(b"a", b"b", times=[100, 200]))
        await append(log, batch_of(b"c", b"d", times=[150, 400]))
        found = [await log.offset_for_timestamp(time) for time in (0, 100, 101, 200, 201, 401)]
        assert found == [0, 0, 1, 1, 3, 4]
        await storage.stop()

    async def test_taps_see_what_becomes_readable(self, make_storage: MakeStorage) -> None:
        """Every batch, in order, until the tap is removed."""
        storage = make_storage()
        await storage.start()
        log = await open_alone(storage, TOPIC, 1)
        seen: list[CommittedBatch] = []
        remove = log.tap(seen.extend)
        await asyncio.gather(*(append(log, batch_of(b"%d" % n)) for n in range(10)))
        assert [batch.base_offset for batch in seen] == list(range(10))
        assert {(batch.topic, batch.partition) for batch in seen} == {("sensors", 1)}
        remove()
        await append(log, batch_of(b"x"))
        assert len(seen) == 10
        await storage.stop()

    async def test_records_become_a_batch_and_taps_get_them_before_the_answer(
        self, make_storage: MakeStorage
    ) -> None:
        """`append_records` within `together`: one batch, the default timestamp, the tap called
        first."""
        storage = make_storage()
        await storage.start()
        log = await open_alone(storage, TOPIC, 1)
        seen: list[CommittedBatch | AppendResult | LakeMQError] = []
        log.tap(seen.extend)
        columns = Columns([b"a", None], [b"k", b"k"], [b"", b""])
        answered = asyncio.Event()

        def done(outcome: AppendResult | LakeMQError) -> None:
            seen.append(outcome)
            answered.set()

        with storage.together():
            log.append_records(columns, 5, Acks.LEADER, done)
        await answered.wait()
        batch, result = seen
        assert isinstance(batch, CommittedBatch) and isinstance(result, AppendResult)
        assert (result.base_offset, result.last_offset, result.acks) == (0, 1, Acks.LEADER)
        opened = RecordBatch(batch.data)
        assert opened.values() == [b"a", None] and opened.timestamps_ms() == [5, 5]
        if batch.columns is not None:
            assert batch.columns == columns._replace(timestamps_ms=[5, 5])
        assert [record.value for record in await read_all(log)] == [b"a", None]
        await storage.stop()

    async def test_deleted_records_are_gone_for_good(self, make_storage: MakeStorage) -> None:
        """Also after a restart; the log start never goes back."""
        storage = make_storage()
        await storage.start()
        log = await open_alone(storage, TOPIC, 0)
        for number in range(6):
            await append(log, batch_of(b"%d" % number))
        assert await log.delete_records(Offset(4)) == 4
        assert await log.delete_records(Offset(2)) == 4
        for beyond in (log.fetch(Offset(3), bytes_max=1 << 20), log.delete_records(Offset(7))):
            with pytest.raises(OffsetOutOfRange):
                await beyond
        await storage.stop()
        storage = make_storage()
        await storage.start()
        log = await open_alone(storage, TOPIC, 0)
        assert log.log_start_offset == 4
        assert [record.offset for record in await read_all(log)] == [4, 5]
        await storage.stop()

    async def test_idempotent_append(self, make_storage: MakeStorage) -> None:
        """A repeated sequence number is answered as the first one was, a gap is OutOfOrderSequence
        (KIP-98), also after a restart."""
        storage = make_storage()
        await storage.start()
        log = await open_alone(storage, TOPIC, 0)
        first = batch_of(b"a", b"b", producer=ProducerStamp(5, 0, 0))
        assert (await append(log, first)).base_offset == 0
        await storage.stop()
        storage = make_storage()
        await storage.start()
        log = await open_alone(storage, TOPIC, 0)
        again = await append(log, first)
        assert again.duplicate and (again.base_offset, again.last_offset) == (0, 1)
        with pytest.raises(OutOfOrderSequence):
            await append(log, batch_of(b"c", producer=ProducerStamp(5, 0, 3)))
        assert log.high_watermark == 2
        await storage.stop()

    async def test_deleted_topic_is_gone_and_told_from_its_successor(
        self, make_storage: MakeStorage
    ) -> None:
        """The topic id tells them apart, not the name; polls of the deleted one end with
        Unavailable."""
        storage = make_storage()
        await storage.start()
        old = await open_alone(storage, TOPIC, 0)
        await append(old, batch_of(b"old"))
        new = await open_alone(storage, REBORN, 0)
        await append(new, batch_of(b"new"))
        assert await storage.stored_topic_ids() == {TOPIC.topic_id, REBORN.topic_id}
        poll = asyncio.ensure_future(old.fetch(Offset(1), bytes_max=1000, wait_ms=60_000))
        await asyncio.sleep(0)
        await storage.delete_topic(TOPIC.topic_id)
        with pytest.raises(Unavailable):
            await poll
        assert await storage.stored_topic_ids() == {REBORN.topic_id}
        assert [record.value for record in await read_all(new)] == [b"new"]
        await storage.stop()
        storage = make_storage()
        await storage.start()
        assert await storage.stored_topic_ids() == {REBORN.topic_id}
        log = await open_alone(storage, TOPIC, 0)
        assert log.high_watermark == 0
        await storage.stop()

    async def test_a_deleted_partition_is_gone_and_the_others_stay(
        self, make_storage: MakeStorage
    ) -> None:
        """Of a replica that moved away; opened again, it is empty. What a disk has is not
        disowned."""
        storage = make_storage()
        await storage.start()
        for number in (0, 1):
            await append(await open_alone(storage, TOPIC, number), batch_of(b"%d" % number))
        await storage.delete_partition(TOPIC.topic_id, 0)
        assert await storage.stored_partitions() == {(TOPIC.topic_id, 1)}
        await storage.stop()
        storage = make_storage()
        await storage.start()
        assert not storage.disowned()
        assert await storage.stored_partitions() == {(TOPIC.topic_id, 1)}
        ends = [(await open_alone(storage, TOPIC, number)).log_end_offset for number in (0, 1)]
        assert ends == [0, 1]
        await storage.stop()

    async def test_status_tells_offsets_and_size(self, make_storage: MakeStorage) -> None:
        """Of a partition with one segment."""
        storage = make_storage()
        await storage.start()
        log = await open_alone(storage, TOPIC, 1)
        data = batch_of(b"a", b"b")
        await append(log, data)
        status = log.status()
        assert (status.partition, status.state) == (1, "online")
        assert (status.log_start_offset, status.high_watermark, status.log_end_offset) == (0, 2, 2)
        assert (status.size_bytes, status.segments) == (len(data), 1)
        await storage.stop()
