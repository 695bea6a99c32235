"""Transactions, for asyncio: records for several partitions and offsets of consumer groups that
take effect together, once, or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self

from lakemq.broker_core.api.errors import (
    InvalidRequest,
    LakeMQError,
    MemberFenced,
    OutcomeUnknown,
    UnknownMember,
)
from lakemq.broker_core.api.transactions.types import CommitOutcome
from lakemq.broker_core.api.types import Columns, Compression, Headers, TopicPartition
from lakemq.plugins.native.proto.native_pb2 import CommitOffsetsRequest
from lakemq.plugins.native.sdk.consumer.consumer import Consumer
from lakemq.plugins.native.sdk.group.group_stream import now_ms as monotonic_ms
from lakemq.plugins.native.sdk.net import calls as wire
from lakemq.plugins.native.sdk.transactions.staging import SinkHandle, StagedWriter, Staging
from lakemq.plugins.native.sdk.types import NewRecord

if TYPE_CHECKING:
    import pyarrow as pa


class TransactionalProducer:
    """Made by `Client.transactional_producer`; an async context manager. One transaction at a
    time."""

    def __init__(
        self,
        staging: Staging,
        session: SinkHandle,
        *,
        compression: Compression,
        batch_max_bytes: int,
    ) -> None:
        self.session = session
        self.last_batch_id = session.last_batch_id
        """Number of the newest transaction that was committed."""
        self._staging = staging
        self._compression = compression
        self._batch_max_bytes = batch_max_bytes
        self._next = session.last_batch_id + 1
        self._open: Transaction | None = None
        self._failed: LakeMQError | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Abort a transaction that is open."""
        if self._open is not None:
            await self._open.abort()
        self._failed = self._failed or InvalidRequest("this producer is closed")

    def transaction(self, consumer: Consumer | None = None) -> Transaction:
        """The next transaction: `async with producer.transaction() as transaction:` commits at the
        end, and aborts when an exception leaves the block.

        With a consumer, what it hands out from now on belongs to the transaction: where it stands
        is committed with it, and an abort makes it go back.
        """
        if self._failed is not None:
            raise self._failed
        if self._open is not None:
            raise InvalidRequest("a transaction of this producer is open already")
        writer = self._staging.writer(
            self.session,
            self._next,
            0,
            compression=self._compression,
            batch_max_bytes=self._batch_max_bytes,
        )
        self._open = Transaction(self, self._staging, self._next, writer, consumer)
        # Also the number of a transaction that is aborted is used up: its staged batches may still
        # arrive.
        self._next += 1
        return self._open

    def ended(self, *, committed: int | None = None, failed: LakeMQError | None = None) -> None:
        """Internal: the open transaction has ended. `failed`: this producer can't go on."""
        self._open = None
        self._failed = self._failed or failed
        if committed is not None:
            self.last_batch_id = committed


