"""Batch and streaming readers of the Spark source.

Planning happens in Spark's driver (in a Python process of its own), reading in its executors.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from lakemq.plugins.native.sdk import UnknownTopic
from lakemq.spark_plugin.errors import OffsetsError
from lakemq.spark_plugin.plain_errors import plainly
from lakemq.spark_plugin.source import planning, pushdown
from lakemq.spark_plugin.source.broker_reader import (
    check_described,
    client_of,
    kept_for,
    read_arrow,
    retrying,
    view_of,
)
from lakemq.spark_plugin.source.offsets import (
    Cursor,
    TopicCursor,
    cursor_from_json,
    cursor_to_json,
)
from lakemq.spark_plugin.source.options import Boundary, ReadOptions
from lakemq.spark_plugin.source.planning import OffsetRange, TopicView
from lakemq.spark_plugin.worker_process import SentToWorker, freeze_imports

if TYPE_CHECKING:
    import pyarrow as pa


class RangePartition(InputPartition):
    """One Spark task: a range of offsets. Travels pickled from the driver to an executor."""

    def __init__(self, offsets: OffsetRange) -> None:
        super().__init__(tuple(offsets))
        self.offsets = offsets


class _JournalReader(SentToWorker):
    """What both readers share: the options, views of the journal, and reading a range."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self.options = options
        self.columns = columns

    def view(self) -> dict[str, TopicView]:
        """What the topics hold that the options ask for, now."""
        client = client_of(self.options.bootstrap, self.options.access)

        def look() -> dict[str, TopicView]:
            topics = client.topics()
            if self.options.topic_pattern is not None:
                topics = [each for each in topics if not each.is_internal]
            found = planning.select_topics(self.options, view_of(topics))
            check_described([each for each in topics if each.name in found])
            return found

        return retrying(look, self.options.retry_timeout_s)

    def resolve(
        self, boundary: Boundary, side: str, default: Cursor, view: dict[str, TopicView]
    ) -> dict[str, TopicCursor]:
        """Offsets of the user's boundary."""
        by_time = self._offsets_by_time(boundary, view) if boundary.by_timestamp else {}
        found = planning.resolve(boundary, side, default, view, by_time)
        strict = side == "starting" and not self.options.latest_when_no_timestamp
        if boundary.by_timestamp and strict:
            when = str(boundary.timestamp_ms or boundary.timestamps_ms)
            planning.check_timestamps_found(found, view, by_time, when)
        return found

    def _offsets_by_time(
        self, boundary: Boundary, view: dict[str, TopicView]
    ) -> dict[str, dict[int, int]]:
        asked = boundary.timestamps_ms
        if boundary.timestamp_ms is not None:
            asked = {
                name: dict.fromkeys(topic.partitions, boundary.timestamp_ms)
                for name, topic in view.items()
            }
        client = client_of(self.options.bootstrap, self.options.access)
        found: dict[str, dict[int, int]] = {}
        for name, times in asked.items():
            try:
                at = {
                    time_ms: client.offsets_for_timestamp(name, time_ms)
                    for time_ms in set(times.values())
                }
            except UnknownTopic:
                raise OffsetsError(f"there is no topic {name} to start at a timestamp") from None
            found[name] = {
                partition: at[time_ms].get(partition, 0) for partition, time_ms in times.items()
            }
        return found

    def plan(self, ranges: list[OffsetRange]) -> list[InputPartition]:
        """Split ranges into Spark partitions as the options ask."""
        pieces = planning.split(
            ranges,
            pieces_min=self.options.partitions_min,
            rows_max=self.options.partition_rows_max,
        )
        return [RangePartition(piece) for piece in pieces]

    def read_range(self, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        """The records of a range as Arrow batches, in an executor."""
        return read_arrow(
            client_of(self.options.bootstrap, self.options.access),
            wanted,
            columns=self.columns,
            batch_rows=self.options.batch_rows,
            fetch_bytes=self.options.fetch_bytes,
            retry_timeout_s=self.options.retry_timeout_s,
            fail_on_data_loss=self.options.fail_on_data_loss,
            tiered=self.options.access.tiered,
            kept=kept_for(self.options.bootstrap, self.options.access),
        )


class BatchReader(_JournalReader, DataSourceReader):
    """`spark.read.format("lakemq")`: a fixed range of offsets."""

    @plainly
    def partitions(self) -> list[InputPartition]:
        """Plan the read, in the driver: the ranges between the two boundaries, split into tasks.
        Raises OffsetsError for a boundary that the journal does not hold."""
        view = self.view()
        start = self.resolve(self.options.starting, "starting", planning.earliest(view), view)
        end = self.resolve(self.options.ending, "ending", planning.latest(view), view)
        planning.check_reached(start, "starting", view)
        planning.check_reached(end, "ending", view)
        start_held = planning.repair(start, view, self.options.fail_on_data_loss).cursor
        ranges = planning.ranges_between(start_held, end, planning.earliest(view))
        return self.plan(self.narrowed(ranges, view))

    def narrowed(self, ranges: list[OffsetRange], view: dict[str, TopicView]) -> list[OffsetRange]:
        """The ranges without offsets that pushed-down filters exclude."""
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task's range, in an executor."""
        # Spark calls with an InputPartition of its own when there is nothing to read.
        if isinstance(partition, RangePartition):
            yield from self.read_range(partition.offsets)
            freeze_imports()


class FilteringReader(BatchReader):
    """With option `pushdown`: takes filters, and reads less for them. Spark refuses readers with
    `pushFilters` while spark.sql.python.filterPushdown.enabled is false, so it is a class apart."""

    wanted = pushdown.Pushed()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Note the filters that narrow the read; returns all of them, so that Spark applies them
        too."""
        self.wanted = pushdown.pushed(filters)
        return filters  # Spark applies them all again

    def narrowed(self, ranges: list[OffsetRange], view: dict[str, TopicView]) -> list[OffsetRange]:
        """The ranges without partitions and offsets that the filters exclude."""
        found = pushdown.narrow(ranges, self.wanted)
        if self.wanted.since_ms is None:
            return found
        boundary = Boundary(timestamp_ms=self.wanted.since_ms)
        return pushdown.without_older(found, self._offsets_by_time(boundary, view))

    def read_range(self, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        """The records of a range, with the keys that the filters name if they name any."""
        return read_arrow(
            client_of(self.options.bootstrap, self.options.access),
            wanted,
            columns=self.columns,
            batch_rows=self.options.batch_rows,
            fetch_bytes=self.options.fetch_bytes,
            retry_timeout_s=self.options.retry_timeout_s,
            fail_on_data_loss=self.options.fail_on_data_loss,
            keys=self.wanted.keys,
            tiered=self.options.access.tiered,
        )


class StreamReader(_JournalReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("lakemq")`. Offsets that Spark checkpoints are cursors."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        super().__init__(options, columns)
        self._target: dict[str, TopicCursor] | None = None
        self._last_batch_s = time.monotonic()
        self._seen: dict[str, TopicView] | None = None
        """What the journal held when `latestOffset` was called last."""
        self._given: dict[str, Any] | None = None
        """What that call answered."""

    @plainly
    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint starts: option `startingOffsets`, by default the
        topics' ends."""
        view = self.view()
        latest = planning.latest(view)
        boundary = self.options.starting
        start = (
            self.resolve(boundary, "starting", latest, view) if boundary != Boundary() else latest
        )
        planning.check_reached(start, "starting", view)
        repaired = planning.repair(start, view, self.options.fail_on_data_loss)
        return cursor_to_json(repaired.cursor)

    def prepareForTriggerAvailableNow(self) -> None:
        """Note the ends of the partitions now: the query stops there."""
        self._target = planning.latest(self.view())

    def getDefaultReadLimit(self) -> ReadLimit:
        """Any limit but ReadAllAvailable makes `latestOffset` apply all of the options' limits:
        Spark has no limit that combines rows, bytes and delay."""
        if self.options.trigger_rows_max:
            return ReadMaxRows(self.options.trigger_rows_max)
        if self.options.trigger_max_bytes:
            return ReadMaxBytes(self.options.trigger_max_bytes)
        if self.options.trigger_rows_min:
            return ReadMinRows(self.options.trigger_rows_min)
        return ReadAllAvailable()

    @plainly
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next micro-batch within `limit`; `start` itself while there is too little
        to begin one."""
        # Spark asks `reportLatestOffset` and `partitions` within the same trigger: one view serves
        # all three.
        self._seen = view = self.view()
        self._given = self._next_end(start, limit, view)
        return self._given

    def _next_end(
        self, start: dict[str, Any], limit: ReadLimit, view: dict[str, TopicView]
    ) -> dict[str, Any]:
        before = cursor_from_json(start)
        # A checkpoint may be days old: what retention took since is reported before a batch is
        # planned over it.
        now = planning.repair(before, view, self.options.fail_on_data_loss).cursor
        end = self._end(view)
        options = self.options
        if not isinstance(limit, ReadAllAvailable):
            waited_s = time.monotonic() - self._last_batch_s
            if not planning.enough(
                planning.available(now, end),
                rows_min=options.trigger_rows_min,
                waited_s=waited_s,
                delay_max_s=options.trigger_delay_max_s,
                last_call=self._target is not None,
            ):
                return start
            end = planning.limit(
                now,
                end,
                view,
                rows_max=options.trigger_rows_max,
                bytes_max=options.trigger_max_bytes,
            )
        if planning.available(now, end):
            self._last_batch_s = time.monotonic()
        return cursor_to_json(end)

    def _end(self, view: dict[str, TopicView]) -> dict[str, TopicCursor]:
        """The ends of the partitions; with AvailableNow, as they were when the query began."""
        end = planning.latest(view)
        if self._target is None:
            return end
        # Without topics that were deleted since: nothing of them is left to read.
        return {name: topic for name, topic in self._target.items() if name in end}

    def reportLatestOffset(self) -> dict[str, Any]:
        """The ends of the partitions, as the trigger's `latestOffset` saw them, for Spark's
        metrics."""
        return cursor_to_json(planning.latest(self._seen or self.view()))

    @plainly
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan one micro-batch, in the driver; the same offsets each time it is run."""
        # A batch of an earlier run is planned before `latestOffset` was ever called.
        view = self._seen if self._seen is not None and end == self._given else self.view()
        strict = self.options.fail_on_data_loss
        first = planning.repair(cursor_from_json(start), view, strict).cursor
        last = cursor_from_json(end)
        if not strict:  # a planned batch is run again, but its topic is gone since
            last = planning.still_held(last, view)
        return self.plan(planning.ranges_between(first, last, planning.earliest(view)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task's range, in an executor."""
        if isinstance(partition, RangePartition):
            yield from self.read_range(partition.offsets)
            freeze_imports()

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: Spark's checkpoint holds the offsets."""

    def stop(self) -> None:
        """Nothing to do: the connection ends with the process."""
