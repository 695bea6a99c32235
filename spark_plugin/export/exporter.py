"""The export loop: next offsets from the table -> a bounded range -> Spark job -> one commit. Edge.

Nothing but the table remembers where the export stands. A crash at any point leaves at most files
that no commit names; the next run deletes them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from plugins.native.sdk import UnknownTopic
from spark_plugin import planning
from spark_plugin.errors import ExportError, ExportFenced, OptionError, TopicRecreated
from spark_plugin.export import table as lake
from spark_plugin.export.bounds import bounded, parse_bound
from spark_plugin.export.compaction import Compacted, compact
from spark_plugin.export.dead_letters import DeadLetters
from spark_plugin.export.decoders import EXPLODING
from spark_plugin.export.evolving import EvolvingColumns
from spark_plugin.export.files import (
    Folder,
    attempt_folder,
    delete_orphans,
    delete_strays,
)
from spark_plugin.export.owner import Owner
from spark_plugin.export.partitioning import parse_partition_by
from spark_plugin.export.replay import Replayed, write_decodable
from spark_plugin.export.report import CommitReport, check_complete
from spark_plugin.export.settings import ExportSettings
from spark_plugin.export.sql_query import SqlQuery
from spark_plugin.export.table import ExportKey, LakeTable, Progress, TaskResult, WrittenFile
from spark_plugin.export.write_task import WriteTask, schema_to_text
from spark_plugin.journal import client_of, retrying, view_of
from spark_plugin.offsets import TopicCursor
from spark_plugin.planning import OffsetRange, TopicView

RunTasks = Callable[[Sequence[WriteTask]], list[TaskResult]]
"""Runs tasks somewhere and returns what they wrote: Spark, or in tests this process."""

_STAGED = "staged"
"""Folder in an attempt's folder: decoded records for the query of `--sql`."""
_EVOLUTIONS_MAX = 20
_TASK_BYTES_MIN = 8 << 20
"""A range smaller than this is not split further."""


