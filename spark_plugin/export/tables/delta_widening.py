"""Wider column types in a Delta table: its files are rewritten.

Delta has a table feature for it (type widening) that delta-rs does not know. So every file that the
table consists of is read, cast and written again, and one commit puts the new ones in place of the
old ones under the new schema. Files that others add meanwhile stay; another writer that removes
files meanwhile makes the commit fail, and it is tried again."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from lakemq.spark_plugin.errors import TableError
from lakemq.spark_plugin.export.tables.file_writer import FileWriter
from lakemq.spark_plugin.export.tables.files import PREFIX, Folder
from lakemq.spark_plugin.export.tables.stats import delta_stats
from lakemq.spark_plugin.export.tables.table import WrittenFile

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

_TRIES: Final = 5
_FILE_MAX_BYTES: Final = 256 << 20
_BATCH_ROWS: Final = 65_536


def is_widened(has: pa.Schema, wanted: pa.Schema) -> bool:
    """Whether a column, or a field within one, has another type than before."""
    return any(_differs(field.type, wanted.field(field.name).type) for field in has)


def _differs(has: pa.DataType, wanted: pa.DataType) -> bool:
    import pyarrow as pa

    if pa.types.is_struct(has) and pa.types.is_struct(wanted):
        return any(_differs(each.type, wanted.field(each.name).type) for each in has)
    if pa.types.is_list(has) and pa.types.is_list(wanted):
        return _differs(has.value_type, wanted.value_type)
    return bool(has != wanted)


def rewrite(
    table: DeltaTable, location: str, schema: pa.Schema, storage: Mapping[str, str]
) -> None:
    """Give the table the schema, whose types hold all that is there."""
    from deltalake import Schema
    from deltalake.exceptions import CommitFailedError

    partition_by = table.metadata().partition_columns
    for _ in range(_TRIES):
        table.update_incremental()
        attempt_path = f"{PREFIX}widened/{uuid.uuid4().hex}"
        # Outside the exports' attempt folders, which a process that starts would delete; what a
        # crash leaves is for the vacuum.
        actions = _write(table, Folder(location, storage), attempt_path, schema, partition_by)
        try:
            table.create_write_transaction(
                actions, "overwrite", Schema.from_arrow(schema), partition_by
            )
            return
        except CommitFailedError:
            Folder(location, storage).delete(attempt_path)
    raise TableError(f"{location}: others kept changing the table while its columns were to grow")


def _write(
    table: DeltaTable, folder: Folder, attempt_path: str, schema: pa.Schema, partition_by: list[str]
) -> list[Any]:
    """Every live file cast to the schema, in a new folder; the add actions."""
    import pyarrow as pa
    from deltalake.transaction import AddAction
    from pyarrow import dataset

    if table.deletion_vectors().read_all().num_rows:
        raise TableError(
            f"{folder.full_path('')}: rows were deleted by deletion vectors, so its columns can't "
            "grow; compact the table first"
        )
    folder.create(attempt_path)
    in_files = pa.schema([field for field in schema if field.name not in partition_by])
    actions = []
    for number, row in enumerate(pa.table(table.get_add_actions()).to_pylist()):
        values = tuple(_text(row["partition"][name]) for name in partition_by)
        writer = FileWriter(
            folder, attempt_path, f"{number:06d}", in_files, _FILE_MAX_BYTES, values
        )
        path = folder.full_path(unquote(row["path"]))
        old = dataset.dataset([path], in_files, "parquet", filesystem=folder.filesystem)
        for batch in old.to_batches(use_threads=False, batch_size=_BATCH_ROWS):
            writer.write(pa.Table.from_batches([batch]))
        actions += [_add_action(AddAction, file, partition_by) for file in writer.close()]
    folder.sync(attempt_path)
    return actions


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _add_action(kind: Any, file: WrittenFile, partition_by: list[str]) -> Any:
    values = dict(zip(partition_by, file.partition_values, strict=True))
    now_ms = time.time_ns() // 1_000_000
    return kind(file.path, file.size_bytes, values, now_ms, True, json.dumps(delta_stats(file)))
