"""The asyncio producer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent import futures
from datetime import datetime
from functools import partial
from operator import index
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from lakemq.broker_core.api.errors import InvalidRequest, LakeMQError, UnknownPartition
from lakemq.broker_core.api.types import Columns, Headers
from lakemq.plugins.native.sdk.arrow import (
    arrow_batches,
    from_arrow,
    table_of_pandas,
    table_of_polars,
)
from lakemq.plugins.native.sdk.net import calls as wire
from lakemq.plugins.native.sdk.net.errors import CLOSED
from lakemq.plugins.native.sdk.net.retrying import retrying
from lakemq.plugins.native.sdk.producer.checking import checked_record
from lakemq.plugins.native.sdk.producer.options import DeliveryCallback
from lakemq.plugins.native.sdk.producer.pending import PendingBlock, PendingRecords, cut
from lakemq.plugins.native.sdk.producer.record_future import (
    DeliveryCall,
    RecordFuture,
    future_of_last,
)
from lakemq.plugins.native.sdk.producer.sending import BatchSender, now_ms
from lakemq.plugins.native.sdk.tracing import current_headers, with_headers
from lakemq.plugins.native.sdk.types import NewRecord, RecordMetadata

if TYPE_CHECKING:
    import pyarrow as pa

Handed = tuple[str, NewRecord, int | None, futures.Future[RecordMetadata]]
"""Topic, a record that is prepared, partition, and the future of its ack."""


class Producer(BatchSender):
    """Sends records exactly once per partition, in order. Made by `Client.producer`."""

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
        value: Any,
        *,
        key: Any = None,
        headers: Headers = (),
        timestamp_ms: int | datetime | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """Produce one record; returns when it is as durable as `acks` says. Key and value: bytes or
        None, or what the producer's serializers take."""
        return await (
            await self.enqueue(
                topic, NewRecord(value, key, headers, timestamp_ms), partition=partition
            )
        )

    async def enqueue(
        self,
        topic: str,
        record: NewRecord,
        *,
        partition: int | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Take one record; the future is its ack. Waits while the buffer is full. Raises
        InvalidRequest, naming what no record can be made of. `on_delivery(error, metadata)` is
        called on the event loop when it has its outcome, one of them None."""
        batches = self._accumulator
        pending = batches.take(topic, record) if partition is None and on_delivery is None else None
        if pending is not None:
            # `future_of_last`, without its calls.
            future = RecordFuture(loop=self._loop)
            future.pending, future.index = pending, len(pending.values) - 1
            return future
        # Before the first await: a bad record must not wait for room, nor be noticed in a batch of
        # good ones.
        record = checked_record(record)
        if self._traced:
            record = with_headers(record, current_headers())
        # Asked first, since awaiting a set event still costs a coroutine on the path of every
        # record.
        if batches.buffered_bytes >= self._buffer_max_bytes:
            await self._has_space.wait()
        if self.failed is not None:
            raise self.failed
        # For a known partition of a known topic nothing is awaited from here to `add`: records
        # enter it in the order of the calls.
        count = self._partition_counts.get(topic)
        if count is None:
            count = await self._partitions_of(topic)
        if partition is not None and not 0 <= partition < count:
            await self._check_partition(topic, partition)
        pending = self._add(topic, partition, record, count)
        if on_delivery is not None:
            pending.watch(pending.count - 1, DeliveryCall(self._loop, on_delivery))
        return future_of_last(pending, self._loop)

    def _add(
        self, topic: str, partition: int | None, record: NewRecord, count: int
    ) -> PendingRecords:
        """Queue a record that was looked at, for a topic of `count` partitions."""
        batches, key = self._accumulator, record[1]
        home = self._partitioner.of(key, count) if partition is None else index(partition)
        if not self._flush_scheduled:
            self._schedule_flush()
        pending = batches.add(topic, home, record, self._deadline_ms)
        if partition is None and key is None and not self._traced:
            batches.open[topic] = pending
        # The record that fills the buffer is still taken: one larger than the whole buffer would
        # wait for ever.
        if batches.buffered_bytes >= self._buffer_max_bytes:
            self._has_space.clear()
        return pending

    def prepared(self, record: NewRecord) -> NewRecord:
        """Internal: a record as it is sent, for `enqueue_all`; in the thread of the application."""
        record = checked_record(record)
        return with_headers(record, current_headers()) if self._traced else record

    async def enqueue_all(self, records: deque[Handed]) -> None:
        """Internal: as `enqueue`, of many; those that were taken, or failed, are taken off
        `records`. A broker that is away is waited for, as long as for an ack."""
        batches = self._accumulator
        while records:
            topic, record, partition, future = records[0]
            try:
                if batches.buffered_bytes >= self._buffer_max_bytes:
                    await self._has_space.wait()
                if self.failed is not None:
                    raise self.failed
                count = self._partition_counts.get(topic)
                if count is None:
                    wait_s = self._delivery_timeout_ms / 1000
                    count = await retrying(partial(self._partitions_of, topic), wait_s)
                if partition is not None and not 0 <= partition < count:
                    await self._check_partition(topic, partition)
            except LakeMQError as error:
                self._refuse(records, error)
                continue
            records.popleft()
            pending = self._add(topic, partition, record, count)
            pending.watch(pending.count - 1, future)

    def _refuse(self, records: deque[Handed], error: LakeMQError) -> None:
        """Fail the first of them, and what would wait as long for the same answer."""
        topic = records[0][0]
        taken = [records.popleft()]
        if error.retriable:
            taken += [each for each in records if each[0] == topic]
            others = [each for each in records if each[0] != topic]
            records.clear()
            records.extend(others)
        self.counters.records_failed += len(taken)
        for *_, future in taken:
            future.set_exception(error)

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
        columns = wire.columns_given(records, now_ms(), traced=self._traced)
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
        block = PendingBlock(columns, self._deadline_ms)
        block.watch(0, future)
        self._accumulator.add_block(topic, index(partition), block)
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

    async def send_pandas(
        self, topic: str, frame: Any, *, partition: int | None = None
    ) -> list[RecordMetadata]:
        """`send_arrow` of a DataFrame of pandas; its index is left out."""
        return await self.send_arrow(topic, table_of_pandas(frame), partition=partition)

    async def send_polars(
        self, topic: str, frame: Any, *, partition: int | None = None
    ) -> list[RecordMetadata]:
        """`send_arrow` of a DataFrame of Polars."""
        return await self.send_arrow(topic, table_of_polars(frame), partition=partition)

    async def flush(self) -> None:
        """Wait until every record taken so far has its outcome; outcomes stay in the futures."""
        # One batch a partition is in flight, so outcomes come in order: the last future of each is
        # enough.
        last = [_settled(future_of_last(each, self._loop)) for each in self._accumulator.last()]
        if last:
            await asyncio.wait(last)

    async def close(self) -> None:
        """Flush, then stop."""
        await self.flush()
        await self._end_streams()
        # Set last: records that were taken before are still sent by the flush.
        self.failed = InvalidRequest("this producer is closed")
        self._accumulator.open.clear()

    async def abandon(self) -> None:
        """Internal: its client is closed: what has no outcome fails."""
        if self.failed is None:
            self._fail_all(InvalidRequest(CLOSED))
        await self._end_streams()


def _settled(future: asyncio.Future[RecordMetadata]) -> asyncio.Future[None]:
    """Done when `future` is, whatever its outcome."""
    done: asyncio.Future[None] = future.get_loop().create_future()

    def tell(_: object) -> None:
        future.exception()  # callers look for it in futures of their own
        if not done.done():
            done.set_result(None)

    future.add_done_callback(tell)
    return done
