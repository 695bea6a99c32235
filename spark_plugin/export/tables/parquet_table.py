"""Plain Parquet with a manifest: a folder that any Parquet reader can read, exactly once.

`_manifest/<number>.json` (numbers from 1, 20 digits) are the commits. Each is created whole and
exclusively under the next number, and says which files it adds and the offsets of its export.
Readers take the files that manifests name: the format is in `docs/formats/lakehouse.md`.
"""

from __future__ import annotations

import base64
import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from lakemq.spark_plugin.errors import NoTable, TableError
from lakemq.spark_plugin.export.decoding.column_types import Evolve
from lakemq.spark_plugin.export.tables.columns import check_partitioned, fitting
from lakemq.spark_plugin.export.tables.files import NO_OPTIONS, Folder
from lakemq.spark_plugin.export.tables.partitioning import (
    PartitionField,
    partition_text,
    with_partition_columns,
)
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

MANIFESTS: Final = "_manifest"
VERSION: Final = 1


class ParquetTable:
    """A folder with Parquet files and manifests."""

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
        self._folder = Folder(location, storage)
        self._number = 0
        self._exports: dict[str, Any] = {}
        whole = None if schema is None else with_partition_columns(schema, fields)
        self.reload()
        if not self._number:
            if whole is None:
                raise NoTable(f"there are no manifests in {location}/{MANIFESTS}")
            self._create(whole, [field.name for field in fields])
        head = self._read(1)
        if whole is not None:
            check_partitioned(location, head["partition_by"], fields)
            change = fitting(location, self._schema, whole, evolve)
            if change is not None:
                self.add_columns(change)

    def _create(self, schema: pa.Schema, partition_by: list[str]) -> None:
        head = {
            "v": VERSION,
            "number": 1,
            "schema": _schema_text(schema),
            "partition_by": partition_by,
            "files": [],
        }
        self._folder.create(MANIFESTS)
        # Another export may be quicker; its schema is then checked like that of an old table.
        with contextlib.suppress(FileExistsError):
            self._folder.create_exclusively(_manifest(1), _encode(head))
        self.reload()

    def arrow_schema(self) -> pa.Schema:
        """The newest schema in the manifests, columns of partition values included."""
        return self._schema

    def full_schema(self) -> pa.Schema:
        """The same."""
        return self._schema

    def scan(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of the files that the manifests leave in the table."""
        from pyarrow import dataset

        files = dataset.dataset(
            self.data_files(), self._schema, "parquet", filesystem=self._folder.filesystem
        )
        yield from files.to_batches(columns=list(columns))

    def reload(self) -> None:
        """Read the manifests that came since; each names the progress of one export, or columns."""
        import pyarrow as pa

        # Numbers have no gaps: each manifest is created exclusively under the number after the
        # newest one.
        while self._folder.exists(_manifest(self._number + 1)):
            self._number += 1
            found = self._read(self._number)
            if "schema" in found:
                encoded = base64.b64decode(found["schema"])
                self._schema = pa.ipc.read_schema(pa.py_buffer(encoded))
            if "export" in found:
                self._exports[_name(found["export"], found["topic"])] = found

    def _read(self, number: int) -> dict[str, Any]:
        path = _manifest(number)
        try:
            found = json.loads(self._folder.read(path))
            if found["v"] != VERSION or found["number"] != number:
                raise ValueError(f"version {found['v']}, number {found['number']}")
            return dict(found)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TableError(f"{self.location}/{path} can't be read: {error}") from None

    def version(self) -> str:
        """The newest manifest seen."""
        return f"manifest {self._number}"

    def progress(self, key: ExportKey) -> Progress:
        """Progress in the newest manifest of the export; offsets only of the same topic id."""
        found = self._exports.get(_name(key.export_id, key.topic))
        if found is None:
            return Progress()
        offsets = found["next_offsets"] if found["topic_id"] == key.topic_id else {}
        return Progress(
            epoch=found["epoch"],
            attempt=found["attempt"],
            process=found.get("process", 0),
            commit=found.get("commit", 0),
            topic_mark=found["topic_mark"],
            offsets={int(partition): offset for partition, offset in offsets.items()},
        )

    def append(
        self,
        key: ExportKey,
        files: Sequence[WrittenFile],
        after: Progress,
        removed: Sequence[LiveFile] = (),
    ) -> None:
        """Create the next manifest, which adds files, takes others out and sets the progress.
        TableConflict if another process has created it."""
        number = self._number + 1
        manifest = {
            "v": VERSION, "number": number, "committed_ms": time.time_ns() // 1_000_000,
            "export": key.export_id, "topic": key.topic, "topic_id": key.topic_id,
            "topic_mark": after.topic_mark, "epoch": after.epoch, "attempt": after.attempt,
            "process": after.process, "commit": after.commit,
            "next_offsets": {str(partition): each for partition, each in after.offsets.items()},
            "files": [
                {
                    "path": file.path, "rows": file.rows, "size_bytes": file.size_bytes,
                    "partition": list(file.partition_values),
                }
                for file in files
            ],
            "removed": [file.handle for file in removed],
        }  # fmt: skip
        try:
            # The commit. Data files and their folder were synced before.
            self._folder.create_exclusively(_manifest(number), _encode(manifest))
        except FileExistsError:
            raise TableConflict(f"{_manifest(number)} exists") from None
        self.reload()

    def data_files(self) -> list[str]:
        """Paths of the files that the manifests leave in the table."""
        return [file.path for file in self.live_files()]

    def commit_of(self, path: str) -> TableCommit | None:
        """The manifest that added a data file."""
        for number in range(self._number, 0, -1):
            manifest = self._read(number)
            if any(self._folder.full_path(each["path"]) == path for each in manifest["files"]):
                return TableCommit(f"manifest {number}", manifest.get("committed_ms"))
        return None

    def live_files(self) -> list[LiveFile]:
        """The files that the manifests leave in the table: those added and not removed later."""
        found: dict[str, LiveFile] = {}
        for number in range(1, self._number + 1):
            manifest = self._read(number)
            for path in manifest.get("removed", ()):
                # Removed by a compaction, whose manifest adds the merged files.
                found.pop(path, None)
            for each in manifest["files"]:
                path = each["path"]
                full = self._folder.full_path(path)
                values = tuple(each["partition"])
                found[path] = LiveFile(full, each["rows"], each["size_bytes"], values, path)
        return list(found.values())

    def partition_by(self) -> str:
        """The partitioning as `--partition-by` has it, from the first manifest."""
        return partition_text(self._read(1)["partition_by"], self._schema)

    def add_columns(self, schema: pa.Schema) -> None:
        """Create a manifest with the merged schema, behind the manifests of others; none if nothing
        is new. TableError if a type does not fit."""
        while True:
            merged = fitting(self.location, self._schema, schema, "widen")
            if merged is None:
                return
            number = self._number + 1
            change = {"v": VERSION, "number": number, "schema": _schema_text(merged), "files": []}
            try:
                self._folder.create_exclusively(_manifest(number), _encode(change))
                self.reload()
                return
            except FileExistsError:  # another process's commit: ours follows it
                self.reload()

    def expire(self, before_s: float) -> int:
        """Always 0: there are no snapshots to expire."""
        return 0  # only the newest state can be read

    def reachable_files(self) -> set[str]:
        """Paths of the files of the newest state."""
        return set(self.data_files())


def _manifest(number: int) -> str:
    return f"{MANIFESTS}/{number:020d}.json"


def _schema_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def _name(export_id: str, topic: str) -> str:
    return f"{export_id}/{topic}"


def _encode(manifest: dict[str, Any]) -> bytes:
    return json.dumps(manifest, indent=1).encode()
