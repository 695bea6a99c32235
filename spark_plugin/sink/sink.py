"""The Spark sink: `df.write` and `df.writeStream` with `format("lakemq")`.

Each row is written exactly once. Tasks stage records at the broker, where no consumer sees them;
the driver's commit names, for every task, the one attempt whose records become readable, all at
once. The broker stores the number of the newest commit of a sink, so a batch that Spark runs again
after a crash is recognised as committed. Other attempts, and those of a driver that died, are
discarded.

Spark makes writers in three places: where a write is planned (the writer then travels to the
executors), where a stream's batch is committed (another writer, with only the tasks' messages), and
where a batch write is committed (the writer that travelled). So the sink is opened, which fences
its earlier writers, at the moment when a writer is first pickled, and what the commit needs
to know comes with the messages.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from lakemq.plugins.native.sdk import (
    BatchCommitted,
    Compression,
    NotAuthorized,
    SinkHandle,
    StagedWinner,
    TopicExists,
    UnknownTopic,
)
from lakemq.spark_plugin.errors import ExportError, OptionError
from lakemq.spark_plugin.plain_errors import plainly
from lakemq.spark_plugin.sink.options import SinkOptions
from lakemq.spark_plugin.sink.rows import check_columns, shares
from lakemq.spark_plugin.source.broker_reader import client_of, retrying

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_ID = "streaming.sql.batchId"


@dataclass
class Staged(WriterCommitMessage):
    """What one task staged; travels pickled from an executor to the driver."""

    session: tuple[Any, ...]
    batch_id: int
    winner: tuple[int, ...] | None
    """None: the batch was committed before, and nothing was staged."""


class _Sink:
    """What both writers share: options, the open sink, and writing a task's rows."""

    streaming = False

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self.options = options
        check_columns([(each.name, each.dataType.simpleString()) for each in schema], options.topic)
        self._session: SinkHandle | None = None
        self._name = ""

    def sink_name(self) -> str:
        raise NotImplementedError

    @plainly
    def __getstate__(self) -> dict[str, Any]:
        """Pickled for the executors: the moment to open the sink."""
        if self._session is None:
            find_topic(self.options)
            self._name = self.sink_name()
            client = client_of(self.options.bootstrap, self.options.access)
            self._session = client.staging.open_sink(
                self._name, timeout_ms=self.options.staging_timeout_ms
            )
        return dict(self.__dict__)

    def stage(self, iterator: Iterator[pa.RecordBatch], batch_id: int) -> Staged:
        """Write one task's rows, in an executor. Raises OptionError for a batch older than the
        newest committed one."""
        session = self._session
        context = TaskContext.get()
        if session is None or context is None:
            raise AssertionError("rows are written in Spark's executors")
        # A query that continues repeats its last batch: Spark may have died between this sink's
        # commit and the entry in its own commit log.
        if batch_id <= session.last_batch_id:
            check_replayed(self._name, batch_id, session.last_batch_id)
            for _ in iterator:  # Spark wants its rows taken
                pass
            return Staged(tuple(session), batch_id, None)
        client = client_of(self.options.bootstrap, self.options.access)
        # A stage that runs again numbers its attempts from 0 again; these ids never repeat.
        attempt = context.taskAttemptId() & 0x7FFFFFFF
        try:
            with client.staging.writer(
                session,
                batch_id,
                context.partitionId(),
                attempt,
                compression=Compression[self.options.compression.upper()],
                batch_max_bytes=self.options.batch_bytes,
            ) as writer:
                for batch in iterator:
                    for share in shares(batch, self.options.topic, time.time_ns() // 1_000_000):
                        writer.send_arrow(share.topic, share.rows, partition=share.partition)
                winner = writer.finish()
        except BatchCommitted:  # another attempt of this task, still running after the commit
            return Staged(tuple(session), batch_id, None)
        return Staged(tuple(session), batch_id, tuple(winner))

    def commit_staged(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit what the tasks staged, in the driver. ExportError if only some tasks found the
        batch committed."""
        staged = [each for each in messages if isinstance(each, Staged)]
        winners = [StagedWinner(*each.winner) for each in staged if each.winner is not None]
        # Either all tasks staged or all found the batch committed: they share the handle, and with
        # it the newest batch id.
        if not staged or len(winners) < len(staged):
            if winners:
                raise ExportError("some tasks of a batch found it committed, others did not")
            return
        session = SinkHandle(*staged[0].session)
        client = client_of(self.options.bootstrap, self.options.access)
        client.staging.commit(session, staged[0].batch_id, [w for w in winners if w.batches])

    def abort_staged(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abort what was staged; what is not known here expires at the broker."""
        for each in messages:
            if isinstance(each, Staged):
                client = client_of(self.options.bootstrap, self.options.access)
                # Once is enough: an abort discards all attempts of the batch.
                client.staging.abort(SinkHandle(*each.session), each.batch_id)
                return


def check_replayed(name: str, batch_id: int, last_batch_id: int) -> None:
    """OptionError unless the batch is new or the last one: a query that continues from its
    checkpoint repeats at most its last batch."""
    if batch_id < last_batch_id:
        raise OptionError(
            f"sink {name} has batch {last_batch_id}, and this write is batch {batch_id}: "
            "the query's checkpoint is new or an older copy. To write its rows again, give another "
            "sinkId"
        )


class BatchWriter(_Sink, DataSourceArrowWriter):
    """`df.write.format("lakemq")`. Without `sinkId` every write is one of its own."""

    def sink_name(self) -> str:
        """Option `sinkId`, or a random name of this write alone."""
        return self.options.sink_id or f"spark-batch-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage one task's rows (Spark calls it in an executor)."""
        return self.stage(iterator, self._batch_id())

    def _batch_id(self) -> int:
        if self.options.batch_id is not None:
            return self.options.batch_id
        assert self._session is not None
        return self._session.last_batch_id + 1

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit what all tasks staged (Spark calls it once, in the driver)."""
        self.commit_staged(messages)
        self._delete_unnamed()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Discard what the tasks staged: the job failed."""
        self.abort_staged(messages)
        self._delete_unnamed()

    def _delete_unnamed(self) -> None:
        """Delete the sink if it had no `sinkId`: it cannot be used again."""
        if not self.options.sink_id and self._name:
            client_of(self.options.bootstrap, self.options.access).staging.delete(
                "sink", self._name
            )


class StreamWriter(_Sink, DataSourceStreamArrowWriter):
    """`df.writeStream.format("lakemq")`: the sink is named after the query, whose id is in its
    checkpoint, so a new checkpoint is a new sink."""

    def sink_name(self) -> str:
        """`sinkId` and the query's id, joined by a dot. OptionError if there is neither."""
        query = query_id(self.options.checkpoint)
        if not query and not self.options.sink_id:
            raise OptionError(
                "give the checkpoint as option checkpointLocation of the writer, or name the sink "
                "with sinkId, a name for what this query writes"
            )
        return ".".join(filter(None, (self.options.sink_id, query)))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage one task's rows under Spark's number of the micro-batch."""
        context = TaskContext.get()
        number = context.getLocalProperty(_BATCH_ID) if context is not None else None
        if number is None:
            raise AssertionError("Spark does not say which batch this is")
        return self.stage(iterator, int(number))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit what the tasks of a micro-batch staged; one that was committed before stays as it
        is."""
        self.commit_staged(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Discard what the tasks of a micro-batch staged."""
        self.abort_staged(messages)


def query_id(checkpoint: str) -> str:
    """Id of the query that a checkpoint belongs to; empty if it can't be read from here."""
    import pyarrow as pa
    from pyarrow import fs

    if not checkpoint:
        return ""
    uri = checkpoint.replace("s3a://", "s3://", 1).rstrip("/")
    if uri.startswith("file:/") and not uri.startswith("file://"):
        uri = "file://" + uri.removeprefix("file:")
    try:
        files, path = fs.FileSystem.from_uri(uri)
    except (pa.ArrowException, ValueError):
        files, path = fs.LocalFileSystem(), uri
    try:
        with files.open_input_stream(f"{path}/metadata") as file:
            return str(json.loads(file.read())["id"])
    except (OSError, ValueError, KeyError, pa.ArrowException):
        return ""


def find_topic(options: SinkOptions) -> None:
    """OptionError, in the driver, if the topic of option `topic` is missing; created with option
    `createTopic`. Who may write and not describe is told by the write itself."""
    if not options.topic:
        return
    client = client_of(options.bootstrap, options.access)
    try:
        retrying(lambda: client.describe_topic(options.topic), options.retry_timeout_s)
    except NotAuthorized:
        return
    except UnknownTopic:
        if not options.create_partitions:
            raise OptionError(
                f"there is no topic {options.topic} at {options.bootstrap}: create it, or give its "
                "number of partitions as option createTopic"
            ) from None
        with contextlib.suppress(TopicExists):  # another writer was quicker
            client.create_topic(options.topic, partitions=options.create_partitions)


def batch_writer(options: SinkOptions, schema: StructType, overwrite: bool) -> BatchWriter:
    """OptionError for mode overwrite: a topic is appended to."""
    if overwrite:
        raise OptionError('a topic can only be appended to: use mode("append")')
    return BatchWriter(options, schema)
