"""What an executor does in the fused export: read a range, decode, write Parquet. Edge.

The rows never pass through the JVM: a task yields only what it wrote.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from spark_plugin.access import Access
from spark_plugin.export.decoders import EXPLODING, open_decoder
from spark_plugin.export.decoding import BadRow, Decoder
from spark_plugin.export.evolution import schema_text
from spark_plugin.export.file_writer import FileWriter, PartitionedWriter
from spark_plugin.export.files import Folder
from spark_plugin.export.partitioning import parse_partition_by
from spark_plugin.export.routed_rows import RoutedRows, rows_of
from spark_plugin.export.routing import Routing
from spark_plugin.export.rows import dead_letter_rows, with_meta_column
from spark_plugin.export.settings import Evolve, RecordFormat
from spark_plugin.export.table import TaskResult, WrittenFile
from spark_plugin.journal import client_of, read_arrow
from spark_plugin.planning import OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa

_ANYBODY: Final = Access()
RAW_COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
_RAW_ROWS: Final = 4096
_DECODED_ROWS: Final = 32_768
"""Rows handled at once: raw ones are only gathered, so putting batches together is in vain."""


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
    partition_by: str = ""
    format: RecordFormat = "raw"
    value_schema: str = ""
    message: str = ""
    delimiter: str = ","
    """What values are decoded by, as in `ExportSettings`."""
    evolve: Evolve = "strict"
    """Look for fields that `value_schema` does not name, or values that need a wider type; if there
    are any, only tell them."""
    dlq_location: str = ""
    dlq_folder: str = ""
    dlq_schema: str = ""
    dlq_known: tuple[int, ...] = ()
    """Offsets that are in the dead-letter table already."""
    routing: Routing | None = None
    """Into several tables; `location`, `folder` and `schema` are not used then."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WriteTask:
        value = json.loads(text)
        value["offsets"] = OffsetRange(*value["offsets"])
        value["dlq_known"] = tuple(value["dlq_known"])
        if value["routing"] is not None:
            value["routing"] = Routing.of_json(value["routing"])
        return cls(**value)


def schema_to_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def schema_from_text(text: str) -> pa.Schema:
    import pyarrow as pa

    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def run(task: WriteTask, access: Access = _ANYBODY) -> Iterator[TaskResult]:
    """Write the task's range; yields what was written. `access` holds secrets, so it does not
    travel with the task."""
    offsets = task.offsets
    # Spark may run a task twice at the same time: each run has files of its own.
    name = f"p{offsets.partition:05d}-{offsets.start:020d}-{uuid.uuid4().hex[:8]}"
    if task.routing is not None:
        yield from _run_routed(task, task.routing, access, name)
        return
    data = _writer(task, name, task.location, task.folder, task.schema)
    write = _RawRows(data) if task.format == "raw" else _DecodedRows(task, data, name)
    for batch in _read(task, access, _RAW_ROWS if task.format == "raw" else _DECODED_ROWS):
        write(batch)
    for kind, files in write.close():
        for file in files:
            yield TaskResult(kind, offsets.partition, offsets.start, offsets.end, file)
    if write.new_fields:
        told = WrittenFile("", 0, 0, write.new_fields.encode())
        yield TaskResult("fields", offsets.partition, offsets.start, offsets.end, told)
    nothing = WrittenFile("", write.rows, 0, b"")
    yield TaskResult("read", offsets.partition, offsets.start, offsets.end, nothing)


