"""How an idempotent producer's batches reach the leaders of their partitions: `RecordAccumulator`
decides, this drives the gRPC streams.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Final

from lakemq.broker_core.api.errors import (
    InterceptorFailed,
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
from lakemq.broker_core.api.types import Acks, Compression
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.sdk.consumer.counters import ProducerCounters
from lakemq.plugins.native.sdk.net.connection import Connection
from lakemq.plugins.native.sdk.net.errors import error_of
from lakemq.plugins.native.sdk.net.sequencing import SequenceNumbers, backoff_s
from lakemq.plugins.native.sdk.producer.accumulator import (
    BATCH_MAX_BYTES,
    ProducerBatch,
    RecordAccumulator,
)
from lakemq.plugins.native.sdk.producer.partitioning import StickyPartitioner
from lakemq.plugins.native.sdk.producer.pending import Appended, Pending
from lakemq.plugins.native.sdk.producer.produce_stream import ProduceStream
from lakemq.plugins.native.sdk.telemetry import LOOKED_AT, ClientTelemetry

_DEFINITE = (
    InterceptorFailed,
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


def now_ms() -> int:
    """Wall clock, milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class BatchSender:
    """The sending side of a `Producer`: one stream a node, retries, outcomes."""

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
        # Whatever is like an integer: what is compiled takes no other.
        batch_max_bytes, buffer_max_bytes = int(batch_max_bytes), int(buffer_max_bytes)
        self._connection = connection
        self._acks = acks
        self._linger_s = linger_ms / 1000
        self._batch_max_bytes = batch_max_bytes
        self._buffer_max_bytes = buffer_max_bytes
        self._delivery_timeout_ms = int(delivery_timeout_ms)
        self._accumulator = RecordAccumulator(
            SequenceNumbers(producer_id),
            batch_max_bytes=batch_max_bytes,
            buffer_max_bytes=buffer_max_bytes,
            compression=compression,
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
        """Internal: what the newest stream failed with, until another gets an answer."""
        self._loop = asyncio.get_running_loop()
        self._deadline_ms = 0
        """Of the records that are taken now; replaced with every flush."""
        self._notices = connection.routes.notices
        connection.routes.start()
        connection.routes.watch(self._rerouted)
        self._view_version = 0
        self._telemetry = connection.routes.telemetry
        self._traced = self._telemetry is not None and self._telemetry.traced
        self._stream_to("")

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

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            # One clock reading for all records of a flush, not one for each.
            self._deadline_ms = now_ms() + self._delivery_timeout_ms
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
        for batch in self._accumulator.ready(now_ms()):
            if self._telemetry is not None:
                self._tell_sending(self._telemetry, batch)
            self._dispatch(batch)
        if self._accumulator.rejected:
            self._partition_counts.clear()  # a topic may take larger batches by now
            for pending, error in self._accumulator.drain_rejected():
                self.counters.records_failed += pending.count
                self._fail(pending, error)
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
                    if self.last_failure is not None:
                        self._tell("answers", stream, "answers again")
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
            waiting = sum(each.address == stream.address for each in self._accumulator.in_flight())
            self._tell("broke", stream, f"broke off: {failure}; {waiting} batches are sent again")
            await self._pause(stream, next(pauses))
            self.counters.reconnects += 1
            self._resend(stream)
            # The stream to the bootstrap node is kept: it serves all partitions whose leader is
            # unknown.
            if stream.address and stream.outgoing.empty():  # its partitions have another leader
                del self._streams[stream.address]
                return

    def _tell(self, kind: str, stream: ProduceStream, text: str) -> None:
        where = stream.address or self._connection.bootstrap
        self._notices.tell("produce", kind, where, text=f"sending to {where} {text}")

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
            self._told_outcome(batch, None)
            self._settle(
                batch.pending,
                self._accumulator.appended(batch, answer.base_offset, Acks(answer.acks)),
            )
            return
        error = error_of(answer.error)
        lags = self._connection.routes.may_lag(error, batch.topic, batch.address)
        behind = lags and batch.attempts < _BEHIND_ATTEMPTS
        if (error.retriable or behind) and now_ms() < batch.pending.deadline_ms:
            batch.attempts += 1
            self._notices.tell(
                "again", batch.topic, str(batch.partition),
                text=f"{batch.topic} partition {batch.partition}: {batch.count} records are sent "
                f"again: {error}",
            )  # fmt: skip
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
        self._told_outcome(batch, error)
        self._fail(batch.pending, self._accumulator.refused(batch, error))

    def _tell_sending(self, telemetry: ClientTelemetry, batch: ProducerBatch) -> None:
        heads = batch.pending.headers(LOOKED_AT)
        telemetry.sending(batch, batch.topic, batch.partition, batch.count, heads)

    def _told_outcome(self, batch: ProducerBatch, error: LakeMQError | None) -> None:
        if self._telemetry is not None:
            self._telemetry.sent(batch, batch.topic, batch.count, error)

    def _retry(self, batch: ProducerBatch) -> None:
        """Unless it was settled, or sent on a new stream, while it waited."""
        if self._accumulator.batch(batch.request_id) is batch:
            self._dispatch(batch)

    def _fail(self, pending: Pending, error: LakeMQError) -> None:
        # As asyncio tells of exceptions that are never retrieved, once and not for each record.
        if unwatched := pending.unwatched:
            self._notices.tell(
                "failed", type(error).__name__, level=logging.WARNING,
                text=f"{unwatched} records failed, and no caller waits for their acks: {error}",
            )  # fmt: skip
        self._settle(pending, error)

    def _settle(self, pending: Pending, outcome: Appended | LakeMQError) -> None:
        indexes, futures = pending.settle(outcome)
        if isinstance(outcome, LakeMQError):
            for future in futures:
                if not future.cancelled():  # with its caller
                    future.set_exception(outcome)
        else:
            for future, record in zip(futures, outcome.records(indexes), strict=True):
                if not future.cancelled():
                    future.set_result(record)
        if self._accumulator.buffered_bytes < self._buffer_max_bytes:
            self._has_space.set()
        self._schedule_flush()

    def _expired(self) -> bool:
        deadline_ms = self._accumulator.oldest_deadline_ms()
        return deadline_ms is not None and deadline_ms <= now_ms()

    def _fail_all(self, failure: LakeMQError) -> None:
        """Nothing gets through: everything fails, and so does this producer from now on."""
        in_flight = self._accumulator.in_flight()
        # A TLS handshake that fails lets no batch through: the outcome is known, and the caller is
        # shown the mistake itself.
        unsent = isinstance(failure, TlsFailed) and not any(
            each.maybe_appended for each in in_flight
        )
        self.failed = failed = failure
        if in_flight and not unsent:
            failed = OutcomeUnknown(f"gave up; records may or may not be stored: {failure}")
            self.failed = failed
        for batch in in_flight:
            self._told_outcome(batch, failed)
        pending = self._accumulator.fail_all()
        count = sum(each.count for each in pending)
        self.counters.records_failed += count
        if count and not isinstance(failure, InvalidRequest):  # a client that is closed is no news
            _log.warning("a producer gave up, with %d records: %s", count, failed)
        for each in pending:
            self._settle(each, failed)
        # Callers that wait for room wake up and find `failed`.
        self._has_space.set()
