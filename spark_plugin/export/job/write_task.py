"""What an executor does in the fused export: read a range, decode, write Parquet.

The rows never pass through the JVM: a task yields only what it wrote.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from lakemq.spark_plugin.access import Access
from lakemq.spark_plugin.export.decoding.births import KnownBirths
from lakemq.spark_plugin.export.decoding.column_types import Evolve
from lakemq.spark_plugin.export.decoding.decoder import BadRow, Decoded, Decoder, decode_batch
from lakemq.spark_plugin.export.decoding.decoders import EXPLODING, RecordFormat, open_decoder
from lakemq.spark_plugin.export.decoding.evolution import schema_text
from lakemq.spark_plugin.export.decoding.rest import RestCounter
from lakemq.spark_plugin.export.decoding.rows import dead_letter_rows, with_meta_column
from lakemq.spark_plugin.export.job.runs import Run
from lakemq.spark_plugin.export.job.task_results import (
    BirthsSeen,
    DataFile,
    DeadLetterFile,
    NewFields,
    NewRoutes,
    RangeRead,
    RestFields,
    SkippedOffsets,
    TaskResult,
    Tombstones,
    TracedRecords,
)
from lakemq.spark_plugin.export.routing.routed_rows import (
    BadRows,
    OwnColumnRows,
    RoutedRows,
    naming_decoder,
    rows_of,
)
from lakemq.spark_plugin.export.routing.rules import RouteTarget, Routing
from lakemq.spark_plugin.export.tables.file_writer import FileWriter, PartitionedWriter
from lakemq.spark_plugin.export.tables.files import Folder
from lakemq.spark_plugin.export.tables.partitioning import parse_partition_by
from lakemq.spark_plugin.export.tables.table import WrittenFile
from lakemq.spark_plugin.export.tracing import TracedContexts
from lakemq.spark_plugin.export.upserting.changes import tombstone_rows, without_keyless
from lakemq.spark_plugin.source.birth_reader import birth_log
from lakemq.spark_plugin.source.broker_reader import client_of, read_arrow
from lakemq.spark_plugin.source.corrupt import OnSkipped
from lakemq.spark_plugin.source.planning import OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa

    from lakemq.spark_plugin.export.decoding.sparkplug_values import FindBirths

_ANONYMOUS: Final = Access()
RAW_COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
_RAW_ROWS: Final = 4096
_DECODED_ROWS: Final = 32_768
"""Rows handled at once: raw ones are only collected, so larger batches would not help."""


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
    file_max_bytes: int = 128 << 20
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
    are any, only report them."""
    dlq_location: str = ""
    dlq_folder: str = ""
    dlq_schema: str = ""
    dlq_known: tuple[int, ...] = ()
    """Offsets that are in the dead-letter table already."""
    traced: bool = False
    """Note which records belong to traces."""
    upsert_key: tuple[str, ...] | None = None
    """Stage rows and tombstones for an upsert by this key; empty: by the record's."""
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options of the tables' object store. They hold secrets, so they travel in `Access`."""
    routing: Routing | None = None
    """Into several tables; `location`, `folder` and `schema` are not used then."""
    births: KnownBirths | None = None
    """Births of Sparkplug B before the range."""

    def to_json(self) -> str:
        """The form that travels to the executor."""
        return json.dumps(asdict(replace(self, storage={})))

    @classmethod
    def from_json(cls, text: str) -> WriteTask:
        """What `to_json` encoded."""
        value = json.loads(text)
        value["offsets"] = OffsetRange(*value["offsets"])
        value["dlq_known"] = tuple(value["dlq_known"])
        if value["upsert_key"] is not None:
            value["upsert_key"] = tuple(value["upsert_key"])
        if value["routing"] is not None:
            value["routing"] = Routing.of_json(value["routing"])
        if value["births"] is not None:
            value["births"] = KnownBirths(**value["births"])
        return cls(**value)


