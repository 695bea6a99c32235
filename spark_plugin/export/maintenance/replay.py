"""Replay of dead letters: those that can be decoded now are written to the table, each once.

Whether a dead letter was written before is read from the table itself, by partition and offset. The
rows come in one commit under a new epoch, so no export of that name can run at the same time. Dead
letters are never deleted: they are the record of what happened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakemq.spark_plugin.export.decoding.decoder import BadRow
from lakemq.spark_plugin.export.job.runs import Run, merge, outside
from lakemq.spark_plugin.export.job.task_results import TaskResult
from lakemq.spark_plugin.export.job.write_task import WriteTask, write
from lakemq.spark_plugin.export.maintenance.audit import table_rows
from lakemq.spark_plugin.export.tables.files import Folder
from lakemq.spark_plugin.export.tables.table import ExportKey, LakeTable, WrittenFile

if TYPE_CHECKING:
    import pyarrow as pa

    from lakemq.spark_plugin.export.decoding.sparkplug_values import FindBirths

_BATCH_ROWS = 32_768


@dataclass(frozen=True)
class Replayed:
    """Outcome; together these are all dead letters of the topic."""

    landed: int
    before: int
    """Written by an earlier replay."""
    still_bad: int
    left_out: int = 0
    """Decoded, but filtered out by the export's query."""


class DeadLetterReplay:
    """The dead letters of one export, as they are replayed."""

    def __init__(
        self,
        key: ExportKey,
        tables: Sequence[LakeTable],
        dlq: LakeTable,
        offsets: Mapping[int, int],
    ) -> None:
        """`tables`: where letters may have been written to. TableError if one has no offsets."""
        self._key = key
        self._dlq = dlq
        self._offsets = offsets
        self._there = landed_offsets(key, tables)
        self._fresh = self._before = 0
        self._bad = _CountedBad()

    def write(self, task: WriteTask, find_births: FindBirths) -> list[TaskResult]:
        """Write the rows of those that have not landed yet, as the task says."""
        # Called again when columns were added: the counts are those of the last round.
        self._fresh = self._before = 0
        self._bad = _CountedBad()
        return list(write(task, "replay", self._batches(), self._bad, find_births))

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for fresh, there in pending_letters(self._key, self._there, self._dlq, self._offsets):
            self._before += there
            self._fresh += fresh.num_rows
            if fresh.num_rows:
                yield fresh

    @property
    def good(self) -> int:
        """How many are not in the tables yet and can be decoded now."""
        return self._fresh - self._bad.count

    def outcome(self, tables: Sequence[LakeTable]) -> Replayed:
        """After the commit."""
        there_now = landed_offsets(self._key, tables)
        letters = pending_letters(self._key, there_now, self._dlq, self._offsets)
        landed = sum(there for _, there in letters) - self._before
        return Replayed(landed, self._before, self._bad.count, self.good - landed)


class _CountedBad:
    """Takes the letters that are still bad, and only counts them."""

    def __init__(self) -> None:
        self.count = 0

    def write(self, batch: pa.RecordBatch, bad: Sequence[BadRow]) -> int:
        self.count += len(bad)
        return 0

    def close(self) -> list[WrittenFile]:
        return []


def landed_offsets(key: ExportKey, tables: Sequence[LakeTable]) -> dict[int, list[Run]]:
    """Partition -> offsets of the topic that are in one of the tables (normal)."""
    runs: dict[int, list[Run]] = {}
    for table in tables:
        for partition, rows in table_rows(table, key.topic, False)[0].items():
            runs.setdefault(partition, []).extend(rows)
    return {partition: merge(rows)[0] for partition, rows in runs.items()}


def pending_letters(
    key: ExportKey,
    there: Mapping[int, list[Run]],
    dlq: LakeTable,
    offsets: Mapping[int, int],
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Dead letters that are not `there`, and how many beside them are. Those at or above the
    export's next offsets are left to the export, which reads their records again."""
    everything = {partition: [Run(0, offset)] for partition, offset in offsets.items()}
    for batch in _dead_letters(dlq, key):
        mine = batch.filter(_in(batch, everything))
        fresh = mine.filter(_not_in(mine, there))
        yield fresh, mine.num_rows - fresh.num_rows


def _dead_letters(dlq: LakeTable, key: ExportKey) -> Iterator[pa.RecordBatch]:
    """Dead letters of the topic id, without those of a deleted topic of the same name."""
    from pyarrow import dataset

    paths = dlq.data_files()
    if not paths:
        return
    files = dataset.dataset(
        paths, format="parquet", filesystem=Folder(dlq.location, dlq.storage).filesystem
    )
    for batch in files.to_batches(
        filter=dataset.field("topic_id") == key.topic_id, use_threads=False, batch_size=_BATCH_ROWS
    ):
        if batch.num_rows:
            yield batch


def _not_in(batch: pa.RecordBatch, there: Mapping[int, list[Run]]) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    partitions = batch.column("partition").to_numpy()
    offsets = batch.column("offset").to_numpy()
    fresh = np.ones(len(offsets), dtype=bool)
    for partition, runs in there.items():
        mine = partitions == partition
        fresh[mine] = outside(offsets[mine], runs)
    return pa.array(fresh)


def _in(batch: pa.RecordBatch, runs: Mapping[int, list[Run]]) -> pa.Array:
    from pyarrow import compute

    return compute.invert(_not_in(batch, runs))
