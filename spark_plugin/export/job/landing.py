"""The tables that an export writes, and the attempt at the next commit.

The export loop uses one `Landing`: a single table (`OneTable`, here) or one table for each route
(`routes.Routes`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from lakemq.spark_plugin.export.job.evolving import EvolvingColumns
from lakemq.spark_plugin.export.job.settings import ExportSettings
from lakemq.spark_plugin.export.job.task_results import DataFile, TaskResult
from lakemq.spark_plugin.export.maintenance.compaction import Compacted, compact
from lakemq.spark_plugin.export.tables import table as lake
from lakemq.spark_plugin.export.tables.files import Folder, attempt_folder, note_strays
from lakemq.spark_plugin.export.tables.table import ExportKey, LakeTable, Progress, WrittenFile

if TYPE_CHECKING:
    from lakemq.spark_plugin.export.job.write_task import WriteTask
    from lakemq.spark_plugin.export.routing.sql_query import SqlQuery

STAGED: Final = "staged"
"""Folder in an attempt's folder: decoded records for the query of `--sql`, or for an upsert."""

Files = Mapping[str, Sequence[WrittenFile]]
"""Route (empty: there is one table) -> files of the next commit."""
Pause = Callable[[int], None]


class Landing(Protocol):
    """The tables of one export, held by one process."""

    head: LakeTable
    """The table that stores the offsets of the whole export; its commit ends an attempt."""

    def start(self, key: ExportKey, now: Progress) -> list[str]:
        """The head has the epoch of `now`: take it in the other tables too. Returns the names of
        orphaned folders that were deleted."""

    def prepare(self, key: ExportKey, now: Progress) -> None:
        """Create the folders for the attempt that follows `now`."""

    def assign_destination(self, task: WriteTask) -> WriteTask:
        """The task with the folders and columns that it writes."""

    def evolve_schema(
        self, key: ExportKey, now: Progress, results: Sequence[TaskResult]
    ) -> Progress | None:
        """Create the columns and tables that the results ask for, and discard what the tasks wrote:
        they are to run again. Returns the head's progress then; None: nothing was asked for."""

    def finish(self, results: Sequence[TaskResult]) -> Files:
        """The files to commit, of results that ask for no more columns or tables."""

    def commit(self, key: ExportKey, files: Files, before: Progress, after: Progress) -> None:
        """Add the files. The head comes last."""

    def invalidate(self) -> None:
        """An attempt failed: reload every table before the next one."""

    def compact(self, key: ExportKey) -> Compacted | None:
        """Compact small files if there are too many; None if not."""

    def tables(self) -> list[LakeTable]:
        """The tables that rows are written to."""

    def close(self) -> None:
        """Delete the folder of an attempt that was not committed."""


class LandingTable:
    """One table, and the folder of the next attempt's files."""

    def __init__(self, settings: ExportSettings, table: LakeTable, pause: Pause) -> None:
        self.table = table
        self.folder = Folder(table.location, table.storage)
        self.columns = EvolvingColumns(settings, table)
        self.attempt_path = ""
        """The folder, relative to the table's location; empty: not created yet."""
        self._pause = pause

    def prepare(self, key: ExportKey, epoch: int, before: Progress, inner: str = "") -> None:
        """Make the folder for the attempt that follows, with a folder `inner` in it."""
        # The folder of an attempt without rows is kept for the next one, so an idle table costs no
        # calls to the store.
        if not self.attempt_path:
            self.attempt_path = attempt_folder(key, epoch, before.attempt + 1)
            self.folder.create(f"{self.attempt_path}/{inner}" if inner else self.attempt_path)

    def restart(self) -> None:
        """Delete what was written."""
        if self.attempt_path:
            with contextlib.suppress(FileNotFoundError):  # a process that takes over deletes it too
                self.folder.delete(self.attempt_path)
            self.attempt_path = ""

    def reload(self) -> None:
        """Load the table's newest state. Files of the last attempt may be in it, so nothing is
        deleted here."""
        self.attempt_path = ""
        self.table.reload()
        self.columns.refresh()

    def commit(
        self,
        key: ExportKey,
        files: Sequence[WrittenFile],
        before: Progress,
        after: Progress,
        append: lake.Append | None = None,
        more: Sequence[WrittenFile] = (),
    ) -> None:
        """Add the files; `append` as in `lake.commit`, `more`: files that it adds besides."""
        path, self.attempt_path = self.attempt_path, ""  # from here on `restart` must not delete it
        # The folder's entries must be durable before a commit refers to its files.
        self.folder.sync(path)
        lake.commit(self.table, key, files, before, after, self._pause, append)
        # Only after the commit: before it, every file in the folder is an orphan, and goes with the
        # folder.
        note_strays(self.folder, path, {file.path for file in [*files, *more]})
        self.columns.refresh()

    def compact(self, settings: ExportSettings, key: ExportKey, epoch: int) -> Compacted | None:
        """Compact small files if there are more than `compact_files`; None if not."""
        return compact(
            self.table,
            key,
            epoch,
            files_max=settings.compact_files,
            file_bytes=settings.file_max_bytes,
        )


