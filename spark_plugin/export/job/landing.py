"""Where an export's rows land: the tables, and the attempt at them that is under way. Edge: files.

The export's loop knows one `Landing`; whether behind it is one table (`OneTable`, here) or one for
each route (`routes.Routes`) makes no difference to it, so both can do the same.
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

_STAGED: Final = "staged"
"""Folder in an attempt's folder: decoded records for the query of `--sql`."""

Files = Mapping[str, Sequence[WrittenFile]]
"""Route (empty: there is one table) -> files of the next commit."""
Pause = Callable[[int], None]


class Landing(Protocol):
    """The tables of one export, held by one process."""

    head: LakeTable
    """The table whose commit ends an attempt, and says where the export stands."""

    def start(self, key: ExportKey, now: Progress) -> list[str]:
        """The head has the epoch of `now`: take it everywhere; names of the left-over folders that
        were deleted."""

    def prepare(self, key: ExportKey, now: Progress) -> None:
        """Make ready for the files of the attempt that follows `now`."""

    def aim(self, task: WriteTask) -> WriteTask:
        """The task with the places and columns that it writes."""

    def grow(self, key: ExportKey, now: Progress, results: Sequence[TaskResult]) -> Progress | None:
        """Make the columns and tables that tasks found need of, and forget what the tasks wrote:
        they are to run again. Where the head stands then; None: nothing was needed."""

    def finish(self, results: Sequence[TaskResult]) -> Files:
        """Of results that need nothing more, the files to commit."""

    def commit(self, key: ExportKey, files: Files, before: Progress, after: Progress) -> None:
        """Add the files. The head comes last."""

    def forget(self) -> None:
        """Something failed: the next attempt looks at every table anew."""

    def compact(self, key: ExportKey) -> Compacted | None:
        """Put small files together if there are too many; None if not."""

    def tables(self) -> list[LakeTable]:
        """Those that rows land in."""

    def close(self) -> None:
        """Leave no empty folders behind."""


class LandingTable:
    """One table, with the folder of the next attempt's files."""

    def __init__(self, settings: ExportSettings, table: LakeTable, pause: Pause) -> None:
        self.table = table
        self.folder = Folder(table.location)
        self.columns = EvolvingColumns(settings, table)
        self.place = ""
        """The folder, once it is there."""
        self._pause = pause

    def prepare(self, key: ExportKey, epoch: int, before: Progress, inner: str = "") -> None:
        """Make the folder for the attempt that follows, with a folder `inner` in it."""
        if not self.place:
            self.place = attempt_folder(key, epoch, before.attempt + 1)
            self.folder.create(f"{self.place}/{inner}" if inner else self.place)

    def restart(self) -> None:
        """Forget what was written."""
        if self.place:
            with contextlib.suppress(FileNotFoundError):  # whoever takes over deletes it too
                self.folder.delete(self.place)
            self.place = ""

    def look_anew(self) -> None:
        """See the table's newest state. Files of the last attempt may be in it by now, so nothing
        is deleted here."""
        self.place = ""
        self.table.reload()
        self.columns.refresh()

    def commit(
        self, key: ExportKey, files: Sequence[WrittenFile], before: Progress, after: Progress
    ) -> None:
        """Add the files."""
        place, self.place = self.place, ""  # from here on `restart` must not delete it
        self.folder.sync(place)
        lake.commit(self.table, key, files, before, after, self._pause)
        note_strays(self.folder, place, {file.path for file in files})
        self.columns.refresh()

    def compact(self, settings: ExportSettings, key: ExportKey, epoch: int) -> Compacted | None:
        return compact(
            self.table, key, epoch, files_max=settings.compact_files,
            file_bytes=settings.file_max_bytes,
        )  # fmt: skip


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
        self._settings = settings
        self._query = query
        self._table = LandingTable(settings, table, pause)
        self._epoch = 0

    def start(self, key: ExportKey, now: Progress) -> list[str]:
        self._epoch = now.epoch
        return []

    def prepare(self, key: ExportKey, now: Progress) -> None:
        self._table.columns.refresh()  # others may have changed the table
        inner = _STAGED if self._query is not None else ""
        self._table.prepare(key, self._epoch, now, inner)

    def aim(self, task: WriteTask) -> WriteTask:
        columns, place = self._table.columns, self._table.place
        return replace(
            task,
            location=self.head.location,
            folder=f"{place}/{_STAGED}" if self._query is not None else place,
            schema=columns.table_schema,
            value_schema=columns.value_schema,
        )

    def grow(self, key: ExportKey, now: Progress, results: Sequence[TaskResult]) -> Progress | None:
        if not self._table.columns.extend(results):
            return None
        self._table.restart()
        return now

    def finish(self, results: Sequence[TaskResult]) -> Files:
        files = [result.file for result in results if isinstance(result, DataFile)]
        if self._query is not None:
            files = self._run_query(self._query, [file.path for file in files])
        return {"": files}

    def _run_query(self, query: SqlQuery, staged: Sequence[str]) -> list[WrittenFile]:
        """The result of the query over the staged files, which are then gone."""
        settings, place = self._settings, self._table.place
        files = query.run(
            staged, self.head.location, place, self.head.arrow_schema(), settings.file_max_bytes,
            settings.partition_by,
        )  # fmt: skip
        self._table.folder.delete(f"{place}/{_STAGED}")
        return files

    def commit(self, key: ExportKey, files: Files, before: Progress, after: Progress) -> None:
        self._table.commit(key, files[""], before, after)

    def forget(self) -> None:
        self._table.place = ""  # every attempt looks at the table anew

    def compact(self, key: ExportKey) -> Compacted | None:
        return self._table.compact(self._settings, key, self._epoch)

    def tables(self) -> list[LakeTable]:
        return [self.head]

    def close(self) -> None:
        """What a failed attempt left is the next run's to delete."""
        self._table.restart()