def schema_to_text(schema: pa.Schema) -> str:
    """Base64 of the schema's Arrow IPC form."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def schema_from_text(text: str) -> pa.Schema:
    """What `schema_to_text` encoded."""
    import pyarrow as pa

    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def run(task: WriteTask, access: Access = _ANONYMOUS) -> Iterator[TaskResult]:
    """Write the task's range; yields what was written. `access` holds secrets, so it does not
    travel with the task."""
    task, offsets = replace(task, storage=dict(access.storage)), task.offsets
    # Spark may run a task twice at the same time: each run has files of its own.
    name = f"p{offsets.partition:05d}-{offsets.start:020d}-{uuid.uuid4().hex[:8]}"
    rows_max = _RAW_ROWS if task.format == "raw" and task.routing is None else _DECODED_ROWS
    skipped: list[Run] = []
    batches = _read(task, access, rows_max, skipped.append)
    contexts = TracedContexts()
    if task.traced:
        batches = contexts.watch(batches)
    births = None
    if task.format == "sparkplug":
        births = birth_log(
            client_of(task.bootstrap, access), offsets, access, task.retry_timeout_s, task.births
        )
    yield from write(
        task, name, batches, DeadRows(task, name), None if births is None else lambda *_: births
    )
    if births is not None:
        yield BirthsSeen(offsets.partition, births.low, births.offsets)
    if contexts.found:
        yield TracedRecords(tuple(contexts.found))
    for span in skipped:
        yield SkippedOffsets(offsets.partition, *span)


def write(
    task: WriteTask,
    name: str,
    batches: Iterable[pa.RecordBatch],
    bad: BadRows,
    find_births: FindBirths | None = None,
) -> Iterator[TaskResult]:
    """The same for batches that are there: columns as in the journal, all of one topic. `name`:
    what the files' names begin with."""
    rows = _row_writer(task, name, bad, find_births)
    for batch in batches:
        rows(batch)
    _, _, partition, start, end = task.offsets[:5]
    for route, files in rows.close():
        for file in files:
            yield DataFile(file, route)
    for file in bad.close():
        yield DeadLetterFile(file)
    for route, columns in rows.new_fields.items():
        yield NewFields(partition, start, columns, route)
    if rows.new_routes:
        yield NewRoutes(partition, start, tuple(sorted(rows.new_routes)))
    if isinstance(rows, _ChangedRows) and rows.tombstones:
        yield Tombstones(rows.tombstones)
    if rows.rest.rows:
        yield RestFields(rows.rest.rows, tuple(rows.rest.names))
    yield RangeRead(partition, start, end, rows.rows)


def _row_writer(
    task: WriteTask, name: str, bad: BadRows, find_births: FindBirths | None
) -> RowWriter:
    routing = task.routing
    if routing is None:
        data = _writer(task, name, task.location, task.folder, task.schema)
        if task.upsert_key is not None:
            return _ChangedRows(data, bad, _decoder(task), task.upsert_key)
        if task.format == "raw":
            return _RawRows(data)
        return _DecodedRows(data, bad, _decoder(task, find_births), task.format in EXPLODING)

    def open_writer(route: RouteTarget) -> PartitionedWriter:
        return _writer(task, name, route.location, route.folder, route.schema)

    def open_decoder_of(route: RouteTarget) -> Decoder:
        return _decoder(replace(task, value_schema=route.value_schema))

    if routing.own_columns:
        naming = naming_decoder(routing.by, task.value_schema)
        return OwnColumnRows(routing, open_writer, naming, bad, open_decoder_of)
    decoder = None if task.format == "raw" else _decoder(task, find_births)
    return RoutedRows(
        routing, open_writer, partial(rows_of, decoder=decoder, parts=task.format in EXPLODING), bad
    )


def _read(
    task: WriteTask, access: Access, batch_rows: int, on_skipped: OnSkipped
) -> Iterator[pa.RecordBatch]:
    return read_arrow(
        client_of(task.bootstrap, access),
        task.offsets,
        columns=RAW_COLUMNS,
        fetch_bytes=task.fetch_bytes,
        retry_timeout_s=task.retry_timeout_s,
        fail_on_data_loss=task.fail_on_data_loss,
        tiered=access.tiered,
        batch_rows=batch_rows,
        on_skipped=on_skipped,
    )


def _writer(
    task: WriteTask, name: str, location: str, folder: str, schema: str
) -> PartitionedWriter:
    return PartitionedWriter(
        Folder(location, task.storage),
        folder,
        name,
        schema_from_text(schema),
        task.file_max_bytes,
        parse_partition_by(task.partition_by),
    )


def _decoder(task: WriteTask, find_births: FindBirths | None = None) -> Decoder:
    return open_decoder(
        task.format,
        task.value_schema,
        message=task.message,
        delimiter=task.delimiter,
        evolve=task.evolve,
        find_births=find_births,
    )


