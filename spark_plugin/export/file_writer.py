"""Parquet files as exports write them: size, row groups and encodings. Edge: files."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from spark_plugin.export.files import Folder
from spark_plugin.export.table import WrittenFile

if TYPE_CHECKING:
    import pyarrow as pa

_GROUP_ROWS: Final = 1 << 20
_GROUP_BYTES: Final = 64 << 20
"""A row group is written when either is reached."""


class FileWriter:
    """Writes batches into as many Parquet files as their size asks for."""

    def __init__(
        self, folder: Folder, path: str, name: str, schema: pa.Schema, file_bytes_max: int
    ) -> None:
        self._folder = folder
        self._path = path
        self._name = name
        self._schema = schema
        self._options = parquet_options(schema)
        self._file_bytes_max = file_bytes_max
        self._gathered: list[pa.Table] = []
        self._gathered_rows = self._gathered_bytes = 0
        self._writer: Any = None
        self._written_bytes = 0
        self._files: list[WrittenFile] = []

    def write(self, table: pa.Table) -> None:
        """Columns may come in any order; they must be those of the schema."""
        self._gathered.append(table.select(self._schema.names))
        self._gathered_rows += table.num_rows
        self._gathered_bytes += table.nbytes
        if self._gathered_rows >= _GROUP_ROWS or self._gathered_bytes >= _GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        import pyarrow as pa

        if not self._gathered_rows:
            return
        table = pa.concat_tables(self._gathered).cast(self._schema)
        if self._writer is None:
            path = f"{self._path}/{self._name}-{len(self._files)}.parquet"
            self._current = path
            self._output = self._folder.open_output(path)
            self._writer = _parquet_writer(self._output, self._schema, self._options)
        self._writer.write_table(table, row_group_size=table.num_rows)
        self._gathered, self._gathered_rows, self._gathered_bytes = [], 0, 0
        if self._output.tell() >= self._file_bytes_max:
            self._finish_file()

    def _finish_file(self) -> None:
        self._writer.close()
        metadata = self._writer.writer.metadata
        size_bytes = self._output.tell()
        self._output.close()
        self._folder.sync(self._current)
        footer = io.BytesIO()
        metadata.write_metadata_file(footer)
        self._files.append(
            WrittenFile(self._current, metadata.num_rows, size_bytes, footer.getvalue())
        )
        self._writer = None

    def close(self) -> list[WrittenFile]:
        self._write_group()
        if self._writer is not None:
            self._finish_file()
        return self._files


def _parquet_writer(output: pa.NativeFile, schema: pa.Schema, options: dict[str, Any]) -> Any:
    from pyarrow import parquet

    return parquet.ParquetWriter(output, schema, **options)


def parquet_options(schema: pa.Schema) -> dict[str, Any]:
    """Encodings that fit journals: offsets and times rise, so their differences are small; values
    differ, so a dictionary of them would be built in vain; topics, partitions and keys repeat."""
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