class OneTable:
    """All rows of an export in one table; with a query, its results."""

    def __init__(
        self,
        settings: ExportSettings,
        table: LakeTable,
        pause: Pause,
        query: SqlQuery | None = None,
    ) -> None:
        self.head = table
        self.settings = settings
        self._query = query
        self.table = LandingTable(settings, table, pause)
        self._epoch = 0

    @property
    def stages(self) -> bool:
        """Whether tasks write rows that are not those of the table yet."""
        return self._query is not None

    def start(self, key: ExportKey, now: Progress) -> list[str]:
        """Note the epoch; there are no other tables to take it in, and none to clean up."""
        self._epoch = now.epoch
        return []

    def prepare(self, key: ExportKey, now: Progress) -> None:
        """Create the folder for the attempt that follows `now`, with one for staged files if there
        is a query."""
        self.table.columns.refresh()  # others may have changed the table
        self.table.prepare(key, self._epoch, now, STAGED if self.stages else "")

    def assign_destination(self, task: WriteTask) -> WriteTask:
        """The task with the attempt's folder (with a query, the folder of staged files) and the
        table's columns."""
        columns, path = self.table.columns, self.table.attempt_path
        return replace(
            task,
            location=self.head.location,
            folder=f"{path}/{STAGED}" if self.stages else path,
            schema=columns.table_schema,
            value_schema=columns.value_schema,
        )

    def evolve_schema(
        self, key: ExportKey, now: Progress, results: Sequence[TaskResult]
    ) -> Progress | None:
        """Add the columns that the results ask for, and delete what was written; None if there are
        none. The progress stays as it was: this is no commit of the export."""
        if not self.table.columns.extend(results):
            return None
        # What was written lacks the new columns, and the ranges are read again anyway.
        self.table.restart()
        return now

    def finish(self, results: Sequence[TaskResult]) -> Files:
        """The data files of the results; with a query, the files of its result."""
        files = [result.file for result in results if isinstance(result, DataFile)]
        if self._query is not None:
            files = self._run_query(self._query, [file.path for file in files])
        return {"": files}

    def _run_query(self, query: SqlQuery, staged: Sequence[str]) -> list[WrittenFile]:
        """The result of the query over the staged files, which are then gone."""
        settings, path = self.settings, self.table.attempt_path
        files = query.run(
            staged,
            self.head.location,
            path,
            self.head.arrow_schema(),
            settings.file_max_bytes,
            settings.partition_by,
        )
        # Before the commit, or the staged files would count as strays of the attempt.
        self.table.folder.delete(f"{path}/{STAGED}")
        return files

    def commit(self, key: ExportKey, files: Files, before: Progress, after: Progress) -> None:
        """Add the files and set the progress, in one commit of the table. Raises ExportFenced,
        TableError."""
        self.table.commit(key, files[""], before, after)

    def invalidate(self) -> None:
        """Forget the attempt's folder without deleting it: the commit may have been applied."""
        self.table.attempt_path = ""  # every attempt reloads the table

    def compact(self, key: ExportKey) -> Compacted | None:
        """Compact small files if there are too many; None if not."""
        return self.table.compact(self.settings, key, self._epoch)

    def tables(self) -> list[LakeTable]:
        """The table alone."""
        return [self.head]

    def close(self) -> None:
        """Delete the folder of an attempt that was not committed."""
        self.table.restart()
