"""Stored batches that a task read only the beginning of, for the next task of this process.

A micro-batch that is cut by rows ends within a stored batch. Without this the next one has the
broker send all of it again: one of 10,000 records ten times for micro-batches of 1,000.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from lakemq.plugins.native.sdk import RecordBatch
from lakemq.spark_plugin.source.planning import OffsetRange

BYTES_MAX: Final = 16 << 20
SECONDS_MAX: Final = 60.0
"""As long as Spark keeps a Python worker that has nothing to do."""
_Partition = tuple[str, str, int]


class _Kept(NamedTuple):
    batch: RecordBatch
    size: int
    until_s: float


class KeptBatches:
    """One batch a partition: no older than `SECONDS_MAX`, no more than `BYTES_MAX` together. For
    one thread."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        # In the order in which they came, so that the oldest are dropped.
        self._kept: dict[_Partition, _Kept] = {}

    @property
    def bytes_held(self) -> int:
        """What stays in memory for them."""
        return sum(each.size for each in self._kept.values())

    def through(
        self, wanted: OffsetRange, read: Callable[[OffsetRange], Iterator[RecordBatch]]
    ) -> Iterator[RecordBatch]:
        """What `read(wanted)` gives: the first batch from here if it was kept, and `read` for the
        rest. Keeps the last one if there is more in it than the range."""
        partition = wanted.topic, wanted.topic_id, wanted.partition
        self._drop()
        kept = self._kept.get(partition)
        last, offset = None, wanted.start
        if kept is not None and _holds(kept.batch, offset):
            last, offset = kept.batch, kept.batch.header.last_offset + 1
            yield last
        for last in read(wanted._replace(start=offset)) if offset < wanted.end else ():
            yield last
        if last is not None:
            self._keep(partition, last if _holds(last, wanted.end) else None)

    def _keep(self, partition: _Partition, batch: RecordBatch | None) -> None:
        before = self._kept.get(partition)
        if before is not None and before.batch is batch:
            return  # as old as it was
        self._kept.pop(partition, None)
        if batch is not None:
            self._kept[partition] = _Kept(batch, _size(batch), self._now_s() + SECONDS_MAX)
            self._drop()

    def _drop(self) -> None:
        """The oldest, as long as they are too old or all are too large together."""
        held, now_s = self.bytes_held, self._now_s()
        for partition, each in list(self._kept.items()):
            if held <= BYTES_MAX and now_s < each.until_s:
                return
            held -= each.size
            del self._kept[partition]


def _holds(batch: RecordBatch, offset: int) -> bool:
    return batch.header.base_offset <= offset <= batch.header.last_offset


def _size(batch: RecordBatch) -> int:
    """What stays in memory with the batch: all of the answer that it came in."""
    view = batch.view
    return memoryview(view.obj).nbytes if isinstance(view, memoryview) else len(view)
