"""The asyncio producer: `RecordAccumulator` decides, this drives the gRPC stream."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from lakemq.broker_core.api.errors import (
    InvalidRequest,
    LakeMQError,
    NotAuthenticated,
    NotAuthorized,
    NotEnoughReplicas,
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
from lakemq.plugins.native.sdk.consumer.counters import ProducerCounters
from lakemq.plugins.native.sdk.net import calls as wire
from lakemq.plugins.native.sdk.net.connection import Connection
from lakemq.plugins.native.sdk.net.errors import CLOSED, error_of
from lakemq.plugins.native.sdk.net.sequencing import SequenceNumbers, backoff_s
from lakemq.plugins.native.sdk.producer.accumulator import (
    BATCH_MAX_BYTES,
    PendingBlock,
    PendingRecord,
    ProducerBatch,
    RecordAccumulator,
    cut,
)
from lakemq.plugins.native.sdk.producer.checking import check_record
from lakemq.plugins.native.sdk.producer.partitioning import StickyPartitioner
from lakemq.plugins.native.sdk.producer.produce_stream import ProduceStream
from lakemq.plugins.native.sdk.tracing import current_headers, is_traced, with_headers
from lakemq.plugins.native.sdk.types import NewRecord, RecordMetadata

if TYPE_CHECKING:
    import pyarrow as pa


_DEFINITE = (
    InvalidRequest,
    NotAuthenticated,
    NotAuthorized,
    NotEnoughReplicas,
    StorageFull,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
"""In-place answers after which the batch is surely not stored."""


_log = logging.getLogger("lakemq.sdk")
_BEHIND_ATTEMPTS: Final = 8
"""Some 5 s: as long may a node take to hear of a topic that another has made."""


_FORMER_LEADER_S: Final = 0.5
"""How long a node that leads no more may take to say so, before its stream is ended."""


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
        self._accumulator = RecordAccumulator(
            SequenceNumbers(producer_id), batch_max_bytes=batch_max_bytes, compression=compression
        )
        self._partitioner = StickyPartitioner()
        self._partition_counts: dict[str, int] = {}
        self._topic_ids: dict[str, str] = {}
        self.counters = ProducerCounters()
        self._streams: dict[str, ProduceStream] = {}
        self._has_space = asyncio.Event()
        self._has_space.set()
        self._flush_scheduled = False
        self.failed: LakeMQError | None = None
        """Why this producer takes no more records; None: it takes them."""
        self.last_failure: LakeMQError | None = None
        """What the newest stream failed with, until another gets an answer."""
        self._loop = asyncio.get_running_loop()
        self._deadline_ms = 0
        """Of the records that are taken now; replaced with every flush."""
        connection.routes.start()
        connection.routes.watch(self._rerouted)
        self._view_version = 0
        self._traced = is_traced()
        self._stream_to("")

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
        # Before the first await: a bad record must not wait for room, nor be noticed in a batch of
        # good ones.
        check_record(record)
        if self._traced:
            record = with_headers(record, current_headers())
        # Asked first, since awaiting a set event still costs a coroutine on the path of every
        # record.
        if not self._has_space.is_set():
            await self._has_space.wait()
        if self.failed is not None:
            raise self.failed
        # For a known partition of a known topic nothing is awaited from here to `add`: records
        # enter it in the order of the calls.
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
        batches = self._accumulator
        batches.add(topic, partition, PendingRecord(record, self._deadline_ms, future))
        # The record that fills the buffer is still taken: one larger than the whole buffer would
        # wait for ever.
        if batches.buffered_bytes >= self._buffer_max_bytes:
            self._has_space.clear()
        return future

    async def _partitions_of(self, topic: str) -> int:
        found = await self._connection.describe_topic(topic)
        self._topic_ids.setdefault(topic, found.topic_id)
        self._accumulator.bytes_max[topic] = int(
            found.config.get("batch_max_bytes", BATCH_MAX_BYTES)
        )
        self._partition_counts[topic] = count = len(found.partitions)
        return count

    async def _topic_recreated(self, batch: ProducerBatch) -> bool:
        """Whether a batch was refused because its topic is another one than it was, of the same
        name; then it gets numbers that the new one takes."""
        # Another partition's batch may have found out first: then the new numbers are there
        # already, and a second restart would outdate its batch in turn.
        if not self._accumulator.is_outdated(batch):
            try:
                found = await self._connection.describe_topic(batch.topic)
            except LakeMQError:
                return False
            if found.topic_id == self._topic_ids.get(batch.topic):
                return False
            self._topic_ids[batch.topic] = found.topic_id
            self._partition_counts[batch.topic] = len(found.partitions)
            self._accumulator.sequences.restart(batch.topic)
        self._accumulator.renumber(batch)
        return True

    def _producer_unknown(self, batch: ProducerBatch) -> bool:
        """Whether a batch may be sent as a new producer's: one that was surely never taken was
        refused because the broker knows us no more, as after a long silence (KIP-360)."""
        if batch.maybe_appended or batch.restarted:
            return False
        _log.warning(
            "%s partition %d does not know this producer any more; its sequence numbers restart",
            batch.topic,
            batch.partition,
        )
        batch.restarted = True  # should even new numbers be refused, it is something else
        self._accumulator.sequences.restart(batch.topic)
        self._accumulator.renumber(batch)
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
        # Without return_exceptions the first failure would return while later batches are still
        # under way.
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return [each for each in outcomes if not isinstance(each, BaseException)]

    async def _enqueue_block(
        self, topic: str, partition: int, columns: Columns
    ) -> asyncio.Future[RecordMetadata]:
        await self._has_space.wait()
        if self.failed is not None:
            raise self.failed
        self._schedule_flush()
        future: asyncio.Future[RecordMetadata] = self._loop.create_future()
        self._accumulator.add(topic, partition, PendingBlock(columns, self._deadline_ms, future))
        if self._accumulator.buffered_bytes >= self._buffer_max_bytes:
            self._has_space.clear()
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
            # One clock reading for all records of a flush, not one for each.
            self._deadline_ms = _now_ms() + self._delivery_timeout_ms
            loop = self._loop
            if self._linger_s:
                loop.call_later(self._linger_s, self._flush)
            else:
                # Even without linger the flush waits for the end of this loop turn: records of all
                # tasks that run in it share a batch.
                loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        self._refresh_partition_counts()
        for batch in self._accumulator.ready(_now_ms()):
            self._dispatch(batch)
        if self._accumulator.rejected:
            self._partition_counts.clear()  # a topic may take larger batches by now
            self.counters.records_failed += len(self._accumulator.rejected)
            self._settle(self._accumulator.drain_rejected())
        # KIP-480: records without keys stay on one partition for a batch, so that batches fill.
        self._partitioner.next_batch()

    def _refresh_partition_counts(self) -> None:
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
        # One batch a partition is in flight, so outcomes come in order: the last future of each is
        # enough.
        last = [each.future for each in self._accumulator.last()]
        if last:
            await asyncio.wait(last)

    async def close(self) -> None:
        """Flush, then stop."""
        await self.flush()
        await self._end_streams()
        # Set last: records that were taken before are still sent by the flush.
        self.failed = InvalidRequest("this producer is closed")

    async def abandon(self) -> None:
        """Its client is closed: what has no outcome fails."""
        if self.failed is None:
            self._fail_all(InvalidRequest(CLOSED))
        await self._end_streams()

    async def _end_streams(self) -> None:
        tasks = [stream.task for stream in self._streams.values() if stream.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- the streams, one a node

    def _stream_to(self, address: str) -> ProduceStream:
        stream = self._streams.get(address)
        if stream is None:
            stream = self._streams[address] = ProduceStream(address)
            stream.task = asyncio.create_task(self._drive(stream))
        return stream

    def _dispatch(self, batch: ProducerBatch) -> None:
        """Send a batch to who leads its partition, as far as we know."""
        route = self._connection.routes.route(batch.topic, batch.partition)
        batch.address, batch.leader_epoch = route
        self._stream_to(route.address).outgoing.put_nowait(batch)

    def _rerouted(self) -> None:
        """Metadata has changed: a former leader has a moment to answer what waits for it."""
        for stream in self._streams.values():
            waiting = self._led_elsewhere(stream)
            if waiting and stream.call is None:
                stream.led_elsewhere.set()
            elif waiting:
                self._loop.call_later(_FORMER_LEADER_S, self._leave, stream, waiting)

    def _led_elsewhere(self, stream: ProduceStream) -> set[tuple[int, int]]:
        """(request id, attempt) of batches that wait there though another node leads by now."""
        elsewhere = self._connection.routes.view.led_elsewhere
        return {
            (each.request_id, each.attempts)
            for each in self._accumulator.in_flight()
            if each.address == stream.address
            and elsewhere(each.topic, each.partition, each.address)
        }

    def _leave(self, stream: ProduceStream, waiting: set[tuple[int, int]]) -> None:
        """End a call that has not answered those: it is left open whether they are stored."""
        # The whole call, not these batches alone: an answer that comes after the batch was sent
        # elsewhere would be taken for one from there.
        if stream.call is not None and waiting & self._led_elsewhere(stream):
            stream.call.end(NotLeader("a former leader does not answer"))

    async def _drive(self, stream: ProduceStream) -> None:
        """Keep a stream open; on a broken one, send again what has no answer, in order."""
        pauses = backoff_s()
        while True:
            call: Any = None
            try:
                call = self._connection.routes.stub(stream.address).Produce(self._requests(stream))
                stream.call = call
                async for answer in call:
                    # An answer proves that the node is back: the next failure begins with short
                    # pauses again.
                    pauses = backoff_s()
                    self.last_failure = None
                    await self._answered(answer)
                failure: LakeMQError = Unavailable(f"{self._connection.bootstrap} ended the stream")
            except LakeMQError as error:
                failure = error
            finally:
                stream.call = None
                if call is not None:
                    call.cancel()
            self.last_failure = failure
            # The oldest record decides. A batch that may have been appended keeps its sequence
            # number, so a later one must not be sent in place of one that is given up.
            if not failure.retriable or self._expired():
                self._fail_all(failure)
                return
            await self._pause(stream, next(pauses))
            self.counters.reconnects += 1
            self._resend(stream)
            # The stream to the bootstrap node is kept: it serves all partitions whose leader is
            # unknown.
            if stream.address and stream.outgoing.empty():  # its partitions have another leader
                del self._streams[stream.address]
                return

    async def _pause(self, stream: ProduceStream, pause_s: float) -> None:
        """Before the next call, if not all that waits for it can go to another node now."""
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await stream.led_elsewhere.wait()
        stream.led_elsewhere.clear()

    async def _requests(self, stream: ProduceStream) -> AsyncIterator[pb.ProduceRequest]:
        outgoing = stream.outgoing
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

    def _resend(self, stream: ProduceStream) -> None:
        # A new queue, for the generator of the broken call may still wait on the old one and would
        # take a batch that is then never sent.
        stream.outgoing = asyncio.Queue()
        for batch in self._accumulator.in_flight():
            if batch.address == stream.address:
                # It was sent, or at least queued, and there is no answer: only the same sequence
                # number keeps a second append from making duplicates (KIP-98).
                batch.maybe_appended = True
                self.counters.retries += 1
                self._dispatch(batch)
        self._schedule_flush()

    async def _answered(self, answer: pb.ProduceResponse) -> None:
        batch = self._accumulator.batch(answer.request_id)
        # An answer to a batch that was settled meanwhile, as by `abandon`.
        if batch is None:
            return
        if not answer.HasField("error"):
            self.counters.records_taken += batch.count
            self._settle(self._accumulator.appended(batch, answer.base_offset, Acks(answer.acks)))
            return
        error = error_of(answer.error)
        lags = self._connection.routes.may_lag(error, batch.topic, batch.address)
        behind = lags and batch.attempts < _BEHIND_ATTEMPTS
        if (error.retriable or behind) and _now_ms() < batch.pending[0].deadline_ms:
            batch.attempts += 1
            # NotLeader is not definite: a leader that is replaced gives it to batches that it has
            # stored and that wait for its followers.
            batch.maybe_appended |= not isinstance(error, _DEFINITE)
            self.counters.retries += 1
            if isinstance(error, NotLeader):
                self._connection.routes.learn(batch.topic, batch.partition, error)
            # Not awaited here: answers for other partitions of this stream come in meanwhile.
            asyncio.get_running_loop().call_later(
                min(1.0, 0.05 * 2**batch.attempts), self._retry, batch
            )
            return
        if isinstance(error, OutOfOrderSequence) and (
            await self._topic_recreated(batch) or self._producer_unknown(batch)
        ):
            self._retry(batch)
            return
        if not isinstance(error, _DEFINITE):
            # It may be on the broker's disk: its sequence number must not be used again.
            self._fail_all(error)
            return
        self.counters.records_failed += batch.count
        self._settle(self._accumulator.refused(batch, error))

    def _retry(self, batch: ProducerBatch) -> None:
        """Unless it was settled, or sent on a new stream, while it waited."""
        if self._accumulator.batch(batch.request_id) is batch:
            self._dispatch(batch)

    def _settle(self, pending: Iterable[PendingRecord | PendingBlock]) -> None:
        for item in pending:
            future = item.future
            if future.done():  # its caller was cancelled
                continue
            if isinstance(item.outcome, LakeMQError):
                future.set_exception(item.outcome)
            elif item.outcome is not None:
                future.set_result(item.outcome)
        if self._accumulator.buffered_bytes < self._buffer_max_bytes:
            self._has_space.set()
        self._schedule_flush()

    def _expired(self) -> bool:
        deadline_ms = self._accumulator.oldest_deadline_ms()
        return deadline_ms is not None and deadline_ms <= _now_ms()

    def _fail_all(self, failure: LakeMQError) -> None:
        """Nothing gets through: everything fails, and so does this producer from now on."""
        in_flight = self._accumulator.in_flight()
        # A TLS handshake that fails lets no batch through: the outcome is known, and the caller is
        # shown the mistake itself.
        unsent = isinstance(failure, TlsFailed) and not any(
            each.maybe_appended for each in in_flight
        )
        self.failed = failure
        if in_flight and not unsent:
            self.failed = OutcomeUnknown(f"gave up; records may or may not be stored: {failure}")
        pending = self._accumulator.fail_all(self.failed)
        self.counters.records_failed += sum(
            len(each.columns.values) if isinstance(each, PendingBlock) else 1 for each in pending
        )
        self._settle(pending)
        # Callers that wait for room wake up and find `failed`.
        self._has_space.set()
