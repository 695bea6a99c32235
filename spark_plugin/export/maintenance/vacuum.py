"""Vacuum: delete data files that no readable state of a table names.

Three kinds of files are no longer needed: those that compaction replaced, those of attempts that
lost (a task that ran twice, a crash), and those of expired states. A file younger than the
retention is never deleted: it may belong to a commit under way, or to a reader of an older state.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from lakemq.spark_plugin.export.tables.delta_table import DeltaLakeTable
from lakemq.spark_plugin.export.tables.files import PREFIX, Folder
from lakemq.spark_plugin.export.tables.table import LakeTable


@dataclass(frozen=True)
class Vacuumed:
    """What a vacuum did."""

    expired: int
    """States of the table that can't be read any more."""
    deleted: int
    """Files."""


def vacuum(table: LakeTable, retention_s: float) -> Vacuumed:
    """Expire states older than the retention, then delete files that no state names."""
    before_s = time.time_ns() / 1e9 - retention_s
    expired = table.expire(before_s)
    if isinstance(table, DeltaLakeTable):
        return Vacuumed(expired, len(table.vacuum(retention_s)))
    folder = Folder(table.location, table.storage)
    old = [
        path
        for name in folder.names("")
        if name.startswith(PREFIX)
        for path, changed_s in folder.files_below(name).items()
        if path.endswith(".parquet") and changed_s < before_s
    ]
    table.reload()
    # After listing the folders: a file that is committed meanwhile is named, one that is written
    # meanwhile is too young.
    named = table.reachable_files()
    unnamed = [path for path in old if path not in named]
    for path in unnamed:
        folder.filesystem.delete_file(path)
    return Vacuumed(expired, len(unnamed))