class RowWriter(Protocol):
    """Writes the rows of batches of one partition to files."""

    rows: int
    """Rows that must be in the files."""
    new_fields: dict[str, str]
    """Route (empty: there is one table) -> column list of fields that its table has no column for.
    If there are any, or new routes, the files do not hold all rows: the range is read again."""
    new_routes: set[str]
    """Routes that have no table yet."""
    rest: RestCounter

    def __call__(self, batch: pa.RecordBatch) -> None: ...

    def close(self) -> list[tuple[str, list[WrittenFile]]]:
        """(route, its files)."""


class DeadRows:
    """Writes bad records to files of the dead-letter table, except those that it has already."""

    def __init__(self, task: WriteTask, name: str) -> None:
        self._task = task
        self._name = name
        self._file: FileWriter | None = None
        self._known = frozenset(task.dlq_known)

    def write(self, batch: pa.RecordBatch, bad: Sequence[BadRow]) -> int:
        """How many of them are new."""
        offsets = batch.column("offset")
        # Committed by an earlier run whose rows did not follow: written again they would be there
        # twice.
        new = [each for each in bad if offsets[each.row].as_py() not in self._known]
        if new:
            self._open().write(dead_letter_rows(batch, new, self._task.offsets.topic_id))
        return len(new)

    def _open(self) -> FileWriter:
        task = self._task
        if self._file is None:
            self._file = FileWriter(
                Folder(task.dlq_location, task.storage),
                task.dlq_folder,
                self._name,
                schema_from_text(task.dlq_schema),
                task.file_max_bytes,
            )
        return self._file

    def close(self) -> list[WrittenFile]:
        """Finish the file; the files that were written, none if there were no new bad records."""
        return self._file.close() if self._file is not None else []


class _RawRows:
    """Records as they are."""

    def __init__(self, data: PartitionedWriter) -> None:
        self._data = data
        self.rows = 0
        self.new_fields: dict[str, str] = {}
        self.new_routes: set[str] = set()
        self.rest = RestCounter()

    def __call__(self, batch: pa.RecordBatch) -> None:
        import pyarrow as pa

        self.rows += batch.num_rows
        self._data.write(pa.Table.from_batches([batch]))

    def close(self) -> list[tuple[str, list[WrittenFile]]]:
        return [("", self._data.close())]


class _DecodedRows:
    """Values decoded to columns, beside `_meta`; what can't be decoded goes to the dead letters."""

    def __init__(
        self, data: PartitionedWriter, bad: BadRows, decoder: Decoder, parts: bool = False
    ) -> None:
        """`parts`: a record may make several rows."""
        self._data = data
        self._bad = bad
        self._decoder = decoder
        self._parts = parts
        self.rows = 0
        """Without bad ones that are dead letters already."""
        self.new_fields: dict[str, str] = {}
        self.new_routes: set[str] = set()
        self.rest = RestCounter()

    def __call__(self, batch: pa.RecordBatch) -> None:
        decoded = self._checked(decode_batch(self._decoder, batch), batch)
        # Nothing is written any more: the driver adds the columns and the range is read again, so
        # more rows would only be deleted.
        if self._decoder.has_new_fields():
            self.new_fields = {"": schema_text(self._decoder.found.items())}
            return
        self.rest.see(decoded.columns)
        self._data.write(with_meta_column(decoded, batch, self._parts))
        self.rows += len(decoded.rows)
        if decoded.bad:
            self.rows += self._bad.write(batch, decoded.bad)

    def _checked(self, decoded: Decoded, batch: pa.RecordBatch) -> Decoded:
        """What may be written of the decoded rows."""
        return decoded

    def close(self) -> list[tuple[str, list[WrittenFile]]]:
        return [("", self._data.close())]


class _ChangedRows(_DecodedRows):
    """The same for an upsert: every row needs its key, and tombstones are rows that say so."""

    def __init__(
        self, data: PartitionedWriter, bad: BadRows, decoder: Decoder, key: tuple[str, ...]
    ) -> None:
        super().__init__(data, bad, decoder)
        self._key = key
        self.tombstones = 0

    def __call__(self, batch: pa.RecordBatch) -> None:
        from pyarrow import compute

        has_value = batch.column("value").is_valid()
        super().__call__(batch.filter(has_value))
        if self.new_fields:
            return
        without = batch.filter(compute.invert(has_value))
        rows, bad = tombstone_rows(without)
        if rows.num_rows:
            self._data.write(rows)
        self.tombstones += rows.num_rows
        self.rows += rows.num_rows
        if bad:
            self.rows += self._bad.write(without, bad)

    def _checked(self, decoded: Decoded, batch: pa.RecordBatch) -> Decoded:
        return without_keyless(decoded, batch, self._key)
