"""Staged batches and transactions without asyncio: the work runs in a thread of its own."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from lakemq.broker_core.api.types import Columns, Compression, Headers, TopicPartition
from lakemq.plugins.native.sdk.blocking.consumer import SyncConsumer
from lakemq.plugins.native.sdk.blocking.loop_runner import LoopRunner
from lakemq.plugins.native.sdk.client.client import Client, beside
from lakemq.plugins.native.sdk.transactions.staging import (
    CommitResult,
    StagedWinner,
    StagedWriter,
    StagingOwner,
    StagingSession,
)
from lakemq.plugins.native.sdk.transactions.transaction import Transaction, TransactionalProducer
from lakemq.plugins.native.sdk.types import NewRecord

if TYPE_CHECKING:
    import pyarrow as pa

    from lakemq.plugins.native.sdk.blocking.client import SyncClient

_T = TypeVar("_T")


class LoopThread:
    """An event loop in a thread, and a client of its own on it. Safe to share between threads."""

    def __init__(self, client: SyncClient) -> None:
        self._runner = LoopRunner()
        try:
            self.client = self.run(self._make(client))
        except BaseException:
            self._runner.close()
            raise

    @staticmethod
    async def _make(client: SyncClient) -> Client:
        return await beside(client)

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Wait for it, here."""
        return self._runner.run(work)

    def close(self) -> None:
        try:
            self.run(self.client.close())
        finally:
            self._runner.close()


class SyncStaging:
    """Made by `SyncClient.staging`: `Staging` without asyncio."""

    def __init__(self, thread: LoopThread) -> None:
        self._thread = thread
        self._staging = thread.client.staging

    def open_sink(self, sink_id: str, *, timeout_ms: int = 0) -> StagingSession:
        """As `Staging.open_sink`."""
        return self._thread.run(self._staging.open_sink(sink_id, timeout_ms=timeout_ms))

    def writer(
        self,
        session: StagingSession,
        batch_id: int,
        task: int,
        attempt: int = 0,
        *,
        compression: Compression | str = Compression.NONE,
        batch_max_bytes: int = 1024 * 1024,
        buffer_max_bytes: int = 32 * 1024 * 1024,
    ) -> SyncStagedWriter:
        """As `Staging.writer`; a context manager."""
        writer = self._staging.writer(
            session, batch_id, task, attempt, compression=compression,
            batch_max_bytes=batch_max_bytes, buffer_max_bytes=buffer_max_bytes,
        )  # fmt: skip
        return SyncStagedWriter(self._thread, writer)

    def commit(
        self, session: StagingSession, batch_id: int, winners: Sequence[StagedWinner]
    ) -> CommitResult:
        """As `Staging.commit`."""
        return self._thread.run(self._staging.commit(session, batch_id, winners))

    def abort(self, session: StagingSession, batch_id: int) -> None:
        """As `Staging.abort`."""
        self._thread.run(self._staging.abort(session, batch_id))

    def owners(self) -> list[StagingOwner]:
        """As `Staging.owners`."""
        return self._thread.run(self._staging.owners())

    def fence(self, kind: str, name: str) -> None:
        """As `Staging.fence`."""
        self._thread.run(self._staging.fence(kind, name))

    def forget(self, kind: str, name: str) -> None:
        """As `Staging.forget`."""
        self._thread.run(self._staging.forget(kind, name))


class SyncStagedWriter:
    """Made by `SyncStaging.writer`: `StagedWriter` without asyncio."""

    def __init__(self, thread: LoopThread, writer: StagedWriter) -> None:
        self._thread = thread
        self._writer = writer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._thread.run(self._writer.close())

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> None:
        """As `StagedWriter.send`; for many records `send_batch` is far quicker."""
        self._thread.run(
            self._writer.send(
                topic, value, key=key, headers=headers, timestamp_ms=timestamp_ms,
                partition=partition,
            )
        )  # fmt: skip

    def send_batch(
        self, topic: str, records: Columns | Sequence[NewRecord], *, partition: int | None = None
    ) -> None:
        """As `StagedWriter.send_batch`."""
        self._thread.run(self._writer.send_batch(topic, records, partition=partition))

    def send_arrow(
        self, topic: str, table: pa.Table | pa.RecordBatch, *, partition: int | None = None
    ) -> None:
        """As `StagedWriter.send_arrow`."""
        self._thread.run(self._writer.send_arrow(topic, table, partition=partition))

    def finish(self) -> StagedWinner:
        """As `StagedWriter.finish`."""
        return self._thread.run(self._writer.finish())


class SyncTransactionalProducer:
    """Made by `SyncClient.transactional_producer`; a context manager."""

    def __init__(self, thread: LoopThread, producer: TransactionalProducer) -> None:
        self._thread = thread
        self._producer = producer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._thread.run(self._producer.close())

    @property
    def last_batch_id(self) -> int:
        """Number of the newest transaction that was committed."""
        return self._producer.last_batch_id

    def transaction(self, consumer: SyncConsumer | None = None) -> SyncTransaction:
        """As `TransactionalProducer.transaction`; a context manager."""
        return SyncTransaction(self._thread, self._producer.transaction(), consumer)


class SyncTransaction:
    """`Transaction` without asyncio."""

    def __init__(
        self, thread: LoopThread, transaction: Transaction, consumer: SyncConsumer | None
    ) -> None:
        self._thread = thread
        self._transaction = transaction
        self._consumer = consumer
        self._ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._ended:
            return
        if error is None:
            self.commit()
        else:
            self.abort()

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> None:
        """As `Transaction.send`; for many records `send_batch` is far quicker."""
        self._thread.run(
            self._transaction.send(
                topic, value, key=key, headers=headers, timestamp_ms=timestamp_ms,
                partition=partition,
            )
        )  # fmt: skip

    def send_batch(
        self, topic: str, records: Columns | Sequence[NewRecord], *, partition: int | None = None
    ) -> None:
        """As `Transaction.send_batch`."""
        self._thread.run(self._transaction.send_batch(topic, records, partition=partition))

    def send_arrow(
        self, topic: str, table: pa.Table | pa.RecordBatch, *, partition: int | None = None
    ) -> None:
        """As `Transaction.send_arrow`."""
        self._thread.run(self._transaction.send_arrow(topic, table, partition=partition))

    def commit_offsets(
        self, group: SyncConsumer | str, offsets: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """As `Transaction.commit_offsets`."""
        found = group.consumer if isinstance(group, SyncConsumer) else group
        self._transaction.commit_offsets(found, offsets)

    def commit(self) -> None:
        """As `Transaction.commit`."""
        self._ended = True
        try:
            if self._consumer is not None:
                self.commit_offsets(self._consumer)
            self._thread.run(self._transaction.commit())
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """As `Transaction.abort`."""
        self._ended = True
        self._thread.run(self._transaction.abort())
        if self._consumer is not None and not self._transaction.committed:
            self._consumer.rewind()
