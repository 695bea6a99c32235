"""The asyncio producer: `ProducerBatches` decides, this drives the gRPC stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

import grpc

from broker_core.api.errors import (
    InvalidRequest,
    LakeMQError,
    NotAuthenticated,
    NotAuthorized,
    OutcomeUnknown,
    StorageFull,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from broker_core.api.types import Acks, Compression, Headers
from plugins.native import native_pb2 as pb
from plugins.native.sdk import wire
from plugins.native.sdk.batching import OutgoingBatch, ProducerBatches, Ticket
from plugins.native.sdk.partitioning import StickyPartitioner
from plugins.native.sdk.sequencing import SequenceNumbers, backoff_s
from plugins.native.sdk.types import NewRecord, RecordMetadata

if TYPE_CHECKING:
    from plugins.native.native_pb2_grpc import NativeAsyncStub  # in the stub file only
    from plugins.native.sdk.client import Client

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


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Producer:
    """Sends records exactly once per partition, in order. Made by `Client.producer`."""

    def __init__(
        self,
        stub: NativeAsyncStub,
        client: Client,
        producer_id: int,
        *,
        acks: Acks,
        compression: Compression,
        linger_ms: int,
        batch_bytes_max: int,
        buffer_bytes_max: int,
        delivery_timeout_ms: int,
    ) -> None:
        self._stub = stub
        self._client = client
        self._acks = acks
        self._linger_s = linger_ms / 1000
        self._buffer_bytes_max = buffer_bytes_max
        self._delivery_timeout_ms = delivery_timeout_ms
        self._batches = ProducerBatches(
            SequenceNumbers(producer_id), batch_bytes_max=batch_bytes_max, compression=compression
        )
        self._partitioner = StickyPartitioner()
        self._partition_counts: dict[str, int] = {}
        self._futures: dict[Ticket, asyncio.Future[RecordMetadata]] = {}
        self._outgoing: asyncio.Queue[OutgoingBatch] = asyncio.Queue()
        self._room = asyncio.Event()
        self._room.set()
        self._flush_scheduled = False
        self._failed: LakeMQError | None = None
        self._driver = asyncio.create_task(self._drive())

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
        """Take one record; the future is its ack. Waits while the buffer is full."""
        await self._room.wait()
        if self._failed is not None:
            raise self._failed
        count = self._partition_counts.get(topic)
        if count is None:
            count = len((await self._client.describe_topic(topic)).partitions)
            self._partition_counts[topic] = count
        if partition is None:
            partition = self._partitioner.of(record.key, count)
        elif not 0 <= partition < count:
            raise InvalidRequest(f"partition {partition}: topic {topic} has {count}")
        ticket = Ticket(record, _now_ms() + self._delivery_timeout_ms)
        future: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        self._futures[ticket] = future
        self._batches.add(topic, partition, ticket)
        if self._batches.buffered_bytes >= self._buffer_bytes_max:
            self._room.clear()
        self._schedule_flush()
        return future

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            loop = asyncio.get_running_loop()
            if self._linger_s:
                loop.call_later(self._linger_s, self._flush)
            else:
                loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        for batch in self._batches.ready(_now_ms()):
            self._outgoing.put_nowait(batch)
        self._partitioner.next_batch()

    async def flush(self) -> None:
        """Wait until every record taken so far has its outcome; outcomes stay in the futures."""
        if self._futures:
            await asyncio.wait(list(self._futures.values()))

    async def close(self) -> None:
        """Flush, then stop."""
        await self.flush()
        self._driver.cancel()
        await asyncio.gather(self._driver, return_exceptions=True)
        self._failed = InvalidRequest("this producer is closed")

    # -- the stream

    async def _drive(self) -> None:
        """Keep a stream open; on a broken one, send again what has no answer, in order."""
        pauses = backoff_s()
        while True:
            call = self._stub.Produce(self._requests())
            try:
                async for answer in call:
                    pauses = backoff_s()
                    await self._answered(answer)
                failure: LakeMQError = Unavailable(f"{self._client.bootstrap} ended the stream")
            except grpc.RpcError as error:
                failure = wire.error_from(error, self._client.bootstrap)
            finally:
                call.cancel()
            if not failure.retriable or self._expired():
                self._give_up(failure)
                return
            await asyncio.sleep(next(pauses))
            self._resend()

    async def _requests(self) -> AsyncIterator[pb.ProduceRequest]:
        while True:
            batch = await self._outgoing.get()
            yield pb.ProduceRequest(
                request_id=batch.request_id,
                topic=batch.topic,
                partition=batch.partition,
                acks=pb.Acks.ValueType(self._acks),
                batch=batch.data,
            )

    def _resend(self) -> None:
        self._outgoing = asyncio.Queue()
        for batch in self._batches.under_way():
            self._outgoing.put_nowait(batch)
        self._schedule_flush()

    async def _answered(self, answer: pb.ProduceResponse) -> None:
        batch = self._batches.batch(answer.request_id)
        if batch is None:
            return
        if not answer.HasField("error"):
            self._settle(self._batches.taken(batch, answer.base_offset, Acks(answer.acks)))
            return
        error = wire.error_of(answer.error)
        if error.retriable and _now_ms() < batch.tickets[0].deadline_ms:
            batch.attempts += 1
            asyncio.get_running_loop().call_later(
                min(1.0, 0.05 * 2**batch.attempts), self._outgoing.put_nowait, batch
            )
            return
        if not isinstance(error, _DEFINITE):
            # It may be on the broker's disk: its sequence number must not be used again.
            self._give_up(error)
            return
        self._settle(self._batches.refused(batch, error))

    def _settle(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            future = self._futures.pop(ticket)
            if future.done():  # its caller was cancelled
                continue
            if isinstance(ticket.outcome, LakeMQError):
                future.set_exception(ticket.outcome)
            elif ticket.outcome is not None:
                future.set_result(ticket.outcome)
        if self._batches.buffered_bytes < self._buffer_bytes_max:
            self._room.set()
        self._schedule_flush()

    def _expired(self) -> bool:
        now_ms = _now_ms()
        return any(ticket.deadline_ms <= now_ms for ticket in self._futures)

    def _give_up(self, failure: LakeMQError) -> None:
        """Nothing gets through: everything fails, and so does this producer from now on."""
        self._failed = OutcomeUnknown(f"gave up; records may or may not be stored: {failure}")
        self._settle(self._batches.fail_all(self._failed))
        self._room.set()
