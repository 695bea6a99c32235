"""Dead letters of one export: records that cannot be decoded, each once in a table of their own.

Two tables can't commit together, so the dead letters go first. If the process dies before the rows
follow, the next run finds the dead-letter table ahead, and skips exactly the offsets that it holds
at or above the table's own next offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from lakemq.spark_plugin.export.tables import table as lake
from lakemq.spark_plugin.export.tables.files import (
    Folder,
    attempt_folder,
    delete_orphans,
    delete_strays,
    new_token,
    note_strays,
)
from lakemq.spark_plugin.export.tables.table import ExportKey, LakeTable, Progress, WrittenFile

if TYPE_CHECKING:
    from collections.abc import Callable


class DeadLetters:
    """The dead-letter table of one export, held by one process."""

    def __init__(self, table: LakeTable, pause: Callable[[int], None]) -> None:
        self.table = table
        self.folder = Folder(table.location, table.storage)
        self._pause = pause
        self._now = Progress()
        self._known: dict[int, tuple[int, ...]] | None = None

    def epoch(self, key: ExportKey) -> int:
        """The last epoch here. It is above the table's if that was deleted and created again."""
        return self._progress(key).epoch

    def start(self, key: ExportKey, now: Progress) -> list[str]:
        """The table has the epoch of `now`: take it here; delete the orphans of earlier runs."""

        def following(before: Progress) -> Progress:
            return replace(before, epoch=now.epoch, process=now.process, commit=new_token())

        before, after = lake.take_epoch(self.table, key, now.epoch, following, self._pause)
        self._now = after
        delete_strays(self.folder, key, after.epoch, self.table.reachable_files)
        return delete_orphans(self.folder, key, after.epoch, before.attempt)

    def _progress(self, key: ExportKey) -> Progress:
        self.table.reload()
        return self.table.progress(key)

    def known(self, key: ExportKey, next_offsets: Mapping[int, int]) -> dict[int, tuple[int, ...]]:
        """Partition -> offsets, not below the table's next ones, that are here already. Looked up
        once: later only this process adds any, and always together with the table's offsets,
        unless a commit fails (`invalidate`)."""
        if self._known is None:
            now = self._progress(key)
            # The two tables are fenced apart: a process may have taken this one and not the other
            # one yet.
            if not lake.owns(self._now, now):
                raise lake.taken_over(key, self.table, now, self._now.epoch)
            self._now, here = now, now.offsets
            # Normally empty, and then no data file is read.
            ahead = {
                partition: next_offsets.get(partition, 0)
                for partition, offset in here.items()
                if offset > next_offsets.get(partition, 0)
            }
            self._known = stored_offsets(self.table, key, ahead) if ahead else {}
        return self._known

    def new_folder(self, key: ExportKey) -> str:
        """A folder for the files of the attempt that follows what `known` saw."""
        folder = attempt_folder(key, self._now.epoch, self._now.attempt + 1)
        self.folder.create(folder)
        return folder

    def invalidate(self) -> None:
        """An attempt failed: the next one reads the table again."""
        self._known = None

    def commit(
        self, key: ExportKey, files: list[WrittenFile], folder: str, offsets: Mapping[int, int]
    ) -> None:
        """Add the files; without any, delete the attempt's folder."""
        # No commit, so the offsets here stay behind the table's: only being ahead has a meaning.
        if not files:
            self.folder.delete(folder)
            return
        self.folder.sync(folder)
        before = self._now
        after = replace(
            before,
            attempt=before.attempt + 1,
            commit=new_token(),
            topic_mark=lake.topic_mark(key.topic_id),
            offsets={**before.offsets, **offsets},
        )
        lake.commit(self.table, key, files, before, after, self._pause)
        self._now = after
        note_strays(self.folder, folder, {file.path for file in files})


def stored_offsets(
    table: LakeTable, key: ExportKey, start: Mapping[int, int]
) -> dict[int, tuple[int, ...]]:
    """Partition -> offsets of the topic id in the table, from `start` on; ascending."""
    from pyarrow import dataset

    found: dict[int, tuple[int, ...]] = {}
    paths = table.data_files()
    if not paths:
        return found
    files = dataset.dataset(
        paths, format="parquet", filesystem=Folder(table.location, table.storage).filesystem
    )
    column = dataset.field
    for partition, first in start.items():
        rows = files.to_table(
            columns=["offset"],
            filter=(column("topic_id") == key.topic_id)
            & (column("partition") == partition)
            & (column("offset") >= first),
        )
        found[partition] = tuple(sorted(rows.column("offset").to_pylist()))
    return found
