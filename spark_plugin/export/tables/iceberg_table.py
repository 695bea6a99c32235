"""Iceberg through pyiceberg, with any catalog that it knows (SQL, REST, Glue, Hive).

Progress is stored in table properties, set in the transaction that adds the files:

    lakemq/<export id>/<topic>/epoch, .../attempt, .../process, .../commit, .../topic-id, .../upsert
    lakemq/<export id>/<topic id>/<partition>       next offset

Every commit, also the one that only takes a new epoch, makes a snapshot, and asserts that the
branch is where it was when its progress was read: no two commits can follow the same state.
pyiceberg would rebase a losing commit and apply it all the same; its retries are off here.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lakemq.spark_plugin.errors import NoTable
from lakemq.spark_plugin.export.decoding.column_types import Evolve
from lakemq.spark_plugin.export.tables.columns import check_partitioned, fitting
from lakemq.spark_plugin.export.tables.files import NO_OPTIONS, path_of
from lakemq.spark_plugin.export.tables.iceberg_partitions import (
    add_fields,
    field_names,
    spec_text,
    to_record,
    to_values,
)
from lakemq.spark_plugin.export.tables.partitioning import PartitionField
from lakemq.spark_plugin.export.tables.stats import read_footer
from lakemq.spark_plugin.export.tables.storage import iceberg_properties
from lakemq.spark_plugin.export.tables.table import (
    ExportKey,
    LiveFile,
    Progress,
    TableCommit,
    TableConflict,
    WrittenFile,
    topic_mark,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

_NO_RETRIES = {"commit.retry.num-retries": "0"}


class IcebergTable:
    """A table `namespace.name` in a catalog."""

    def __init__(
        self,
        name: str,
        catalog: Mapping[str, str],
        schema: pa.Schema | None,
        fields: Sequence[PartitionField] = (),
        evolve: Evolve = "strict",
        storage: Mapping[str, str] = NO_OPTIONS,
    ) -> None:
        """Open the table, created with `schema` and `fields` if absent; without a schema it must be
        there, and changed as far as `evolve` allows it. TableError if it is not, or if its columns
        or partitioning differ."""
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NoSuchTableError

        properties = iceberg_properties(catalog, storage)
        self.storage = storage
        self._catalog = load_catalog(properties.pop("name", "default"), **properties)
        # `LakeTable` has no `close`: a table ends when it is dropped.
        weakref.finalize(self, self._catalog.close)  # its connections end with the table
        try:
            self._table: Table = self._catalog.load_table(name)
        except NoSuchTableError:
            if schema is None:
                raise NoTable(f"there is no Iceberg table {name} in the catalog") from None
            self._table = self._create(name, schema, fields)
        self.location = f"{self._table.location().rstrip('/')}/data"
        if schema is not None:
            check_partitioned(name, field_names(self._table), fields)
            change = fitting(name, self.arrow_schema(), schema, evolve)
            if change is not None:
                self.add_columns(change)

    def _create(self, name: str, schema: pa.Schema, fields: Sequence[PartitionField]) -> Table:
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError

        self._catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
        try:
            with self._catalog.create_table_transaction(name, schema) as transaction:
                if fields:
                    with transaction.update_spec() as update:
                        add_fields(update, fields)
        except (TableAlreadyExistsError, CommitFailedException):
            pass  # another export was quicker; its table is checked like an old one
        return self._catalog.load_table(name)

    def arrow_schema(self) -> pa.Schema:
        """With Iceberg's field ids, which the files carry."""
        import pyarrow as pa
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        return pa.schema([_small(field) for field in schema_to_pyarrow(self._table.schema())])

    def full_schema(self) -> pa.Schema:
        """The same: Iceberg's files have all columns."""
        return self.arrow_schema()

    def scan(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of the current snapshot."""
        yield from self._table.scan(selected_fields=tuple(columns)).to_arrow_batch_reader()

    def reload(self) -> None:
        """Load the newest metadata from the catalog."""
        self._table = self._catalog.load_table(self._table.name())

    def version(self) -> str:
        """The snapshot seen."""
        snapshot = self._table.current_snapshot()
        return "no snapshot" if snapshot is None else f"snapshot {snapshot.snapshot_id}"

    def progress(self, key: ExportKey) -> Progress:
        """Progress as the table properties hold it."""
        ours, properties = _prefix(key), self._table.properties
        found = {
            partition: properties.get(f"lakemq/{key.export_id}/{key.topic_id}/{partition}")
            for partition in key.partitions
        }
        topic_id = properties.get(f"{ours}/topic-id")
        return Progress(
            epoch=int(properties.get(f"{ours}/epoch", 0)),
            attempt=int(properties.get(f"{ours}/attempt", 0)),
            process=int(properties.get(f"{ours}/process", 0)),
            commit=int(properties.get(f"{ours}/commit", 0)),
            topic_mark=topic_mark(topic_id) if topic_id else None,
            upsert_mark=int(properties.get(f"{ours}/upsert", 0)),
            offsets={p: int(offset) for p, offset in found.items() if offset is not None},
        )

    def data_files(self) -> list[str]:
        """Paths of the data files of the current snapshot."""
        return [path_of(task.file.file_path) for task in self._table.scan().plan_files()]

    def commit_of(self, path: str) -> TableCommit | None:
        """The snapshot that added a data file; without a time if that has expired."""
        for each in self._table.inspect.entries().to_pylist():
            if path_of(each["data_file"]["file_path"]) == path:
                number = each["snapshot_id"]
                snapshot = self._table.snapshot_by_id(number)
                at_ms = snapshot.timestamp_ms if snapshot is not None else None
                return TableCommit(f"snapshot {number}", at_ms)
        return None

    def live_files(self) -> list[LiveFile]:
        """The data files of the current snapshot that no delete file applies to, with their
        partition values."""
        return [
            LiveFile(
                path_of(task.file.file_path),
                task.file.record_count,
                task.file.file_size_in_bytes,
                to_values(self._table, task.file.partition),
                task.file,
            )
            for task in self._table.scan().plan_files()
            if not task.delete_files
        ]

    def partition_by(self) -> str:
        """The partitioning as `--partition-by` has it."""
        return spec_text(self._table)

    def add_columns(self, schema: pa.Schema) -> None:
        """Add the columns that are missing, by name, and widen types where Iceberg allows it (spec,
        "Schema Evolution")."""
        with self._table.update_schema() as update:
            update.union_by_name(schema)
        self.reload()

    def expire(self, before_s: float) -> int:
        """Expire snapshots older than `before_s` (s since 1970); returns how many."""
        from datetime import UTC, datetime

        before = len(self._table.metadata.snapshots)
        moment = datetime.fromtimestamp(before_s, UTC)
        self._table.maintenance.expire_snapshots().older_than(moment).commit()
        self.reload()
        return before - len(self._table.metadata.snapshots)

    def reachable_files(self) -> set[str]:
        """Paths of the data files of all snapshots in the metadata."""
        files = self._table.inspect.all_data_files()
        return {path_of(uri) for uri in files.column("file_path").to_pylist()}

    def append(
        self,
        key: ExportKey,
        files: Sequence[WrittenFile],
        after: Progress,
        removed: Sequence[LiveFile] = (),
    ) -> None:
        """Add files, take `removed` out and set the progress, in one snapshot. TableConflict if the
        branch has moved since it was read."""
        from pyiceberg.exceptions import CommitFailedException, ValidationException

        data_files = [self._data_file(file) for file in files]
        properties = self._properties(key, after)
        try:
            with _without_retries(self._table).transaction() as transaction:
                snapshot = transaction.update_snapshot(snapshot_properties=properties)
                # A fast append rewrites no manifests; an overwrite, which has to, is for compaction
                # and upserts only.
                with snapshot.overwrite() if removed else snapshot.fast_append() as change:
                    for data_file in data_files:
                        change.append_data_file(data_file)
                    for file in removed:
                        change.delete_data_file(file.handle)
                # In the same transaction as the files: rows and offsets change together.
                transaction.set_properties(properties)
        except (CommitFailedException, ValidationException) as error:
            raise TableConflict(str(error)) from None
        self.reload()

    def _properties(self, key: ExportKey, after: Progress) -> dict[str, str]:
        ours = _prefix(key)
        properties = {
            f"{ours}/epoch": str(after.epoch),
            f"{ours}/attempt": str(after.attempt),
            f"{ours}/process": str(after.process),
            f"{ours}/commit": str(after.commit),
        }
        if after.topic_mark == topic_mark(key.topic_id):
            properties[f"{ours}/topic-id"] = key.topic_id
        if after.upsert_mark:
            properties[f"{ours}/upsert"] = str(after.upsert_mark)
        for partition, offset in after.offsets.items():
            properties[f"lakemq/{key.export_id}/{key.topic_id}/{partition}"] = str(offset)
        return properties

    def _data_file(self, file: WrittenFile) -> DataFile:
        from pyiceberg.io.pyarrow import (
            compute_statistics_plan,
            data_file_statistics_from_parquet_metadata,
            parquet_path_to_id_mapping,
        )
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

        schema = self._table.schema()
        statistics = data_file_statistics_from_parquet_metadata(
            parquet_metadata=read_footer(file),
            stats_columns=compute_statistics_plan(schema, self._table.properties),
            parquet_column_mapping=parquet_path_to_id_mapping(schema),
        )
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{self.location}/{file.path}",
            file_format=FileFormat.PARQUET,
            partition=to_record(self._table, file.partition_values),
            file_size_in_bytes=file.size_bytes,
            sort_order_id=None,
            spec_id=self._table.spec().spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )


def _prefix(key: ExportKey) -> str:
    return f"lakemq/{key.export_id}/{key.topic}"


def _without_retries(table: Table) -> Table:
    """The same table, with pyiceberg's retries off in this process (not in the catalog)."""
    from pyiceberg.table import Table

    metadata = table.metadata.model_copy(
        update={"properties": {**table.metadata.properties, **_NO_RETRIES}}
    )
    return Table(table.name(), metadata, table.metadata_location, table.io, table.catalog)


def _small(field: Any) -> Any:
    """A field with 32-bit lengths, as the journal's columns have; ids are kept."""
    return field.with_type(_small_type(field.type))


def _small_type(kind: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([_small(child) for child in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_small(kind.value_field))
    return kind