class Exporter:
    """One process's run of one export of one topic."""

    def __init__(
        self,
        settings: ExportSettings,
        table: LakeTable,
        run_tasks: RunTasks,
        *,
        parallelism: int = 2,
        dlq: LakeTable | None = None,
        query: SqlQuery | None = None,
    ) -> None:
        self.settings = settings
        self._query = query
        self._table = table
        self._run_tasks = run_tasks
        self._parallelism = parallelism
        self._folder = Folder(table.location)
        self._columns = EvolvingColumns(settings, table)
        self._dead = DeadLetters(dlq, pause) if dlq is not None else None
        self._dead_schema = schema_to_text(dlq.arrow_schema()) if dlq is not None else ""
        self._owner: Owner | None = None
        self._epoch = 0
        self._target: dict[str, TopicCursor] | None = None

    def start(self) -> list[str]:
        """Take the next epoch, which fences any other process of this export, and delete what
        earlier ones left behind; returns the names of the folders deleted."""
        topic = self._look()
        key = self._key(topic)
        before = self._progress(key)
        self._check_topic(key, before)
        self._owner = Owner(self._folder, key)
        if not self.settings.take_over:
            self._owner.check_free()
        after = replace(before, epoch=before.epoch + 1)
        if before.topic_mark is None:
            first = self._first_offsets(topic)
            mark = lake.topic_mark(key.topic_id) if first else None
            after = replace(after, topic_mark=mark, offsets=first)
        lake.commit(self._table, key, [], before, after, pause)
        self._epoch = after.epoch
        self._owner.take()
        if self.settings.trigger_s is None:
            self._target = planning.latest({key.topic: topic})
        deleted = delete_orphans(self._folder, key, before.attempt)
        return deleted + (self._dead.start(key) if self._dead is not None else [])

    def _first_offsets(self, topic: TopicView) -> dict[int, int]:
        """Where a new export begins; partitions that are not named begin at their oldest record."""
        wish = self.settings.start
        if wish == "earliest":
            return {}
        ends = {number: held.high_watermark for number, held in topic.partitions.items()}
        if wish == "latest":
            return ends
        bound = parse_bound("--from-offset", wish)
        wanted = dict.fromkeys(ends, bound) if isinstance(bound, int) else bound
        for number, offset in wanted.items():
            if offset > ends.get(number, -1):
                raise OptionError(
                    f"--from-offset: {self.settings.topic}-{number} "
                    + (f"ends at offset {ends[number]}" if number in ends else "is not there")
                )
        return {
            number: max(offset, topic.partitions[number].log_start)
            for number, offset in wanted.items()
        }

    def close(self) -> None:
        """The export is no longer run by this process."""
        if self._owner is not None:
            self._owner.leave()

    def step(self) -> CommitReport | None:
        """Export what is there, up to the limits of one commit; None when caught up."""
        topic = self._look()
        key = self._key(topic)
        before = self._progress(key)
        self._check_epoch(key, before)
        self._check_topic(key, before)
        ranges, lag = self._plan(topic, before)
        if not ranges:
            return None
        try:
            return self._export(key, topic, before, ranges, lag)
        except ExportFenced:
            raise
        except Exception:
            # Whoever takes over deletes our folder, which fails in many ways: say what it means.
            self._check_epoch(key, self._progress(key))
            raise

    def _check_epoch(self, key: ExportKey, now: Progress) -> None:
        if now.epoch != self._epoch:
            raise ExportFenced(
                f"export {key.export_id} of topic {key.topic} was taken over by another process "
                f"(epoch {now.epoch}, here {self._epoch})"
            )

    def _export(
        self,
        key: ExportKey,
        topic: TopicView,
        before: Progress,
        ranges: list[OffsetRange],
        lag: int,
    ) -> CommitReport:
        after = self._after(key, before, ranges)
        folder = attempt_folder(key, self._epoch, after.attempt)
        dead_folder = self._dead.new_folder(key) if self._dead is not None else ""
        known = self._dead.known(key, before.offsets) if self._dead is not None else {}
        started = time.monotonic()
        place = f"{folder}/{_STAGED}" if self._query is not None else folder
        self._folder.create(place)
        tasks = partial(self._tasks, ranges, topic, place, dead_folder, known)
        results = self._run_evolving(tasks, place, dead_folder)
        check_complete(ranges, results)
        files = [result.file for result in results if result.kind == "data"]
        if self._query is not None:
            files = self._run_query(self._query, files, folder)
        written = time.monotonic()
        dead = [result.file for result in results if result.kind == "dlq"]
        if self._dead is not None:
            self._dead.commit(key, dead, dead_folder, after.offsets)
        self._folder.sync(folder)
        lake.commit(self._table, key, files, before, after, pause)
        delete_strays(self._folder, folder, {file.path for file in files})
        return CommitReport(
            attempt=after.attempt,
            rows=sum(file.rows for file in files),
            files=len(files),
            size_bytes=sum(file.size_bytes for file in files),
            offsets=after.offsets,
            lag=lag,
            offset_count=sum(each.end - each.start for each in ranges),
            dead_letters=sum(file.rows for file in dead),
            job_s=written - started,
            commit_s=time.monotonic() - written,
        )

    def _run_query(
        self, query: SqlQuery, staged: list[WrittenFile], folder: str
    ) -> list[WrittenFile]:
        """The result of the query over the staged files, which are then gone."""
        files = query.run(
            [file.path for file in staged], self._table.location, folder,
            self._table.arrow_schema(), self.settings.file_bytes_max, self.settings.partition_by,
        )  # fmt: skip
        self._folder.delete(f"{folder}/{_STAGED}")
        return files

    def _run_evolving(
        self, tasks: Callable[[], list[WriteTask]], folder: str, dead_folder: str
    ) -> list[TaskResult]:
        """Run the tasks; if they met fields that become columns, run them all again."""
        self._columns.refresh()
        for _ in range(_EVOLUTIONS_MAX):
            results = self._run_tasks(tasks())
            if not self._columns.extend(results):
                return results
            self._folder.delete(folder)
            self._folder.create(folder)
            if self._dead is not None:
                self._dead.folder.delete(dead_folder)
                self._dead.folder.create(dead_folder)
        raise ExportError(f"the fields of topic {self.settings.topic} never end to change")

    def compact(self) -> Compacted | None:
        """Put small files together if there are too many; None if not."""
        settings = self.settings
        if not settings.compact_files:
            return None
        key = self._key(self._look())
        self._check_epoch(key, self._progress(key))
        return compact(
            self._table, key, self._epoch, files_max=settings.compact_files,
            file_bytes=settings.file_bytes_max,
        )  # fmt: skip

    def replay(self) -> Replayed:
        """Land the dead letters that decode by now."""
        if self._dead is None:
            raise OptionError("exports of --format raw have no dead letters")
        if self.settings.sql:
            raise OptionError("dead letters of an export with --sql can't be replayed")
        key = self._key(self._look())
        before = self._progress(key)
        self._check_epoch(key, before)
        after = replace(before, attempt=before.attempt + 1)
        place = attempt_folder(key, self._epoch, after.attempt)
        self._folder.create(place)
        files, outcome = write_decodable(
            key, self._table, self._dead.table, place, self._columns.decoder(),
            self.settings.format in EXPLODING, parse_partition_by(self.settings.partition_by),
            before.offsets,
        )  # fmt: skip
        if not files:
            self._folder.delete(place)
            return outcome
        self._folder.sync(place)
        lake.commit(self._table, key, files, before, after, pause)
        return outcome

    def _look(self) -> TopicView:
        client, name = client_of(self.settings.bootstrap, self.settings.access), self.settings.topic
        try:
            found = retrying(lambda: client.describe_topic(name), self.settings.retry_timeout_s)
        except UnknownTopic:
            raise OptionError(f"there is no topic {name} at {self.settings.bootstrap}") from None
        return view_of([found])[name]

    def _key(self, topic: TopicView) -> ExportKey:
        settings = self.settings
        partitions = tuple(sorted(topic.partitions))
        return ExportKey(settings.export_id, settings.topic, topic.topic_id, partitions)

    def _progress(self, key: ExportKey) -> Progress:
        self._table.reload()
        return self._table.progress(key)

    def _check_topic(self, key: ExportKey, before: Progress) -> None:
        mark = lake.topic_mark(key.topic_id)
        if before.topic_mark in (None, mark) or self.settings.accept_recreated:
            return
        raise TopicRecreated(
            f"topic {key.topic} was deleted and created anew since export {key.export_id} read it "
            f"last (its id now is {key.topic_id}). The table keeps what it has; pass "
            "--accept-recreated to append the new topic from its start"
        )

    def _plan(self, topic: TopicView, before: Progress) -> tuple[list[OffsetRange], int]:
        """Ranges of the next commit, and how many offsets lie behind the table in all."""
        name, settings = self.settings.topic, self.settings
        view = {name: topic}
        stands = {name: TopicCursor(topic.topic_id, before.offsets)}
        start = planning.repair(stands, view, settings.fail_on_data_loss).cursor
        end = self._target or planning.latest(view)
        if settings.as_of:
            bound = parse_bound("--as-of-offset", settings.as_of)
            end = {
                each: TopicCursor(cursor.topic_id, bounded(cursor.offsets, bound))
                for each, cursor in end.items()
            }
        lag = planning.available(start, end)
        end = planning.limit(
            start, end, view, rows_max=settings.commit_rows, bytes_max=settings.commit_bytes
        )
        return planning.ranges_between(start, end, planning.earliest(view)), lag

    def _tasks(
        self,
        ranges: list[OffsetRange],
        topic: TopicView,
        folder: str,
        dead_folder: str,
        known: Mapping[int, tuple[int, ...]],
    ) -> list[WriteTask]:
        size = sum(
            (each.end - each.start) * topic.partitions[each.partition].record_bytes
            for each in ranges
        )
        pieces = min(self._parallelism, max(1, int(size / _TASK_BYTES_MIN)))
        settings, dead = self.settings, self._dead
        return [
            WriteTask(
                bootstrap=settings.bootstrap, offsets=piece, location=self._table.location,
                folder=folder, schema=self._columns.table_schema,
                file_bytes_max=settings.file_bytes_max, format=settings.format,
                retry_timeout_s=settings.retry_timeout_s,
                fail_on_data_loss=settings.fail_on_data_loss,
                value_schema=self._columns.value_schema, message=settings.message,
                delimiter=settings.delimiter, evolve=self._columns.evolve,
                partition_by=settings.partition_by,
                dlq_location=dead.table.location if dead is not None else "",
                dlq_folder=dead_folder, dlq_schema=self._dead_schema,
                dlq_known=tuple(
                    each for each in known.get(piece.partition, ())
                    if piece.start <= each < piece.end
                ),
            )
            for piece in planning.split(ranges, pieces_min=pieces)
        ]  # fmt: skip

    def _after(self, key: ExportKey, before: Progress, ranges: list[OffsetRange]) -> Progress:
        return Progress(
            epoch=self._epoch,
            attempt=before.attempt + 1,
            topic_mark=lake.topic_mark(key.topic_id),
            offsets={**before.offsets, **{each.partition: each.end for each in ranges}},
        )


def pause(number: int) -> None:
    """Wait before a commit is tried again."""
    time.sleep(min(1.0, 0.02 * number))
