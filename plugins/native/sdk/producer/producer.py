"""The asyncio producer: `ProducerBatches` decides, this drives the gRPC stream."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from lakemq.broker_core.api.errors import (
    InvalidRequest,
    LakeMQError,
    NotAuthenticated,
    NotAuthorized,
    NotLeader,
    OutcomeUnknown,
    OutOfOrderSequence,
    StorageFull,
    TlsFailed,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from lakemq.broker_core.api.types import Acks, Columns, Compression, Headers
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.sdk.arrow import arrow_batches, from_arrow
from lakemq.plugins.native.sdk.call_errors import CLOSED, error_of
from lakemq.plugins.native.sdk.client.cluster_view import may_be_behind
from lakemq.plugins.native.sdk.connection import Connection
from lakemq.plugins.native.sdk.consumer.counters import ProducerCounters
from lakemq.plugins.native.sdk.net import calls as wire
from lakemq.plugins.native.sdk.net.sequencing import SequenceNumbers, backoff_s
from lakemq.plugins.native.sdk.producer.accumulator import (
    BATCH_MAX_BYTES,
    Block,
    OutgoingBatch,
    ProducerBatches,
    Ticket,
    cut,
)
from lakemq.plugins.native.sdk.producer.checking import check_record
from lakemq.plugins.native.sdk.producer.partitioning import StickyPartitioner
from lakemq.plugins.native.sdk.producer.produce_stream import Lane
from lakemq.plugins.native.sdk.types import NewRecord, RecordMetadata

if TYPE_CHECKING:
    import pyarrow as pa


_DEFINITE = (
    InvalidRequest,
    NotAuthenticated,
    NotAuthorized,
    StorageFull,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
"""In-place answers after which the batch is surely not stored."""


_log = logging.getLogger("lakemq.sdk")
_BEHIND_ATTEMPTS: Final = 8
"""Some 5 s: as long may a node take to hear of a topic that another has made."""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Producer:
    """Sends records exactly once per partition, in order. Made by `Client.producer`."""

    def __init__(
        self,
        connection: Connection,
        producer_id: int,
        *,
        acks: Acks,
        compression: Compression,
        linger_ms: int,
        batch_max_bytes: int,
        buffer_max_bytes: int,
        delivery_timeout_ms: int,
    ) -> None:
        self._connection = connection
        self._acks = acks
        self._linger_s = linger_ms / 1000
        self._batch_max_bytes = batch_max_bytes
        self._buffer_max_bytes = buffer_max_bytes
        self._delivery_timeout_ms = delivery_timeout_ms
        self._batches = ProducerBatches(
            SequenceNumbers(producer_id), batch_max_bytes=batch_max_bytes, compression=compression
        )
        self._partitioner = StickyPartitioner()
        self._partition_counts: dict[str, int] = {}
        self._topic_ids: dict[str, str] = {}
        self.counters = ProducerCounters()
        self._lanes: dict[str, Lane] = {}
        self._room = asyncio.Event()
        self._room.set()
        self._flush_scheduled = False
        self.failed: LakeMQError | None = None
        """Why this producer takes no more records; None: it takes them."""
        self.last_failure: LakeMQError | None = None
        """What the newest stream failed with, until another gets an answer."""
        self._loop = asyncio.get_running_loop()
        self._deadline_ms = 0
        """Of the records that are taken now; made anew with every flush."""
        connection.routes.start()
        self._view_version = 0
        self._lane("")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """Produce one record; returns when it is as durable as `acks` says."""
        return await (
            await self.enqueue(
                topic, NewRecord(value, key, headers, timestamp_ms), partition=partition
            )
        )

    async def enqueue(
        self, topic: str, record: NewRecord, *, partition: int | None = None
    ) -> asyncio.Future[RecordMetadata]:
        """Take one record; the future is its ack. Waits while the buffer is full. Raises
        InvalidRequest, naming what no record can be made of."""
        check_record(record)
        if not self._room.is_set():
            await self._room.wait()
        if self.failed is not None:
            raise self.failed
        count = self._partition_counts.get(topic)
        if count is None:
            count = await self._partitions_of(topic)
        if partition is None:
            partition = self._partitioner.of(record.key, count)
        elif not 0 <= partition < count:
            await self._check_partition(topic, partition)
        if not self._flush_scheduled:
            self._schedule_flush()
        future: asyncio.Future[RecordMetadata] = self._loop.create_future()
        batches = self._batches
        batches.add(topic, partition, Ticket(record, self._deadline_ms, future))
        if batches.buffered_bytes >= self._buffer_max_bytes:
            self._room.clear()
        return future

    async def _partitions_of(self, topic: str) -> int:
        found = await self._connection.describe_topic(topic)
        self._topic_ids.setdefault(topic, found.topic_id)
        self._batches.bytes_max[topic] = int(found.config.get("batch_max_bytes", BATCH_MAX_BYTES))
        self._partition_counts[topic] = count = len(found.partitions)
        return count

    async def _created_again(self, batch: OutgoingBatch) -> bool:
        """Whether a batch was refused because its topic is another one than it was, of the same
        name; then it gets numbers that the new one takes."""
        if not self._batches.is_outdated(batch):
            try:
                found = await self._connection.describe_topic(batch.topic)
            except LakeMQError:
                return False
            if found.topic_id == self._topic_ids.get(batch.topic):
                return False
            self._topic_ids[batch.topic] = found.topic_id
            self._partition_counts[batch.topic] = len(found.partitions)
            self._batches.sequences.restart(batch.topic)
        self._batches.renumber(batch)
        return True

    def _forgotten(self, batch: OutgoingBatch) -> bool:
        """Whether a batch may be sent as a new producer's: one that was surely never taken was
        refused because the broker knows us no more, as after a long silence (KIP-360)."""
        if batch.unsure:
            return False
        _log.warning(
            "%s partition %d does not know this producer any more; its numbers begin anew",
            batch.topic, batch.partition,
        )  # fmt: skip
        batch.unsure = True  # should even new numbers be refused, it is something else
        self._batches.sequences.restart(batch.topic)
        self._batches.renumber(batch)
        return True

    async def _check_partition(self, topic: str, partition: int) -> None:
        """A partition we do not know of may have been added since."""
        count = await self._partitions_of(topic)
        if not 0 <= partition < count:
            raise UnknownPartition(f"partition {partition}: topic {topic} has {count}")

    async def send_batch(
        self,
        topic: str,
        records: Columns | Sequence[NewRecord],
        *,
        partition: int | None = None,
    ) -> list[RecordMetadata]:
        """Produce many records, whole batches at once; returns when all are as durable as `acks`
        says: one entry a stored batch, the place of its first record.

        They keep their order within a partition, also among single records. Records without keys
        all go to one partition. Raises what the first batch that failed was refused with.
        """
        columns = wire.columns_given(records, _now_ms())
        if not columns.values:
            return []
        count = self._partition_counts.get(topic) or await self._partitions_of(topic)
        if partition is not None and not 0 <= partition < count:
            await self._check_partition(topic, partition)
        homes = (
            self._partitioner.split(columns, count) if partition is None else {partition: columns}
        )
        futures: list[asyncio.Future[RecordMetadata]] = []
        for home, share in homes.items():
            for part in cut(share, self._batch_max_bytes):
                futures.append(await self._enqueue_block(topic, home, part))
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return [each for each in outcomes if not isinstance(each, BaseException)]

    async def _enqueue_block(
        self, topic: str, partition: int, columns: Columns
    ) -> asyncio.Future[RecordMetadata]:
        await self._room.wait()
        if self.failed is not None:
            raise self.failed
        self._schedule_flush()
        future: asyncio.Future[RecordMetadata] = self._loop.create_future()
        self._batches.add(topic, partition, Block(columns, self._deadline_ms, future))
        if self._batches.buffered_bytes >= self._buffer_max_bytes:
            self._room.clear()
        return future

    async def send_arrow(
        self, topic: str, table: pa.Table | pa.RecordBatch, *, partition: int | None = None
    ) -> list[RecordMetadata]:
        """`send_batch` of an Arrow table: column `value`, and `key`, `headers`, `timestamp` if they
        are there (`from_arrow`). Raises InvalidRequest, naming the column that does not fit."""
        batches = arrow_batches(table)
        placed: list[RecordMetadata] = []
        for batch in batches:
            placed += await self.send_batch(topic, from_arrow(batch), partition=partition)
        return placed

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._deadline_ms = _now_ms() + self._delivery_timeout_ms
            loop = self._loop
            if self._linger_s:
                loop.call_later(self._linger_s, self._flush)
            else:
                loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        self._look_at_partitions()
        for batch in self._batches.ready(_now_ms()):
            self._dispatch(batch)
        if self._batches.unfit:
            self._partition_counts.clear()  # a topic may take larger batches by now
            self.counters.records_failed += len(self._batches.unfit)
            self._settle(self._batches.take_unfit())
        self._partitioner.next_batch()

    def _look_at_partitions(self) -> None:
        """Topics that have got more partitions take records in all of them."""
        view = self._connection.routes.view
        if view.version != self._view_version:
            self._view_version = view.version
            for topic in self._partition_counts:
                count = view.partitions(topic)
                if count:
                    self._partition_counts[topic] = count

    async def flush(self) -> None:
        """Wait until every record taken so far has its outcome; outcomes stay in the futures."""
        last = [each.future for each in self._batches.last()]
        if last:
            await asyncio.wait(last)

    async def close(self) -> None:
        """Flush, then stop."""
        await self.flush()
        await self._end_lanes()
        self.failed = InvalidRequest("this producer is closed")

    async def abandon(self) -> None:
        """Its client is closed: what has no outcome fails."""
        if self.failed is None:
            self._give_up(InvalidRequest(CLOSED))
        await self._end_lanes()

    async def _end_lanes(self) -> None:
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- the streams, one a node

    def _lane(self, address: str) -> Lane:
        lane = self._lanes.get(address)
        if lane is None:
            lane = self._lanes[address] = Lane(address)
            lane.task = asyncio.create_task(self._drive(lane))
        return lane

    def _dispatch(self, batch: OutgoingBatch) -> None:
        """Send a batch to who leads its partition, as far as we know."""
        route = self._connection.routes.route(batch.topic, batch.partition)
        batch.address, batch.leader_epoch = route
        self._lane(route.address).outgoing.put_nowait(batch)

    async def _drive(self, lane: Lane) -> None:
        """Keep a stream open; on a broken one, send again what has no answer, in order."""
        pauses = backoff_s()
        while True:
            call = None
            try:
                call = self._connection.routes.stub(lane.address).Produce(self._requests(lane))
                async for answer in call:
                    pauses = backoff_s()
                    self.last_failure = None
                    await self._answered(answer)
                failure: LakeMQError = Unavailable(f"{self._connection.bootstrap} ended the stream")
            except LakeMQError as error:
                failure = error
            finally:
                if call is not None:
                    call.cancel()
            self.last_failure = failure
            if not failure.retriable or self._expired():
                self._give_up(failure)
                return
            await asyncio.sleep(next(pauses))
            self.counters.reconnects += 1
            self._resend(lane)
            if lane.address and lane.outgoing.empty():  # its partitions have another leader
                del self._lanes[lane.address]
                return

    async def _requests(self, lane: Lane) -> AsyncIterator[pb.ProduceRequest]:
        outgoing = lane.outgoing
        while True:
            batch = await outgoing.get()
            self.counters.batches_sent += 1
            self.counters.bytes_sent += len(batch.data)
            yield pb.ProduceRequest(
                request_id=batch.request_id,
                topic=batch.topic,
                partition=batch.partition,
                acks=pb.Acks.ValueType(self._acks),
                batch=batch.data,
                leader_epoch=batch.leader_epoch,
            )

    def _resend(self, lane: Lane) -> None:
        lane.outgoing = asyncio.Queue()
        for batch in self._batches.under_way():
            if batch.address == lane.address:
                batch.unsure = True
                self.counters.retries += 1
                self._dispatch(batch)
        self._schedule_flush()

    async def _answered(self, answer: pb.ProduceResponse) -> None:
        batch = self._batches.batch(answer.request_id)
        if batch is None:
            return
        if not answer.HasField("error"):
            self.counters.records_taken += batch.count
            self._settle(self._batches.taken(batch, answer.base_offset, Acks(answer.acks)))
            return
        error = error_of(answer.error)
        behind = may_be_behind(error, batch.address) and batch.attempts < _BEHIND_ATTEMPTS
        if (error.retriable or behind) and _now_ms() < batch.tickets[0].deadline_ms:
            batch.attempts += 1
            batch.unsure |= not isinstance(error, (*_DEFINITE, NotLeader))
            self.counters.retries += 1
            if isinstance(error, NotLeader):
                self._connection.routes.learn(batch.topic, batch.partition, error)
            asyncio.get_running_loop().call_later(
                min(1.0, 0.05 * 2**batch.attempts), self._again, batch
            )
            return
        if isinstance(error, OutOfOrderSequence) and (
            await self._created_again(batch) or self._forgotten(batch)
        ):
            self._again(batch)
            return
        if not isinstance(error, _DEFINITE):
            # It may be on the broker's disk: its sequence number must not be used again.
            self._give_up(error)
            return
        self.counters.records_failed += batch.count
        self._settle(self._batches.refused(batch, error))

    def _again(self, batch: OutgoingBatch) -> None:
        """Unless it was settled, or sent on a new stream, while it waited."""
        if self._batches.batch(batch.request_id) is batch:
            self._dispatch(batch)

    def _settle(self, tickets: Iterable[Ticket | Block]) -> None:
        for ticket in tickets:
            future = ticket.future
            if future.done():  # its caller was cancelled
                continue
            if isinstance(ticket.outcome, LakeMQError):
                future.set_exception(ticket.outcome)
            elif ticket.outcome is not None:
                future.set_result(ticket.outcome)
        if self._batches.buffered_bytes < self._buffer_max_bytes:
            self._room.set()
        self._schedule_flush()

    def _expired(self) -> bool:
        deadline_ms = self._batches.oldest_deadline_ms()
        return deadline_ms is not None and deadline_ms <= _now_ms()

    def _give_up(self, failure: LakeMQError) -> None:
        """Nothing gets through: everything fails, and so does this producer from now on."""
        under_way = self._batches.under_way()
        unsent = isinstance(failure, TlsFailed) and not any(each.unsure for each in under_way)
        self.failed = failure
        if under_way and not unsent:
            self.failed = OutcomeUnknown(f"gave up; records may or may not be stored: {failure}")
        tickets = self._batches.fail_all(self.failed)
        self.counters.records_failed += sum(
            len(each.columns.values) if isinstance(each, Block) else 1 for each in tickets
        )
        self._settle(tickets)
        self._room.set()
