"""Staged batches and transactions for blocking programs."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from lakemq.broker_core.api.errors import InvalidRequest
from lakemq.broker_core.api.types import Compression, TopicPartition
from lakemq.plugins.native.sdk.blocking.consumer import SyncConsumer
from lakemq.plugins.native.sdk.blocking.portal import Facade, blocking
from lakemq.plugins.native.sdk.transactions.staging import SinkHandle, StagedWriter, Staging
from lakemq.plugins.native.sdk.transactions.transaction import Transaction, TransactionalProducer


class SyncStagedWriter(Facade[StagedWriter]):
    """Made by `SyncStaging.writer`: as `StagedWriter`, but blocking; a context manager."""

    send = blocking(StagedWriter.send)
    send_batch = blocking(StagedWriter.send_batch)
    send_arrow = blocking(StagedWriter.send_arrow)
    finish = blocking(StagedWriter.finish)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end(StagedWriter.close)


class SyncStaging(Facade[Staging]):
    """Made by `SyncClient.staging`: as `Staging`, but blocking."""

    open_sink = blocking(Staging.open_sink)
    abort = blocking(Staging.abort)
    commit = blocking(Staging.commit)
    owners = blocking(Staging.owners)
    fence = blocking(Staging.fence)
    delete = blocking(Staging.delete)

    def writer(
        self,
        session: SinkHandle,
        batch_id: int,
        task: int,
        attempt: int = 0,
        *,
        compression: Compression | str = Compression.NONE,
        batch_max_bytes: int = 1024 * 1024,
        buffer_max_bytes: int = 32 * 1024 * 1024,
    ) -> SyncStagedWriter:
        """As `Staging.writer`; a context manager."""

        async def made(inner: Staging) -> StagedWriter:
            return inner.writer(
                session,
                batch_id,
                task,
                attempt,
                compression=compression,
                batch_max_bytes=batch_max_bytes,
                buffer_max_bytes=buffer_max_bytes,
            )

        return SyncStagedWriter(self._runner, self._call(made))


class SyncTransaction(Facade[Transaction]):
    """Made by `SyncTransactionalProducer.transaction`: as `Transaction`, but blocking."""

    send = blocking(Transaction.send)
    send_batch = blocking(Transaction.send_batch)
    send_arrow = blocking(Transaction.send_arrow)
    commit = blocking(Transaction.commit)
    abort = blocking(Transaction.abort)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end(lambda inner: inner.__aexit__(kind, error, trace))

    def commit_offsets(
        self, group: SyncConsumer | str, offsets: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """As `Transaction.commit_offsets`."""
        found = group.consumer if isinstance(group, SyncConsumer) else group

        async def commit_offsets(inner: Transaction) -> None:
            inner.commit_offsets(found, offsets)

        self._call(commit_offsets)


class SyncTransactionalProducer(Facade[TransactionalProducer]):
    """Made by `SyncClient.transactional_producer`: as `TransactionalProducer`, but blocking; a
    context manager."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end(TransactionalProducer.close)

    @property
    def last_batch_id(self) -> int:
        """Number of the newest transaction that was committed."""
        return self._inner.last_batch_id

    def transaction(self, consumer: SyncConsumer | None = None) -> SyncTransaction:
        """As `TransactionalProducer.transaction`; a context manager. `consumer`: of the same
        client."""
        if consumer is not None and consumer._runner is not self._runner:
            raise InvalidRequest(
                "the consumer belongs to another client; subscribe with the client of the producer"
            )
        found = None if consumer is None else consumer.consumer

        async def begin(inner: TransactionalProducer) -> Transaction:
            return inner.transaction(found)

        return SyncTransaction(self._runner, self._call(begin))
