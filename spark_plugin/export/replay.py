"""Replay of dead letters: those that decode by now land in the table, each once. Edge: tables.

Whether a dead letter has landed is read from the table itself: its partition and offset are there.
The rows come in one commit under a new epoch, so no export of that name can run at the same time.
Dead letters are never deleted: they tell what happened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_plugin.export.audit import table_rows
from spark_plugin.export.decoding import Decoder
from spark_plugin.export.file_writer import PartitionedWriter
from spark_plugin.export.files import Folder
from spark_plugin.export.partitioning import PartitionField
from spark_plugin.export.rows import with_meta_column
from spark_plugin.export.runs import Run, merge, outside
from spark_plugin.export.table import ExportKey, LakeTable, WrittenFile

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_ROWS = 32_768


@dataclass(frozen=True)
class Replayed:
    """Outcome; the three together are all dead letters of the topic."""

    landed: int
    before: int
    """Landed in an earlier replay."""
    still_bad: int


def write_decodable(
    key: ExportKey,
    table: LakeTable,
    dlq: LakeTable,
    place: str,
    decoder: Decoder,
    parts: bool,
    fields: Sequence[PartitionField],
    offsets: Mapping[int, int],
) -> tuple[list[WrittenFile], Replayed]:
    """Decode the dead letters that are not in the table, and write those that are good now to
    files in the folder `place` of the table's location."""
    writer = PartitionedWriter(
        Folder(table.location), place, "replay", table.arrow_schema(), 128 << 20, fields
    )
    landed = before = bad = 0
    for fresh, there in fresh_letters(key, [table], dlq, offsets):
        before += there
        if not fresh.num_rows:
            continue
        decoded = decoder.decode(fresh.column("value"), fresh.column("key"))
        writer.write(with_meta_column(decoded, fresh, parts))
        landed += fresh.num_rows - len(decoded.bad)
        bad += len(decoded.bad)
    return writer.close(), Replayed(landed, before, bad)


def fresh_letters(
    key: ExportKey, tables: Sequence[LakeTable], dlq: LakeTable, offsets: Mapping[int, int]
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Dead letters that are in none of the tables, and how many beside them are. Those at or above
    the export's next offsets are left to the export, which reads their records again."""
    runs: dict[int, list[Run]] = {}
    for table in tables:
        for partition, rows in table_rows(table, key.topic, False)[0].items():
            runs.setdefault(partition, []).extend(rows)
    there = {partition: merge(rows)[0] for partition, rows in runs.items()}
    everything = {partition: [Run(0, offset)] for partition, offset in offsets.items()}
    for batch in _dead_letters(dlq, key):
        mine = batch.filter(_in(batch, everything))
        fresh = mine.filter(_not_in(mine, there))
        yield fresh, mine.num_rows - fresh.num_rows


def _dead_letters(dlq: LakeTable, key: ExportKey) -> Iterator[pa.RecordBatch]:
    """Dead letters of the topic as it is now; those of a deleted namesake are not its records."""
    from pyarrow import dataset

    paths = dlq.data_files()
    if not paths:
        return
    files = dataset.dataset(paths, format="parquet", filesystem=Folder(dlq.location).filesystem)
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