def _run_routed(
    task: WriteTask, routing: Routing, access: Access, name: str
) -> Iterator[TaskResult]:
    """The same for a routed export, whose files are those of many tables."""
    raw, parts = task.format == "raw", task.format in EXPLODING
    decoder = None if raw else _decoder(task)
    dead = _DeadRows(task, name)
    write = RoutedRows(
        routing,
        lambda route: _writer(task, name, route.location, route.folder, route.schema),
        lambda batch: rows_of(batch, decoder, parts),
        dead.write,
    )
    for batch in _read(task, access, _DECODED_ROWS):
        write(batch)
    place = (task.offsets.partition, task.offsets.start, task.offsets.end)
    for route, files in write.close():
        for file in files:
            yield TaskResult("data", *place, file, route)
    for file in dead.close():
        yield TaskResult("dlq", *place, file)
    if write.new_routes:
        told = json.dumps(sorted(write.new_routes)).encode()
        yield TaskResult("routes", *place, WrittenFile("", 0, 0, told))
    yield TaskResult("read", *place, WrittenFile("", write.rows, 0, b""))


def _read(task: WriteTask, access: Access, batch_rows: int) -> Iterator[pa.RecordBatch]:
    return read_arrow(
        client_of(task.bootstrap, access), task.offsets, columns=RAW_COLUMNS,
        fetch_bytes=task.fetch_bytes, retry_timeout_s=task.retry_timeout_s,
        fail_on_data_loss=task.fail_on_data_loss, tiered=access.tiered, batch_rows=batch_rows,
    )  # fmt: skip


def _writer(
    task: WriteTask, name: str, location: str, folder: str, schema: str
) -> PartitionedWriter:
    return PartitionedWriter(
        Folder(location), folder, name, schema_from_text(schema),
        task.file_bytes_max, parse_partition_by(task.partition_by),
    )  # fmt: skip


def _decoder(task: WriteTask) -> Decoder:
    return open_decoder(
        task.format, task.value_schema, message=task.message, delimiter=task.delimiter,
        evolve=task.evolve,
    )  # fmt: skip


class _DeadRows:
    """Bad records on their way to the dead-letter table, but for those that are there already."""

    def __init__(self, task: WriteTask, name: str) -> None:
        self._file = FileWriter(
            Folder(task.dlq_location), task.dlq_folder, name, schema_from_text(task.dlq_schema),
            task.file_bytes_max,
        )  # fmt: skip
        self._topic_id = task.offsets.topic_id
        self._known = frozenset(task.dlq_known)
        self.close = self._file.close

    def write(self, batch: pa.RecordBatch, bad: Sequence[BadRow]) -> int:
        """How many of them are new."""
        offsets = batch.column("offset")
        new = [each for each in bad if offsets[each.row].as_py() not in self._known]
        if new:
            self._file.write(dead_letter_rows(batch, new, self._topic_id))
        return len(new)


class _RawRows:
    """Records as they are."""

    new_fields = ""

    def __init__(self, data: PartitionedWriter) -> None:
        self._data = data
        self.rows = 0

    def __call__(self, batch: pa.RecordBatch) -> None:
        import pyarrow as pa

        self.rows += batch.num_rows
        self._data.write(pa.Table.from_batches([batch]))

    def close(self) -> list[tuple[str, list[WrittenFile]]]:
        return [("data", self._data.close())]


class _DecodedRows:
    """Values decoded to columns, beside `_meta`; what can't be decoded goes to the dead letters."""

    def __init__(self, task: WriteTask, data: PartitionedWriter, name: str) -> None:
        self._data = data
        self._dead = _DeadRows(task, name)
        self._decoder = _decoder(task)
        self._parts = task.format in EXPLODING
        self.rows = 0
        """Rows that must be in the files: without bad ones that are dead letters already."""
        self.new_fields = ""
        """Column list of fields that the table has no column for; nothing is written then."""

    def __call__(self, batch: pa.RecordBatch) -> None:
        decoded = self._decoder.decode(batch.column("value"), batch.column("key"))
        if self._decoder.has_new_fields():
            self.new_fields = schema_text(self._decoder.found.items())
            return
        self._data.write(with_meta_column(decoded, batch, self._parts))
        self.rows += len(decoded.rows)
        if decoded.bad:
            self.rows += self._dead.write(batch, decoded.bad)

    def close(self) -> list[tuple[str, list[WrittenFile]]]:
        return [("data", self._data.close()), ("dlq", self._dead.close())]
