"""Delta Lake through delta-rs: no JVM, no jars.

Progress is stored in app transactions, which Delta keeps in every checkpoint of the log:

    lakemq/<export id>/<topic id>/<partition>   version = next offset
    lakemq/<export id>/<topic>/epoch            version = epoch
    lakemq/<export id>/<topic>/attempt          version = attempt
    lakemq/<export id>/<topic>/process          version = token of the process that has the epoch
    lakemq/<export id>/<topic>/commit           version = token of the last commit
    lakemq/<export id>/<topic>/topic            version = first 60 bits of the topic id
    lakemq/<export id>/<topic>/upsert           version = `key_mark` of an upsert
    lakemq/upsert                               version = token of the last upsert of any export

Two commits that set the same app transaction from the same state conflict, so an export whose epoch
was taken over can't commit. `commitInfo.lakemq` repeats the offsets for people to read.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from lakemq.spark_plugin.errors import NoTable, TableError
from lakemq.spark_plugin.export.decoding.column_types import Evolve
from lakemq.spark_plugin.export.tables.columns import check_partitioned, fitting
from lakemq.spark_plugin.export.tables.delta_widening import is_widened, rewrite
from lakemq.spark_plugin.export.tables.files import NO_OPTIONS, Folder, path_of
from lakemq.spark_plugin.export.tables.partitioning import (
    PartitionField,
    partition_text,
    with_partition_columns,
)
from lakemq.spark_plugin.export.tables.stats import delta_stats
from lakemq.spark_plugin.export.tables.storage import delta_options, one_line
from lakemq.spark_plugin.export.tables.table import (
    ExportKey,
    LiveFile,
    Progress,
    TableCommit,
    TableConflict,
    WrittenFile,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

_APP = "lakemq"
_LOG = "_delta_log"
_VERSION_FILE = re.compile(r"[0-9]{20}\.json")


class DeltaLakeTable:
    """A Delta table at a path or URI."""

    def __init__(
        self,
        location: str,
        schema: pa.Schema | None,
        fields: Sequence[PartitionField] = (),
        evolve: Evolve = "strict",
        storage: Mapping[str, str] = NO_OPTIONS,
    ) -> None:
        """Open the table, created with `schema` and `fields` if absent; without a schema it must be
        there, and changed as far as `evolve` allows it. TableError if it is not, or if its columns
        or partitioning differ."""
        self.location, self.storage = location, storage
        self._options = delta_options(location, storage)
        whole = None if schema is None else with_partition_columns(schema, fields)
        self._partition_by = [field.name for field in fields]
        self._table = self._open_or_create(whole)
        if whole is not None:
            check_partitioned(location, self._table.metadata().partition_columns, fields)
            change = fitting(location, self.full_schema(), whole, evolve)
            if change is not None:
                self.add_columns(change)

    def _open_or_create(self, schema: pa.Schema | None) -> DeltaTable:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            if not DeltaTable.is_deltatable(self.location, self._options):
                if schema is None:
                    raise NoTable(f"there is no Delta table at {self.location}")
                # "ignore": two exports may create the table at the same time.
                DeltaTable.create(
                    self.location,
                    schema,
                    mode="ignore",
                    partition_by=self._partition_by,
                    storage_options=self._options,
                )
            return DeltaTable(self.location, storage_options=self._options)
        except (DeltaError, OSError) as error:
            raise TableError(
                f"Delta table {self.location} can't be opened: {one_line(error)}"
            ) from None

    def full_schema(self) -> pa.Schema:
        """Partition columns included."""
        import pyarrow as pa

        return pa.schema(self._table.schema().to_arrow())

    def arrow_schema(self) -> pa.Schema:
        """Without partition columns, whose values Delta keeps in the log."""
        import pyarrow as pa

        left_out = self.partition_columns()
        return pa.schema([field for field in self.full_schema() if field.name not in left_out])

    def scan(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of the version seen. TableError for deletion vectors, which delta-rs does not
        read."""
        from deltalake.exceptions import DeltaError

        try:
            yield from self._table.to_pyarrow_dataset().to_batches(columns=list(columns))
        except DeltaError as error:
            raise TableError(f"Delta table {self.location} can't be read: {error}") from None

    def reload(self) -> None:
        """See the newest version, read from the end of the log that was seen before."""
        self._table.update_incremental()

    def version(self) -> str:
        """The version seen."""
        return f"version {self._table.version()}"

    def progress(self, key: ExportKey) -> Progress:
        """Progress as app transactions hold it (Delta protocol, "Transaction Identifiers")."""
        read = self._table.transaction_version
        found = {
            partition: read(f"{_APP}/{key.export_id}/{key.topic_id}/{partition}")
            for partition in key.partitions
        }
        ours = f"{_APP}/{key.export_id}/{key.topic}"
        return Progress(
            epoch=read(f"{ours}/epoch") or 0,
            attempt=read(f"{ours}/attempt") or 0,
            process=read(f"{ours}/process") or 0,
            commit=read(f"{ours}/commit") or 0,
            topic_mark=read(f"{ours}/topic"),
            upsert_mark=read(f"{ours}/upsert") or 0,
            offsets={partition: each for partition, each in found.items() if each is not None},
        )

    def data_files(self) -> list[str]:
        """Paths of the files of the version seen."""
        return [path_of(uri) for uri in self._table.file_uris()]

    def commit_of(self, path: str) -> TableCommit | None:
        """The version whose file of the log adds a data file; None: that was cleaned up."""
        root = Folder(self.location, self.storage)
        for name in reversed(root.names(_LOG)):
            if not _VERSION_FILE.fullmatch(name):
                continue
            actions = [json.loads(line) for line in root.read(f"{_LOG}/{name}").splitlines()]
            added = (unquote(each["add"]["path"]) for each in actions if "add" in each)
            if any(root.full_path(each) == path for each in added):
                infos = (each["commitInfo"] for each in actions if "commitInfo" in each)
                at_ms = next((each.get("timestamp") for each in infos), None)
                return TableCommit(f"version {int(name[:20])}", at_ms)
        return None

    def live_files(self) -> list[LiveFile]:
        """The files of the version seen without deletion vectors, with rows (0 where the log does
        not say), sizes and partition values."""
        import pyarrow as pa

        root, names = Folder(self.location, self.storage), self.partition_columns()
        vectors = pa.table(self._table.deletion_vectors()).column("filepath").to_pylist()
        cut = {path_of(uri) for uri in vectors}
        found = []
        for row in pa.table(self._table.get_add_actions()).to_pylist():
            values = tuple(_text(row["partition"][name]) for name in names)
            path, rows = root.full_path(unquote(row["path"])), row["num_records"] or 0
            if path not in cut:
                found.append(LiveFile(path, rows, row["size_bytes"], values, unquote(row["path"])))
        return found

    def files_by_partition(self) -> list[tuple[dict[str, Any], list[str]]]:
        """(values of the partition columns, which no file holds; paths of the files with them)."""
        import pyarrow as pa

        root, names = Folder(self.location, self.storage), self._table.metadata().partition_columns
        found: dict[tuple[Any, ...], list[str]] = {}
        for row in pa.table(self._table.get_add_actions()).to_pylist():
            values = tuple(row["partition"][name] for name in names)
            found.setdefault(values, []).append(root.full_path(unquote(row["path"])))
        return [(dict(zip(names, values, strict=True)), paths) for values, paths in found.items()]

    def partition_columns(self) -> list[str]:
        """Names of the partition columns, in the order of the table."""
        return list(self._table.metadata().partition_columns)

    def partition_by(self) -> str:
        """The partitioning as `--partition-by` has it."""
        return partition_text(self.partition_columns(), self.full_schema())

    def add_columns(self, schema: pa.Schema) -> None:
        """Add the columns that are missing, or widen types, in a commit of their own. TableError if
        a type does not fit."""
        from deltalake import write_deltalake

        partition_by = self._table.metadata().partition_columns
        wider = fitting(self.location, self.full_schema(), schema, "widen")
        if wider is None:
            return
        if is_widened(self.full_schema(), wider):
            rewrite(self._table, self.location, wider, self.storage)
        else:
            write_deltalake(
                self.location,
                wider.empty_table(),
                mode="append",
                schema_mode="merge",
                partition_by=partition_by or None,
                storage_options=self._options,
            )
        self.reload()

    def expire(self, before_s: float) -> int:
        """Delta expires snapshots by its own settings (`delta.logRetentionDuration`, 30 days)."""
        before = len(self._table.history())
        self._table.cleanup_metadata()
        return before - len(self._table.history())

    def reachable_files(self) -> set[str]:
        """Paths of the files of the version seen; those of older versions are left to delta-rs' own
        vacuum."""
        return set(self.data_files())

    def vacuum(self, retention_s: float) -> list[str]:
        """Delete files that left the table longer ago than the retention, or never came into it and
        are older; returns their paths."""
        hours = math.ceil(retention_s / 3600)  # younger files may be those of a commit under way
        return list(
            self._table.vacuum(
                retention_hours=hours,
                dry_run=False,
                full=True,
                enforce_retention_duration=hours >= 168,
            )
        )

    def compact(self, file_bytes: int) -> tuple[int, int]:
        """Put small files together, as delta-rs does it, which knows deletion vectors, partitions
        and other writers; (files removed, files added). TableConflict if others changed them."""
        from deltalake import WriterProperties
        from deltalake.exceptions import CommitFailedError

        try:
            found = self._table.optimize.compact(
                target_size=file_bytes,
                max_concurrent_tasks=1,
                writer_properties=WriterProperties(compression="ZSTD", compression_level=1),
            )
        except CommitFailedError as error:
            raise TableConflict(str(error)) from None
        return int(found["numFilesRemoved"]), int(found["numFilesAdded"])

    def append(
        self,
        key: ExportKey,
        files: Sequence[WrittenFile],
        after: Progress,
        removed: Sequence[LiveFile] = (),
    ) -> None:
        """Add files, take others out and set the progress in one commit of the log. TableConflict
        if the export's app transactions changed since, or a file to take out is gone."""
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError

        versions = _transactions(key, after)
        properties = CommitProperties(
            custom_metadata={"lakemq": json.dumps(_readable(key, after))},
            # All of them in every commit: two commits from the same state then always share one,
            # and the second fails.
            app_transactions=[Transaction(app_id, version) for app_id, version in versions.items()],
        )
        try:
            self._table.create_write_transaction(
                [
                    *(self._add_action(file) for file in files),
                    *(self._remove_action(file) for file in removed),
                ],
                "append",
                self._table.schema(),
                self._partition_by,
                commit_properties=properties,
            )
        except CommitFailedError as error:
            raise TableConflict(str(error)) from None
        self._table.update_incremental()

    def _add_action(self, file: WrittenFile) -> Any:
        from deltalake.transaction import AddAction

        values = dict(zip(self._partition_by, file.partition_values, strict=True))
        now_ms = time.time_ns() // 1_000_000
        return AddAction(
            file.path, file.size_bytes, values, now_ms, True, json.dumps(delta_stats(file))
        )

    def _remove_action(self, file: LiveFile) -> Any:
        from deltalake.transaction import RemoveAction

        values = dict(zip(self._partition_by, file.partition_values, strict=True))
        now_ms = time.time_ns() // 1_000_000
        return RemoveAction(file.handle, True, now_ms, file.size_bytes, values)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _transactions(key: ExportKey, after: Progress) -> dict[str, int]:
    ours = f"{_APP}/{key.export_id}/{key.topic}"
    versions = {
        f"{ours}/epoch": after.epoch,
        f"{ours}/attempt": after.attempt,
        f"{ours}/process": after.process,
        f"{ours}/commit": after.commit,
    }
    if after.topic_mark is not None:
        versions[f"{ours}/topic"] = after.topic_mark
    if after.upsert_mark:
        versions[f"{ours}/upsert"] = after.upsert_mark
        # Upserts of other exports too may add a row of the same key: they have to see this one.
        versions[f"{_APP}/upsert"] = after.commit
    for partition, offset in after.offsets.items():
        versions[f"{_APP}/{key.export_id}/{key.topic_id}/{partition}"] = offset
    return versions


def _readable(key: ExportKey, after: Progress) -> Mapping[str, Any]:
    return {
        "export": key.export_id,
        "topic": key.topic,
        "topic_id": key.topic_id,
        "epoch": after.epoch,
        "attempt": after.attempt,
        "next_offsets": {str(partition): each for partition, each in after.offsets.items()},
    }
