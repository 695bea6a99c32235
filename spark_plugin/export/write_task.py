"""What an executor does in the fused export: read a range, decode, write Parquet. Edge.

The rows never pass through the JVM: a task yields only what it wrote.
"""

from __future__ import annotations

import base64
import io
import json
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spark_plugin.export.decode import JsonDecoder
from spark_plugin.export.files import Folder
from spark_plugin.export.json_schema import META, parse_schema
from spark_plugin.export.rows import dead_letter_rows, meta_column
from spark_plugin.export.table import WrittenFile
from spark_plugin.journal import client_of, read_arrow
from spark_plugin.planning import OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa

RAW_COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
_RAW_ROWS: Final = 4096
_JSON_ROWS: Final = 32_768
"""Rows handled at once: raw ones are only gathered, so putting batches together is in vain."""
_GROUP_ROWS: Final = 1 << 20
_GROUP_BYTES: Final = 64 << 20
"""A row group is written when either is reached."""


@dataclass(frozen=True)
class WriteTask:
    """One Spark task of the fused export; travels as JSON."""

    bootstrap: str
    offsets: OffsetRange
    location: str
    folder: str
    """Attempt folder, relative to `location`."""
    schema: str
    """Arrow schema of the data files (base64 of its IPC form)."""
    file_bytes_max: int = 128 << 20
    fetch_bytes: int = 1 << 20
    retry_timeout_s: float = 60.0
    fail_on_data_loss: bool = True
    json_schema: str = ""
    """Column list to decode values by; empty: records as they are."""
    dlq_location: str = ""
    dlq_folder: str = ""
    dlq_schema: str = ""
    dlq_known: tuple[int, ...] = ()
    """Offsets that are in the dead-letter table already."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WriteTask:
        value = json.loads(text)
        value["offsets"] = OffsetRange(*value["offsets"])
        value["dlq_known"] = tuple(value["dlq_known"])
        return cls(**value)


class TaskResult(NamedTuple):
    """What a task yields: one row for each file, and a last one of kind `read`."""

    kind: str
    """`data`, `dlq` or `read`."""
    partition: int
    start: int
    end: int
    """Offsets [start, end) of the task."""
    file: WrittenFile
    """Of kind `read`: no file; `rows` is the number of records read."""


def schema_to_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def schema_from_text(text: str) -> pa.Schema:
    import pyarrow as pa

    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def run(task: WriteTask) -> Iterator[TaskResult]:
    """Write the task's range; yields what was written."""
    offsets = task.offsets
    # Spark may run a task twice at the same time: each run has files of its own.
    name = f"p{offsets.partition:05d}-{offsets.start:020d}-{uuid.uuid4().hex[:8]}"
    data = _FileWriter(
        Folder(task.location), task.folder, name, schema_from_text(task.schema), task.file_bytes_max
    )
    write = _JsonRows(task, data, name) if task.json_schema else _RawRows(data)
    rows = 0
    for batch in read_arrow(
        client_of(task.bootstrap), offsets, columns=RAW_COLUMNS, fetch_bytes=task.fetch_bytes,
        retry_timeout_s=task.retry_timeout_s, fail_on_data_loss=task.fail_on_data_loss,
        batch_rows=_JSON_ROWS if task.json_schema else _RAW_ROWS,
    ):  # fmt: skip
        rows += batch.num_rows
        write(batch)
    for kind, files in write.close():
        for file in files:
            yield TaskResult(kind, offsets.partition, offsets.start, offsets.end, file)
    nothing = WrittenFile("", rows - write.skipped, 0, b"")
    yield TaskResult("read", offsets.partition, offsets.start, offsets.end, nothing)


class _RawRows:
    """Records as they are."""

    skipped = 0

    def __init__(self, data: _FileWriter) -> None:
        self._data = data

    def __call__(self, batch: pa.RecordBatch) -> None:
        import pyarrow as pa

        self._data.write(pa.Table.from_batches([batch]))

    def close(self) -> list[tuple[str, list[WrittenFile]]]:
        return [("data", self._data.close())]


class _JsonRows:
    """Values decoded to columns, beside `_meta`; what can't be decoded goes to the dead letters."""

    def __init__(self, task: WriteTask, data: _FileWriter, name: str) -> None:
        self._data = data
        self._dead = _FileWriter(
            Folder(task.dlq_location), task.dlq_folder, name, schema_from_text(task.dlq_schema),
            task.file_bytes_max,
        )  # fmt: skip
        self._decoder = JsonDecoder(parse_schema(task.json_schema))
        self._topic_id = task.offsets.topic_id
        self._known = frozenset(task.dlq_known)
        self.skipped = 0
        """Bad rows that an earlier run has put into the dead letters already."""

    def __call__(self, batch: pa.RecordBatch) -> None:
        decoded = self._decoder.decode(batch.column("value"))
        good = batch if len(decoded.rows) == batch.num_rows else batch.take(decoded.rows)
        self._data.write(decoded.columns.append_column(META, meta_column(good)))
        offsets = batch.column("offset")
        bad = [each for each in decoded.bad if offsets[each.row].as_py() not in self._known]
        self.skipped += len(decoded.bad) - len(bad)
        if bad:
            self._dead.write(dead_letter_rows(batch, bad, self._topic_id))

    def close(self) -> list[tuple[str, list[WrittenFile]]]:
        return [("data", self._data.close()), ("dlq", self._dead.close())]


class _FileWriter:
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
