"""Compaction: small files of a table are merged, rows and offsets unchanged.

Runs between two commits, in the process that exports. It is an attempt like any other: its files
lie in an attempt folder, and its commit moves the attempt number, so a crash leaves orphans that
the next run deletes. If another writer changed the table meanwhile, it is abandoned, not retried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lakemq.spark_plugin.errors import TableError
from lakemq.spark_plugin.export.tables.delta_table import DeltaLakeTable
from lakemq.spark_plugin.export.tables.file_writer import FileWriter
from lakemq.spark_plugin.export.tables.files import Folder, attempt_folder, new_token
from lakemq.spark_plugin.export.tables.table import (
    ExportKey,
    LakeTable,
    LiveFile,
    Progress,
    TableConflict,
    WrittenFile,
)

if TYPE_CHECKING:
    import pyarrow as pa

_MEMORY_BATCH_ROWS = 65_536


@dataclass(frozen=True)
class Compacted:
    """What a compaction did."""

    removed: int
    added: int


def choose(files: Sequence[LiveFile], file_bytes: int) -> list[list[LiveFile]]:
    """Groups of at least two files smaller than half of `file_bytes`, of the same partition, that
    together make about one file. Order is kept."""
    groups: list[list[LiveFile]] = []
    open_groups: dict[tuple[str | None, ...], list[LiveFile]] = {}
    for file in files:
        # Larger ones stay: rewriting them costs more than it saves.
        if file.size_bytes >= file_bytes // 2:
            continue
        group = open_groups.setdefault(file.partition_values, [])
        group.append(file)
        if sum(each.size_bytes for each in group) >= file_bytes:
            groups.append(open_groups.pop(file.partition_values))
    return [group for group in [*groups, *open_groups.values()] if len(group) > 1]


def compact(
    table: LakeTable, key: ExportKey, epoch: int, *, files_max: int, file_bytes: int
) -> Compacted | None:
    """Compact if the table has more than `files_max` small files; None if not, or if another
    writer got in between."""
    groups = choose(table.live_files(), file_bytes)
    if sum(map(len, groups)) <= files_max:
        return None
    try:
        if isinstance(table, DeltaLakeTable):
            return Compacted(*table.compact(file_bytes))
        return _rewrite(table, key, epoch, groups, file_bytes)
    except TableConflict:
        table.reload()
        return None


def _rewrite(
    table: LakeTable, key: ExportKey, epoch: int, groups: list[list[LiveFile]], file_bytes: int
) -> Compacted:
    before = table.progress(key)
    # Another process took over, and deletes folders of earlier epochs as orphans.
    if before.epoch != epoch:
        raise TableConflict(f"epoch {before.epoch} began after {epoch}")
    after = replace(before, attempt=before.attempt + 1, commit=new_token())
    folder = Folder(table.location, table.storage)
    attempt_path = attempt_folder(key, epoch, after.attempt)
    folder.create(attempt_path)
    schema = table.arrow_schema()
    written: list[WrittenFile] = []
    for number, group in enumerate(groups):
        files = _write_together(folder, attempt_path, f"c{number:05d}", schema, group, file_bytes)
        # Checked before the commit, for the old files are deleted in the end.
        if sum(file.rows for file in files) != sum(file.rows for file in group):
            raise TableError(f"{table.location}: rows were lost in compaction; nothing was changed")
        written += files
    folder.sync(attempt_path)
    removed = [file for group in groups for file in group]
    try:
        table.append(key, written, after, removed)
    except TableConflict:
        # Not applied, for sure; compaction is not urgent, so it is given up.
        folder.delete(attempt_path)
        raise
    except Exception:
        # The answer was lost, perhaps not the commit.
        if not _is_committed(table, key, after):
            raise
    return Compacted(len(removed), len(written))


def _is_committed(table: LakeTable, key: ExportKey, after: Progress) -> bool:
    table.reload()
    return table.progress(key).commit == after.commit


def _write_together(
    folder: Folder,
    attempt_path: str,
    name: str,
    schema: pa.Schema,
    group: Sequence[LiveFile],
    file_bytes: int,
) -> list[WrittenFile]:
    import pyarrow as pa
    from pyarrow import dataset

    values = group[0].partition_values
    writer = FileWriter(folder, attempt_path, name, schema, 2 * file_bytes, values)
    for file in group:
        # The schema fills in columns, and casts types, that came after the file.
        old = dataset.dataset([file.path], schema, "parquet", filesystem=folder.filesystem)
        for batch in old.to_batches(use_threads=False, batch_size=_MEMORY_BATCH_ROWS):
            writer.write(pa.Table.from_batches([batch]))
    return writer.close()