class Transaction:
    """Records and offsets of one transaction. No reader sees any of it before it is committed."""

    def __init__(
        self,
        producer: TransactionalProducer,
        staging: Staging,
        batch_id: int,
        writer: StagedWriter,
        consumer: Consumer | None,
    ) -> None:
        self.batch_id = batch_id
        self.committed = False
        self._consumer = consumer
        self._began_ms = monotonic_ms()
        self._producer = producer
        self._staging = staging
        self._writer = writer
        self._consumers: list[tuple[Consumer, str, dict[TopicPartition, int]]] = []
        self._groups: list[CommitOffsetsRequest] = []
        self._ended = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._ended:
            return
        if error is None:
            await self.commit()
        else:
            await self.abort()

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp_ms: int | datetime | None = None,
        partition: int | None = None,
    ) -> None:
        """Take one record. Waits while the buffer is full."""
        await self._writer.send(
            topic, value, key=key, headers=headers, timestamp_ms=timestamp_ms, partition=partition
        )

    async def send_batch(
        self, topic: str, records: Columns | Sequence[NewRecord], *, partition: int | None = None
    ) -> None:
        """Take many records."""
        await self._writer.send_batch(topic, records, partition=partition)

    async def send_arrow(
        self, topic: str, table: pa.Table | pa.RecordBatch, *, partition: int | None = None
    ) -> None:
        """Take an Arrow table, as `Producer.send_arrow`."""
        await self._writer.send_arrow(topic, table, partition=partition)

    def commit_offsets(
        self, group: Consumer | str, offsets: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """Commit with this transaction where a consumer stands now (every record handed out so far
        counts as handled), or `offsets` of a group without members.

        MemberFenced: the consumer has lost or given up partitions since the transaction began, and
        what was made of their records must not be committed here.
        """
        if isinstance(group, Consumer):
            self._check_member(group)
            wanted = dict(offsets) if offsets is not None else group.positions()
            if wanted:
                self._consumers.append((group, group.member_id, wanted))
        elif offsets is None:
            raise InvalidRequest("offsets of a group that is named are to be given")
        else:
            self._groups.append(wire.reset_request(group, offsets))

    async def commit(self) -> None:
        """Everything takes effect. Raises MemberFenced or UnknownMember when a partition is another
        member's by now, TransactionAborted when it took too long: nothing has taken effect then.
        OutcomeUnknown: no answer came; a new producer of that id finds out."""
        with self._told("commit") as told:
            told["messaging.batch.message_count"] = await self._commit()

    def _told(self, operation: str) -> AbstractContextManager[dict[str, int]]:
        telemetry = self._staging.telemetry
        if telemetry is None:
            return nullcontext({})
        return telemetry.ending(operation, self._producer.session.name)

    async def _commit(self) -> int:
        """Records that take effect."""
        try:
            # Before the batches are finished: where the consumer stands now is what these records
            # were made of.
            if self._consumer is not None:
                self.commit_offsets(self._consumer)
            winner = await self._writer.finish()
            result = await self._staging.commit(
                self._producer.session,
                self.batch_id,
                [winner] if winner.batches else [],
                offsets=self._offsets,
            )
        except LakeMQError as error:
            await self._failed_commit(error)
            raise
        except BaseException:
            # Cancelled in the middle: the commit may have been taken, and this producer must not
            # use the next number before it knows.
            self._end(failed=OutcomeUnknown("the commit was cancelled; make a new producer"))
            raise
        # ALREADY_COMMITTED is success: an earlier try of this commit was taken, its answer lost.
        # OLDER means that another producer of this id is ahead.
        if result.outcome is CommitOutcome.OLDER:
            failure = OutcomeUnknown(f"batch {result.last_batch_id} was committed by another")
            self._end(failed=failure)
            raise failure
        for consumer, _, offsets in self._consumers:
            consumer.was_committed(offsets)
        self.committed = True
        self._end(committed=self.batch_id)
        return winner.records

    def _check_member(self, consumer: Consumer) -> None:
        if consumer.gave_up_since(self._began_ms):
            raise MemberFenced(
                f"group {consumer.group}: partitions were given up since the transaction began"
            )

    async def _failed_commit(self, error: LakeMQError) -> None:
        # An abort now could come behind a commit that was taken, and make the consumer handle its
        # records twice: only a new producer, which fences this one, finds out.
        if error.retriable:  # it may have been taken
            self._end(failed=OutcomeUnknown(f"no answer to the last commit: {error}"))
        else:
            await self.abort()

    def _offsets(self) -> list[CommitOffsetsRequest]:
        """Made for every try, for a member's commits carry a growing sequence."""
        requests = list(self._groups)
        for consumer, member_id, offsets in self._consumers:
            # Asked at every try: a rebalance during the retries would commit offsets that are
            # another member's by now.
            self._check_member(consumer)
            if consumer.member_id != member_id:
                raise UnknownMember("the session of the consumer ended before the commit")
            requests.append(consumer.commit_request(offsets))
        return requests

    async def abort(self) -> None:
        """Discard everything. Whether or not the broker hears of it now, nothing takes effect."""
        if not self._ended:
            with self._told("abort"):
                await self._abort()

    async def _abort(self) -> None:
        await self._writer.close()
        # Ended before anything is awaited again: whatever the broker answers, the records can't
        # appear, since no commit names them.
        self._end()
        if self._consumer is not None:
            self._consumer.rewind()
        try:
            await self._staging.abort(self._producer.session, self.batch_id)
        except LakeMQError as error:
            # Fenced, for instance. If the broker did not answer, the staged batches expire by
            # themselves.
            if not error.retriable:
                self._producer.ended(failed=error)

    def _end(self, *, committed: int | None = None, failed: LakeMQError | None = None) -> None:
        self._ended = True
        self._producer.ended(committed=committed, failed=failed)
