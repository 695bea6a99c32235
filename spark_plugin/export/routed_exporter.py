"""The export loop into many tables: one read of the topic, a table for each route. Edge.

The ledger is to this export what the table is to others: where it stands, its epoch, its owner.
One commit of it follows those of the tables that got rows:

    new routes into the ledger -> dead letters -> table of each route -> ledger

A crash in between leaves some tables ahead of the ledger. The next run reads from where the ledger
stands, which is the least that any table has, and each table leaves out what it has already.
That holds as long as a record goes to the same table again, so the rule may not change then.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from spark_plugin.errors import ExportError, OptionError
from spark_plugin.export import table as lake
from spark_plugin.export.compaction import Compacted
from spark_plugin.export.decoders import EXPLODING
from spark_plugin.export.decoding import BadRow
from spark_plugin.export.exporter import Exporter, RunTasks, pause
from spark_plugin.export.file_writer import PartitionedWriter
from spark_plugin.export.files import Folder
from spark_plugin.export.ledger import ROUTE, RULE, read_state, write_rows
from spark_plugin.export.partitioning import parse_partition_by
from spark_plugin.export.replay import Replayed, fresh_letters
from spark_plugin.export.report import CommitReport, check_complete
from spark_plugin.export.routed_rows import RoutedRows, rows_of
from spark_plugin.export.routes import Routes
from spark_plugin.export.routing import RouteTarget, Routing, difference, rule_of
from spark_plugin.export.settings import ExportSettings
from spark_plugin.export.table import ExportKey, LakeTable, Progress, TaskResult, WrittenFile
from spark_plugin.export.write_task import WriteTask, schema_from_text
from spark_plugin.planning import OffsetRange, TopicView

if TYPE_CHECKING:
    import pyarrow as pa

_ROUNDS_MAX = 20
"""A range may show new routes again when the tasks that met them first were cut short."""


class RoutedExporter(Exporter):
    """One process's run of a routed export of one topic."""

    def __init__(
        self,
        settings: ExportSettings,
        ledger: LakeTable,
        run_tasks: RunTasks,
        schema: pa.Schema,
        dlq: LakeTable,
        *,
        parallelism: int = 2,
    ) -> None:
        super().__init__(settings, ledger, run_tasks, parallelism=parallelism, dlq=dlq)
        self._routes = Routes(settings, schema, pause)

    def start(self) -> list[str]:
        deleted = super().start()
        key = self._key(self._look())
        now = self._progress(key)
        known = read_state(self._table, key.export_id, key.topic)
        deleted += self._routes.start(key, self._epoch, known.routes, now.offsets)
        rule = rule_of(self.settings)
        if known.rule != rule:
            if known.rule and self._routes.is_ahead(now.offsets):
                raise OptionError(
                    "the last run ended between the commits of two tables: run the export once "
                    f"as it was ({difference(known.rule, rule)}), then change where records go"
                )
            now = self._note(key, now, RULE, [rule])
        default = self.settings.route_default
        if default and default not in self._routes:
            self._add_routes(key, now, [default])
        return deleted

    def close(self) -> None:
        self._routes.close()
        super().close()

    def _note(self, key: ExportKey, before: Progress, kind: str, values: Sequence[str]) -> Progress:
        """Commit rows of the ledger."""
        after = replace(before, epoch=self._epoch, attempt=before.attempt + 1)
        files = write_rows(self._table, key, self._epoch, after.attempt, kind, values)
        lake.commit(self._table, key, files, before, after, pause)
        return after

    def _add_routes(self, key: ExportKey, before: Progress, names: Sequence[str]) -> Progress:
        """Tables for routes, which are in the ledger first."""
        after = self._note(key, before, ROUTE, names)
        for name in names:
            self._routes.add(key, name, after.offsets)
        return after

    def _export(
        self,
        key: ExportKey,
        topic: TopicView,
        before: Progress,
        ranges: list[OffsetRange],
        lag: int,
    ) -> CommitReport:
        try:
            return self._export_routed(key, topic, before, ranges, lag)
        except Exception:
            self._routes.forget()
            raise

    def _export_routed(
        self,
        key: ExportKey,
        topic: TopicView,
        before: Progress,
        ranges: list[OffsetRange],
        lag: int,
    ) -> CommitReport:
        assert self._dead is not None
        started = time.monotonic()
        before, results, dead_folder = self._run_routed(key, topic, before, ranges)
        check_complete(ranges, results)
        written = time.monotonic()
        after = self._after(key, before, ranges)
        dead = [result.file for result in results if result.kind == "dlq"]
        self._dead.commit(key, dead, dead_folder, after.offsets)
        files = _by_route(results)
        self._routes.commit(key, files, after.offsets)
        lake.commit(self._table, key, [], before, after, pause)
        all_files = [file for each in files.values() for file in each]
        return CommitReport(
            attempt=after.attempt,
            rows=sum(file.rows for file in all_files),
            files=len(all_files),
            size_bytes=sum(file.size_bytes for file in all_files),
            offsets=after.offsets,
            lag=lag,
            offset_count=sum(each.end - each.start for each in ranges),
            dead_letters=sum(file.rows for file in dead),
            job_s=written - started,
            commit_s=time.monotonic() - written,
        )

    def _run_routed(
        self, key: ExportKey, topic: TopicView, before: Progress, ranges: list[OffsetRange]
    ) -> tuple[Progress, list[TaskResult], str]:
        """Run the tasks, again if they met new routes: (where the ledger stands now, results,
        folder of the dead letters)."""
        assert self._dead is not None
        dead_folder = self._dead.new_folder(key)
        known = self._dead.known(key, before.offsets)
        for _ in range(_ROUNDS_MAX):
            self._routes.prepare(key)
            tasks = self._tasks(ranges, topic, "", dead_folder, known)
            results = self._run_tasks([replace(t, routing=self._routing(t)) for t in tasks])
            new = self._new_routes(results)
            if not new:
                return before, results, dead_folder
            self._routes.restart()
            self._dead.folder.delete(dead_folder)
            self._dead.folder.create(dead_folder)
            before = self._add_routes(key, before, new)
        raise ExportError(f"the routes of topic {key.topic} never end to change")

    def _routing(self, task: WriteTask | None = None) -> Routing:
        settings = self.settings
        targets = self._routes.targets(task.offsets.partition if task is not None else None)
        return Routing(
            settings.route_by, settings.route_default, settings.routes_max, settings.target.format,
            targets,
        )  # fmt: skip

    def _new_routes(self, results: Sequence[TaskResult]) -> list[str]:
        """Routes that get a table: what tasks met, in a fixed order, as far as there is room."""
        met: dict[str, None] = {}
        for result in sorted(results, key=lambda each: (each.partition, each.start)):
            if result.kind == "routes":
                met |= dict.fromkeys(json.loads(result.file.footer))
        room = self.settings.routes_max - len(self._routes)
        return [name for name in met if name not in self._routes][: max(0, room)]

    def compact(self) -> Compacted | None:
        if not self.settings.compact_files:
            return None
        key = self._key(self._look())
        self._check_epoch(key, self._progress(key))
        return self._routes.compact(key)

    def replay(self) -> Replayed:
        """Land the dead letters that by now decode and name a table. Each table commits for
        itself; what has landed is read from the tables, so a crash in between repeats nothing."""
        key = self._key(self._look())
        before = self._progress(key)
        self._check_epoch(key, before)
        for _ in range(_ROUNDS_MAX):
            self._routes.prepare(key)
            write, outcome = self._route_letters(key, before)
            files = {route: each for route, each in write.close() if each}
            new = [name for name in sorted(write.new_routes) if name not in self._routes]
            if not new:
                self._routes.commit(key, files, {})
                return outcome
            self._routes.restart()
            room = self.settings.routes_max - len(self._routes)
            before = self._add_routes(key, before, new[:room])
        raise ExportError(f"the routes of topic {key.topic} never end to change")

    def _route_letters(self, key: ExportKey, before: Progress) -> tuple[RoutedRows, Replayed]:
        """Write what dead letters are good now to files of their routes."""
        assert self._dead is not None
        settings, bad_counts = self.settings, [0]
        decoder = None if settings.format == "raw" else self._columns.decoder()

        def count_bad(_: pa.RecordBatch, bad: Sequence[BadRow]) -> int:
            bad_counts[0] += len(bad)
            return 0

        write = RoutedRows(
            self._routing(),
            self._open_writer,
            lambda batch: rows_of(batch, decoder, settings.format in EXPLODING),
            count_bad,
        )
        fresh_count = there_count = 0
        tables = self._routes.tables()
        for fresh, there in fresh_letters(key, tables, self._dead.table, before.offsets):
            fresh_count, there_count = fresh_count + fresh.num_rows, there_count + there
            if fresh.num_rows:
                write(fresh)
        bad = bad_counts[0]
        return write, Replayed(fresh_count - bad, there_count, bad)

    def _open_writer(self, route: RouteTarget) -> PartitionedWriter:
        return PartitionedWriter(
            Folder(route.location), route.folder, "replay", schema_from_text(route.schema),
            self.settings.file_bytes_max, parse_partition_by(self.settings.partition_by),
        )  # fmt: skip


def _by_route(results: Sequence[TaskResult]) -> dict[str, list[WrittenFile]]:
    files: dict[str, list[WrittenFile]] = {}
    for result in results:
        if result.kind == "data":
            files.setdefault(result.route, []).append(result.file)
    return files
