"""Parquet files as exports write them: size, row groups and encodings."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from lakemq.spark_plugin.export.tables.files import Folder
from lakemq.spark_plugin.export.tables.partitioning import (
    PartitionField,
    Values,
    partition_columns,
    split,
)
from lakemq.spark_plugin.export.tables.table import WrittenFile

if TYPE_CHECKING:
    import pyarrow as pa

_GROUP_ROWS: Final = 1 << 20
_GROUP_BYTES: Final = 64 << 20
"""A row group is written when either is reached."""
_OPEN_FILES_MAX: Final = 100


class FileWriter:
    """Writes batches into as many Parquet files as their size asks for."""

    def __init__(
        self,
        folder: Folder,
        path: str,
        name: str,
        schema: pa.Schema,
        file_max_bytes: int,
        partition_values: Values = (),
    ) -> None:
        self._partition_values = partition_values
        self._folder = folder
        self._path = path
        self._name = name
        self._schema = schema
        self._options = parquet_options(schema)
        self._file_max_bytes = file_max_bytes
        self._gathered: list[pa.Table] = []
        self._gathered_rows = 0
        self.gathered_bytes = 0
        """Memory that rows wait in."""
        self._writer: Any = None
        self._written_bytes = 0
        self._files: list[WrittenFile] = []

    def write(self, table: pa.Table) -> None:
        """Columns may come in any order; those that are missing are null."""
        self._gathered.append(self._all_columns(table).select(self._schema.names))
        self._gathered_rows += table.num_rows
        self.gathered_bytes += table.nbytes
        if self._gathered_rows >= _GROUP_ROWS or self.gathered_bytes >= _GROUP_BYTES:
            self.flush()

    def _all_columns(self, table: pa.Table) -> pa.Table:
        import pyarrow as pa

        for field in self._schema:
            if field.name not in table.schema.names:
                table = table.append_column(field.name, pa.nulls(table.num_rows, field.type))
        return table

    def flush(self) -> None:
        """Write what is gathered as a row group."""
        import pyarrow as pa

        if not self._gathered_rows:
            return
        # Concatenated without copies; one cast and one row group in place of many.
        table = pa.concat_tables(self._gathered).cast(self._schema)
        if self._writer is None:
            path = f"{self._path}/{self._name}-{len(self._files)}.parquet"
            self._current = path
            self._output = self._folder.open_output(path)
            self._writer = _parquet_writer(self._output, self._schema, self._options)
        self._writer.write_table(table, row_group_size=table.num_rows)
        self._gathered, self._gathered_rows, self.gathered_bytes = [], 0, 0
        if self._output.tell() >= self._file_max_bytes:
            self._finish_file()

    def _finish_file(self) -> None:
        self._writer.close()
        metadata = self._writer.writer.metadata
        size_bytes = self._output.tell()
        self._output.close()
        # Synced by the executor that wrote it: the driver only syncs the folder.
        self._folder.sync(self._current)
        footer = io.BytesIO()
        metadata.write_metadata_file(footer)
        self._files.append(
            WrittenFile(
                self._current,
                metadata.num_rows,
                size_bytes,
                footer.getvalue(),
                self._partition_values,
            )
        )
        self._writer = None

    def close(self) -> list[WrittenFile]:
        """Write what is gathered and finish the file; every file that was written, in order."""
        self.flush()
        if self._writer is not None:
            self._finish_file()
        return self._files


class PartitionedWriter:
    """Writes rows into files of their partition. Late rows of many partitions open many files;
    memory and open files are bounded, at the price of more and smaller ones."""

    def __init__(
        self,
        folder: Folder,
        path: str,
        name: str,
        schema: pa.Schema,
        file_max_bytes: int,
        fields: Sequence[PartitionField] = (),
    ) -> None:
        self._place = (folder, path)
        self._name = name
        self._schema = schema
        self._file_max_bytes = file_max_bytes
        self._fields = fields
        self._columns = [field for field in fields if field.name in schema.names]
        self._writers: dict[Values, FileWriter] = {}
        self._opened = 0
        self._files: list[WrittenFile] = []

    def write(self, table: pa.Table) -> None:
        """Columns may come in any order; those that are missing are null."""
        if not self._fields:
            self._writer(()).write(table)
            return
        for values, rows in split(table, self._fields):
            with_values = partition_columns(rows, self._fields, values) if self._columns else rows
            self._writer(values).write(with_values)
        if self.gathered_bytes >= 2 * _GROUP_BYTES:
            self.flush()

    @property
    def gathered_bytes(self) -> int:
        """Memory that rows wait in."""
        return sum(each.gathered_bytes for each in self._writers.values())

    def flush(self) -> None:
        """Write what is gathered."""
        for each in self._writers.values():
            each.flush()

    def _writer(self, values: Values) -> FileWriter:
        # Popped and put back: a dict keeps the order of insertion, which makes it a list by last
        # use.
        writer = self._writers.pop(values, None)
        if writer is None:
            if len(self._writers) >= _OPEN_FILES_MAX:
                oldest = next(iter(self._writers))
                self._files += self._writers.pop(oldest).close()
            folder, path = self._place
            name = f"{self._name}-{self._opened}"
            writer = FileWriter(folder, path, name, self._schema, self._file_max_bytes, values)
            self._opened += 1
        self._writers[values] = writer  # the one used last comes last
        return writer

    def close(self) -> list[WrittenFile]:
        """Finish the files of all partitions; every file that was written."""
        for writer in self._writers.values():
            self._files += writer.close()
        self._writers = {}
        return self._files


def _parquet_writer(output: pa.NativeFile, schema: pa.Schema, options: dict[str, Any]) -> Any:
    from pyarrow import parquet

    return parquet.ParquetWriter(output, schema, **options)


def parquet_options(schema: pa.Schema) -> dict[str, Any]:
    """Encodings for journal records: offsets and times ascend, so their differences are small;
    values are distinct, so a dictionary would not help; topics, partitions and keys repeat."""
    import pyarrow as pa

    dictionary, encodings = [], {}
    for path, kind in _leaves("", pa.struct(schema)):
        if pa.types.is_timestamp(kind) or path in ("offset", "_meta.offset"):
            encodings[path] = "DELTA_BINARY_PACKED"
        elif path not in ("value", "headers.list.element.value"):
            dictionary.append(path)
    return {
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": dictionary,
        "column_encoding": encodings,
        "write_statistics": True,
        "store_schema": False,
    }


def _leaves(path: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """(Parquet path, type) of every leaf column."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        for child in kind:
            yield from _leaves(f"{path}.{child.name}" if path else child.name, child.type)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _leaves(f"{path}.list.{kind.value_field.name}", kind.value_type)
    else:
        yield path, kind
