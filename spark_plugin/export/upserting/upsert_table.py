"""The landing of an upsert: what changes a table's rows is one commit with the offsets.

Tasks stage rows and tombstones. The driver reduces them to one change for each key, writes the new
rows, reads the keys of the table's files, rewrites those that have rows to replace or delete, and
commits all of it. A commit of another writer in between makes it look
again at the files that are there then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lakemq.spark_plugin.errors import TableError
from lakemq.spark_plugin.export.job.evolving import decoded_schema
from lakemq.spark_plugin.export.job.landing import STAGED, Files, OneTable, Pause
from lakemq.spark_plugin.export.job.settings import ExportSettings
from lakemq.spark_plugin.export.job.task_results import DataFile, TaskResult
from lakemq.spark_plugin.export.job.write_task import (
    WriteTask,
    schema_from_text,
    schema_to_text,
)
from lakemq.spark_plugin.export.tables.file_writer import FileWriter, PartitionedWriter
from lakemq.spark_plugin.export.tables.partitioning import parse_partition_by
from lakemq.spark_plugin.export.tables.table import (
    ExportKey,
    LakeTable,
    LiveFile,
    Progress,
    WrittenFile,
)
from lakemq.spark_plugin.export.upserting.changes import (
    Changes,
    columns_read,
    reduce,
    staged_schema,
    stays,
)
from lakemq.spark_plugin.export.upserting.key import parse_key

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_ROWS = 65_536


class UpsertTable(OneTable):
    """One table with one row for each key."""

    def __init__(self, settings: ExportSettings, table: LakeTable, pause: Pause) -> None:
        super().__init__(settings, table, pause)
        self._key = parse_key(settings.upsert_key)
        self._fields = parse_partition_by(settings.partition_by)
        self._changes: Changes | None = None
        self._rewritten: list[WrittenFile] = []
        self._tries = 0

    @property
    def stages(self) -> bool:
        """Tasks write changes, not rows of the table."""
        return True

    def assign_destination(self, task: WriteTask) -> WriteTask:
        """The task with the folder of staged changes and their columns."""
        task = super().assign_destination(task)
        schema = schema_to_text(staged_schema(self._whole(schema_from_text(task.schema))))
        return replace(task, schema=schema, partition_by="")

    def _whole(self, schema: pa.Schema) -> pa.Schema:
        """Columns of data files, and those that Delta keeps in its log instead."""
        decoded = decoded_schema(self.settings)
        for field in self._fields:
            if field.name in decoded.names and field.name not in schema.names:
                schema = schema.append(decoded.field(field.name))
        return schema

    def finish(self, results: Sequence[TaskResult]) -> Files:
        """Files of the new rows; what they replace is found in `commit`."""
        import pyarrow as pa
        from pyarrow import dataset

        folder, path = self.table.folder, self.table.attempt_path
        schema = schema_from_text(self.table.columns.table_schema)
        staged = [
            folder.full_path(result.file.path) for result in results if isinstance(result, DataFile)
        ]
        self._changes, self._tries = None, 0
        if not staged:
            return {"": []}
        columns = staged_schema(self._whole(schema))
        read = dataset.dataset(staged, columns, "parquet", filesystem=folder.filesystem)
        self._changes = reduce(read.to_table(), self._key)
        writer = PartitionedWriter(
            folder, path, "upsert", schema, self.settings.file_max_bytes, self._fields
        )
        if self._changes.rows.num_rows:
            writer.write(self._changes.rows)
        files = writer.close()
        self._changes = replace(self._changes, rows=pa.table({}))  # they are on disk now
        # Before the commit, or the staged files would count as strays of the attempt.
        folder.delete(f"{path}/{STAGED}")
        return {"": files}

    def commit(self, key: ExportKey, files: Files, before: Progress, after: Progress) -> None:
        """Add the files, take out what they replace and set the progress, in one commit. Raises
        ExportFenced, TableError."""
        path = self.table.attempt_path

        def append(
            table: LakeTable, key: ExportKey, added: Sequence[WrittenFile], after: Progress
        ) -> None:
            removed = self._rewrite(path)
            table.append(key, [*added, *self._rewritten], after, removed)

        self._rewritten = []
        self.table.commit(key, files[""], before, after, append, self._rewritten)

    def _rewrite(self, path: str) -> list[LiveFile]:
        """Rewrite the files of the state that the table sees, as far as rows of them change; those
        that are to be taken out."""
        # The list itself, which `LandingTable.commit` reads in the end: files of the last try only.
        self._rewritten.clear()
        if self._changes is None:
            return []
        self._tries += 1
        table, removed = self.head, []
        files = table.live_files()
        if len(files) < len(table.data_files()):
            raise TableError(
                f"{table.location}: another engine deleted rows by deletion vectors or delete "
                "files, which an upsert can't rewrite; compact the table with that engine first"
            )
        for number, file in enumerate(files):
            keep = stays(self._keys(file), self._key, self._changes)
            if keep.true_count < len(keep):
                removed.append(file)
                self._rewritten += self._without(file, keep, f"{path}", number)
        if self._rewritten:
            self.table.folder.sync(path)
        return removed

    def _keys(self, file: LiveFile) -> pa.Table:
        """The key columns and `_meta` of every row of a file, in their order."""
        import pyarrow as pa

        schema = self.head.arrow_schema()
        wanted = columns_read(self._key)
        inside = [name for name in wanted if name in schema.names]
        rows = self._open(file).to_table(inside, use_threads=False)
        decoded = decoded_schema(self.settings)
        for field, value in zip(self._fields, file.partition_values, strict=True):
            if field.name in wanted and field.name not in inside:
                one = pa.scalar(value, pa.string()).cast(decoded.field(field.name).type)
                rows = rows.append_column(field.name, pa.repeat(one, rows.num_rows))
        return rows

    def _open(self, file: LiveFile) -> pa.dataset.Dataset:
        from pyarrow import dataset

        # The schema fills in columns, and casts types, that came after the file.
        schema = self.head.arrow_schema()
        return dataset.dataset(
            [file.path], schema, "parquet", filesystem=self.table.folder.filesystem
        )

    def _without(
        self, file: LiveFile, keep: pa.BooleanArray, path: str, number: int
    ) -> list[WrittenFile]:
        """The rows of a file that stay, in a file of their own; none if none stays."""
        import pyarrow as pa

        writer = FileWriter(
            self.table.folder,
            path,
            f"kept-{self._tries}-{number:06d}",
            self.head.arrow_schema(),
            2 * self.settings.file_max_bytes,
            file.partition_values,
        )
        first = 0
        for batch in self._open(file).to_batches(use_threads=False, batch_size=_BATCH_ROWS):
            mask = keep.slice(first, batch.num_rows)
            first += batch.num_rows
            if mask.true_count:
                writer.write(pa.Table.from_batches([batch.filter(mask)]))
        files = writer.close()
        if sum(each.rows for each in files) != keep.true_count:
            raise TableError(f"{file.path}: rows were lost in an upsert; nothing was changed")
        return files
