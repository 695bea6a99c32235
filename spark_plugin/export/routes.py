"""The tables of a routed export, held by one process. Edge: tables, files.

Every table carries the topic's offsets in its own commits: it has all rows of its route below
them. A commit leaves out tables that get no row, which therefore stand further back; the ledger,
whose commit comes last, says what all have. A table is complete up to the later of the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_plugin.errors import ExportFenced
from spark_plugin.export import table as lake
from spark_plugin.export.compaction import Compacted, compact
from spark_plugin.export.files import Folder, attempt_folder, delete_orphans, delete_strays
from spark_plugin.export.open_table import open_table
from spark_plugin.export.partitioning import parse_partition_by
from spark_plugin.export.routing import RouteTarget, target_of
from spark_plugin.export.settings import ExportSettings
from spark_plugin.export.table import ExportKey, LakeTable, Progress, WrittenFile
from spark_plugin.export.write_task import schema_to_text

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class Route:
    """One table."""

    name: str
    table: LakeTable
    folder: Folder
    schema: str
    progress: Progress
    place: str = ""
    """Folder of the next attempt's files, once it is there. It waits while the route gets no
    rows, so an idle table costs nothing."""


class Routes:
    """All tables that the export has."""

    def __init__(
        self, settings: ExportSettings, schema: pa.Schema, pause: Callable[[int], None]
    ) -> None:
        self._settings = settings
        self._schema = schema
        self._pause = pause
        self._epoch = 0
        self._key: ExportKey | None = None
        self._open: dict[str, Route] = {}
        self._grown: list[Route] = []
        """Tables that the last commit added files to."""

    def __contains__(self, name: str) -> bool:
        return name in self._open

    def __len__(self) -> int:
        return len(self._open)

    def start(
        self, key: ExportKey, epoch: int, names: Iterable[str], offsets: Mapping[int, int]
    ) -> list[str]:
        """Take the ledger's epoch in every table, as `add` does."""
        self._key, self._epoch = key, epoch
        return [each for name in names for each in self.add(key, name, offsets)]

    def add(self, key: ExportKey, name: str, offsets: Mapping[int, int]) -> list[str]:
        """Open a table, created if absent, as complete up to `offsets`, which the ledger says of
        all. Its new epoch fences other processes, whose left-over folders are deleted; returns
        the names of these."""
        settings = self._settings
        table = open_table(
            target_of(settings.target, name), self._schema,
            parse_partition_by(settings.partition_by),
        )  # fmt: skip
        before = table.progress(key)
        if before.epoch > self._epoch:
            raise ExportFenced(
                f"export {key.export_id} of topic {key.topic} was taken over by another process "
                f"(epoch {before.epoch} in {table.location}, here {self._epoch})"
            )
        after = self._after(key, before, offsets, before.attempt)
        if after != before:
            lake.commit(table, key, [], before, after, self._pause)
        folder = Folder(table.location)
        deleted = delete_orphans(folder, key, before.attempt)
        schema = schema_to_text(table.arrow_schema())
        self._open[name] = Route(name, table, folder, schema, after)
        return deleted

    def _after(
        self, key: ExportKey, before: Progress, offsets: Mapping[int, int], attempt: int
    ) -> Progress:
        """Offsets only ever grow: a table may be ahead of the others after a crash."""
        reached = {**before.offsets}
        for partition, offset in offsets.items():
            reached[partition] = max(offset, reached.get(partition, 0))
        return Progress(self._epoch, attempt, lake.topic_mark(key.topic_id), reached)

    def is_ahead(self, offsets: Mapping[int, int]) -> bool:
        """Whether a table has rows that the ledger does not tell of: a commit stopped between two
        tables."""
        return any(
            offset > offsets.get(partition, 0)
            for route in self._open.values()
            for partition, offset in route.progress.offsets.items()
        )

    def forget(self) -> None:
        """Something failed: the next attempt looks at every table anew."""
        self._key = None

    def prepare(self, key: ExportKey) -> None:
        """Make every table ready for the files of the next attempt."""
        for route in self._open.values():
            if key != self._key:
                route.table.reload()
                route.progress = route.table.progress(key)
                route.place = ""  # its files may be in the table by now: nothing is deleted here
            if not route.place:
                place = attempt_folder(key, self._epoch, route.progress.attempt + 1)
                route.folder.create(place)
                route.place = place
        self._key = key

    def targets(self, partition: int | None = None) -> tuple[RouteTarget, ...]:
        """What tasks that read the partition need to know; without one, nothing is skipped."""
        return tuple(
            RouteTarget(
                route.name, route.table.location, route.place, route.schema,
                0 if partition is None else route.progress.offsets.get(partition, 0),
            )
            for route in self._open.values()
        )  # fmt: skip

    def restart(self) -> None:
        """The tasks are to run again: forget what they wrote."""
        for route in self._open.values():
            self._drop_place(route)

    def _drop_place(self, route: Route) -> None:
        if route.place:
            route.folder.delete(route.place)
            route.place = ""

    def commit(
        self, key: ExportKey, files: Mapping[str, Sequence[WrittenFile]], offsets: Mapping[int, int]
    ) -> None:
        """Commit each table that has files, with its offsets; one after the other."""
        self._grown = []
        for name, mine in files.items():
            route = self._open[name]
            place, before = route.place, route.progress
            route.folder.sync(place)
            after = self._after(key, before, offsets, before.attempt + 1)
            lake.commit(route.table, key, mine, before, after, self._pause)
            route.progress, route.place = after, ""
            delete_strays(route.folder, place, {file.path for file in mine})
            self._grown.append(route)

    def compact(self, key: ExportKey) -> Compacted | None:
        """Put small files together in the tables that the last commit grew."""
        settings, done = self._settings, []
        for route in self._grown:
            self._drop_place(route)
            each = compact(
                route.table, key, self._epoch, files_max=settings.compact_files,
                file_bytes=settings.file_bytes_max,
            )  # fmt: skip
            if each is not None:
                done.append(each)
                route.table.reload()
                route.progress = route.table.progress(key)
        self._grown = []
        if not done:
            return None
        return Compacted(sum(each.removed for each in done), sum(each.added for each in done))

    def tables(self) -> list[LakeTable]:
        return [route.table for route in self._open.values()]

    def close(self) -> None:
        """Leave no empty folders; those of a commit that failed are the next run's to delete."""
        if self._key is not None:
            self.restart()
