"""The export loop: next offsets from the table -> a bounded range -> Spark job -> one commit.

Only the table stores the export's offsets. A crash at any point leaves at most files that no commit
refers to; the next run deletes them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from lakemq.plugins.native.sdk import UnknownTopic
from lakemq.plugins.native.sdk.tracing import is_traced
from lakemq.spark_plugin.errors import ExportError, ExportFenced, OptionError, TopicRecreated
from lakemq.spark_plugin.export.decoding.births import BirthLog
from lakemq.spark_plugin.export.decoding.column_types import REST, Evolve
from lakemq.spark_plugin.export.job.bounds import bounded, parse_bound
from lakemq.spark_plugin.export.job.landing import Landing
from lakemq.spark_plugin.export.job.owner import Owner
from lakemq.spark_plugin.export.job.report import (
    Births,
    CommitReport,
    births_after,
    check_complete,
    records_read,
    rest_of_results,
    skipped_of,
    tombstones_of,
)
from lakemq.spark_plugin.export.job.settings import ExportSettings
from lakemq.spark_plugin.export.job.task_results import DeadLetterFile, TaskResult
from lakemq.spark_plugin.export.job.write_task import WriteTask, schema_to_text
from lakemq.spark_plugin.export.maintenance.compaction import Compacted
from lakemq.spark_plugin.export.maintenance.dead_letters import DeadLetters
from lakemq.spark_plugin.export.maintenance.replay import DeadLetterReplay, Replayed
from lakemq.spark_plugin.export.tables import table as lake
from lakemq.spark_plugin.export.tables.files import (
    Folder,
    delete_orphans,
    delete_strays,
    new_token,
)
from lakemq.spark_plugin.export.tables.table import ExportKey, LakeTable, Progress
from lakemq.spark_plugin.export.tracing import commit_span
from lakemq.spark_plugin.export.upserting.key import key_mark, parse_key
from lakemq.spark_plugin.source import planning
from lakemq.spark_plugin.source.birth_reader import birth_log
from lakemq.spark_plugin.source.broker_reader import client_of, described, retrying
from lakemq.spark_plugin.source.offsets import TopicCursor
from lakemq.spark_plugin.source.planning import OffsetRange, TopicView

RunTasks = Callable[[Sequence[WriteTask]], list[TaskResult]]
"""Runs tasks somewhere and returns what they wrote: Spark, or in tests this process."""

_log = logging.getLogger("lakemq.spark")
_REST_NAMES_MAX = 1000
_ROUNDS_MAX = 20
"""How often a range is read again because its records need columns or tables that do not exist."""
_TASK_MIN_BYTES = 8 << 20
"""A range smaller than this is not split further."""


def describe_topic(settings: ExportSettings) -> TopicView:
    """The topic as it is now. OptionError: there is none; Unavailable after `retry_timeout_s`."""
    client, name = client_of(settings.bootstrap, settings.access), settings.topic
    try:
        return retrying(lambda: described(client, name), settings.retry_timeout_s)
    except UnknownTopic:
        raise OptionError(f"unknown topic {name} at {settings.bootstrap}") from None


class Exporter:
    """One process's run of one export of one topic."""

    def __init__(
        self,
        settings: ExportSettings,
        landing: Landing,
        run_tasks: RunTasks,
        *,
        parallelism: int | Callable[[], int] = 2,
        dlq: LakeTable | None = None,
    ) -> None:
        """`landing`: tables for the rows; `dlq`: dead letters, needed unless the format is raw."""
        self.settings = settings
        self._landing = landing
        self._table = landing.head
        self._run_tasks = run_tasks
        self._parallelism = parallelism if callable(parallelism) else lambda: parallelism
        self._folder = Folder(landing.head.location, landing.head.storage)
        self._dead = DeadLetters(dlq, pause) if dlq is not None else None
        self._dead_schema = schema_to_text(dlq.arrow_schema()) if dlq is not None else ""
        self._owner: Owner | None = None
        self._started = Progress()
        self._rest_names: dict[str, None] = {}
        self._births: Births = {}
        """What a later process must look for again."""
        self._target: dict[str, TopicCursor] | None = None

    def start(self) -> list[str]:
        """Take the next epoch, which fences any other process of this export, and delete orphaned
        folders of earlier ones; returns their names."""
        topic = describe_topic(self.settings)
        key = self._key(topic)
        before = self._progress(key)
        self._check_topic(key, before)
        mark = self._check_mode(key, before)
        self._owner = Owner(self._folder, key)
        if not self.settings.take_over:
            self._owner.check_free()
        epoch = before.epoch
        if self._dead is not None:
            # A table that was deleted and created again starts at epoch 0: its process must still
            # fence the earlier ones, whose epochs the dead letters hold.
            epoch = max(epoch, self._dead.epoch(key))
        after = replace(
            before, epoch=epoch + 1, process=new_token(), commit=new_token(), upsert_mark=mark
        )
        if before.topic_mark is None:
            first = self._first_offsets(topic)
            # The start offsets are committed with the epoch, so that a crash before the first rows
            # can't make the next run start elsewhere. The mark says which topic they belong to.
            topic_mark = lake.topic_mark(key.topic_id) if first else None
            after = replace(after, topic_mark=topic_mark, offsets=first)
        # The epoch is in the table before anything else happens: from here on no earlier process
        # can commit, so what it left behind may be deleted.
        lake.commit(self._table, key, [], before, after, pause)
        self._started = after
        # After the epoch: the record of the owner is for people, the epoch is what counts.
        self._owner.take()
        if self.settings.trigger_s is None:
            self._target = planning.latest({key.topic: topic})
        delete_strays(self._folder, key, after.epoch, self._table.reachable_files)
        # Only now, under a committed epoch: before it, a folder might have belonged to a commit
        # under way.
        deleted = delete_orphans(self._folder, key, after.epoch, before.attempt)
        deleted += self._dead.start(key, after) if self._dead is not None else []
        return deleted + self._landing.start(key, after)

    def _check_mode(self, key: ExportKey, before: Progress) -> int:
        """The mark of `--mode upsert` and its key, 0 without. OptionError if rows were exported in
        another mode: they may be there several times, or be those of another key."""
        wanted = key_mark(self.settings.upsert_key) if self.settings.upsert_key else 0
        if before.attempt and before.upsert_mark != wanted:
            was = "--mode upsert" if before.upsert_mark else "--mode append"
            other = " and another --key" if before.upsert_mark and wanted else ""
            raise OptionError(
                f"export {key.export_id} of topic {key.topic} was begun with {was}{other}: go on "
                "with that, or give another --export-id and table"
            )
        return wanted

    def _first_offsets(self, topic: TopicView) -> dict[int, int]:
        """Start offsets of a new export; partitions that are not named start at the log start."""
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
                    + (f"ends at offset {ends[number]}" if number in ends else "does not exist")
                )
        return {
            number: max(offset, topic.partitions[number].log_start)
            for number, offset in wanted.items()
        }

    def close(self) -> None:
        """Release the export, so that another process can run it."""
        self._landing.close()
        if self._owner is not None:
            self._owner.leave()

    def step(self) -> CommitReport | None:
        """Export up to the limits of one commit; None when caught up."""
        topic = describe_topic(self.settings)
        key = self._key(topic)
        before = self._progress(key)
        # Before any work: the commit would fail all the same, but a whole Spark job later.
        self._check_epoch(key, before)
        self._check_topic(key, before)
        ranges, lag = self._plan(topic, before)
        if not ranges:
            return None
        try:
            return self._export(key, topic, before, ranges, lag)
        except ExportFenced:
            # Nothing is deleted here: the folders are now for the process that took over.
            self._invalidate()
            raise
        except Exception:
            self._invalidate()
            # A process that took over deletes our folder, which fails in many ways: say why.
            self._check_epoch(key, self._progress(key))
            raise

    def _invalidate(self) -> None:
        self._landing.invalidate()
        if self._dead is not None:
            self._dead.invalidate()

    def _check_epoch(self, key: ExportKey, now: Progress) -> None:
        if not lake.owns(self._started, now):
            raise lake.taken_over(key, self._table, now, self._started.epoch)

    def _export(
        self,
        key: ExportKey,
        topic: TopicView,
        before: Progress,
        ranges: list[OffsetRange],
        lag: int,
    ) -> CommitReport:
        started = time.monotonic()
        folder, known = "", {}
        if self._dead is not None:
            # Dead letters that an earlier run committed and whose rows did not follow: tasks leave
            # them out.
            known = self._dead.known(key, before.offsets)
            folder = self._dead.new_folder(key)
        tasks = self._tasks(ranges, topic, folder, known)
        before, results = self._write_until_schema_fits(
            key,
            before,
            lambda: self._run_tasks([self._landing.assign_destination(task) for task in tasks]),
            folder,
        )
        # A last line of defence: a bug or a lost result must fail the attempt, not leave a gap
        # behind offsets that are committed.
        check_complete(ranges, results)
        files = self._landing.finish(results)
        written = time.monotonic()
        after = self._after(key, before, ranges)
        dead = [result.file for result in results if isinstance(result, DeadLetterFile)]
        if self._dead is not None:
            # Dead letters first. After a crash in between they are ahead, and the next run skips
            # them; the other way round they would be lost for good.
            self._dead.commit(key, dead, folder, after.offsets)
        all_files = [file for each in files.values() for file in each]
        rows = sum(file.rows for file in all_files)
        with commit_span(key.topic, key.export_id, self._table, results, rows):
            self._landing.commit(key, files, before, after)
        self._births = births_after(self._births, ranges, results)
        return CommitReport(
            attempt=after.attempt,
            rows=rows,
            records=records_read(results),
            files=len(all_files),
            size_bytes=sum(file.size_bytes for file in all_files),
            offsets=after.offsets,
            lag=lag,
            offset_count=sum(each.end - each.start for each in ranges),
            dead_letters=sum(file.rows for file in dead),
            job_s=written - started,
            commit_s=time.monotonic() - written,
            skipped=skipped_of(results),
            rest_rows=self._log_rest(results),
            tombstones=tombstones_of(results),
        )

    def _log_rest(self, results: Sequence[TaskResult]) -> int:
        """Log fields that have no column of their own, each once; rows that have any."""
        rows, names = rest_of_results(results)
        new = [name for name in names if name not in self._rest_names]
        room = max(0, _REST_NAMES_MAX - len(self._rest_names))
        if new[:room]:
            self._rest_names |= dict.fromkeys(new[:room])
            _log.warning(
                "%s: fields that can't be columns go to column %s: %s",
                self.settings.topic,
                REST,
                ", ".join(map(repr, new[:room])),
            )
        return rows

    def _write_until_schema_fits(
        self,
        key: ExportKey,
        before: Progress,
        write: Callable[[], list[TaskResult]],
        dead_folder: str = "",
    ) -> tuple[Progress, list[TaskResult]]:
        """Write, again while records need tables or columns that do not exist; (progress of the
        head then, results)."""
        for _ in range(_ROUNDS_MAX):
            self._landing.prepare(key, before)
            results = write()
            now = self._landing.evolve_schema(key, before, results)
            if now is None:
                return before, results
            before = now
            if self._dead is not None and dead_folder:
                # The range is read again and writes its dead letters again: those of this round
                # must not be committed beside them.
                self._dead.folder.delete(dead_folder)
                self._dead.folder.create(dead_folder)
        raise ExportError(
            f"schema of topic {key.topic} did not stabilise after {_ROUNDS_MAX} attempts: its "
            "records keep adding fields or routes"
        )

    def compact(self) -> Compacted | None:
        """Compact small files if there are too many; None if not."""
        if not self.settings.compact_files:
            return None
        key = self._key(describe_topic(self.settings))
        self._check_epoch(key, self._progress(key))
        return self._landing.compact(key)

    def replay(self, evolve: Evolve = "strict") -> Replayed:
        """Write the dead letters that can be decoded now; `evolve` says which columns may be added
        for them. Which are written already is read from the tables, so a crash repeats nothing."""
        if self._dead is None:
            raise OptionError("exports of --format raw have no dead letters")
        key = self._key(describe_topic(self.settings))
        before = self._progress(key)
        self._check_epoch(key, before)
        # Which letters have landed is read before the attempt and again in `outcome`: the tables
        # themselves are the only record of it.
        letters = DeadLetterReplay(key, self._landing.tables(), self._dead.table, before.offsets)
        nowhere = OffsetRange(key.topic, key.topic_id, -1, 0, 0)
        task = replace(self._task(nowhere, ""), evolve="strict" if self.settings.sql else evolve)
        before, results = self._write_until_schema_fits(
            key,
            before,
            lambda: letters.write(self._landing.assign_destination(task), self._births_before),
        )
        self._log_rest(results)
        files = self._landing.finish(results) if letters.good else {}
        if any(files.values()):
            after = replace(before, attempt=before.attempt + 1, commit=new_token())
            self._landing.commit(key, files, before, after)
        return letters.outcome(self._landing.tables())

    def _births_before(self, partition: int, offset: int) -> BirthLog:
        """What a record by itself may follow; none that came before it has been looked at."""
        settings, topic = self.settings, describe_topic(self.settings)
        record = OffsetRange(settings.topic, topic.topic_id, partition, offset, offset + 1)
        client = client_of(settings.bootstrap, settings.access)
        return birth_log(client, record, settings.access, settings.retry_timeout_s)

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
            f"topic {key.topic} was deleted and created again since export {key.export_id} read it "
            f"last (its id now is {key.topic_id}). The table keeps what it has; pass "
            "--accept-recreated to append the new topic from its start"
        )

    def _plan(self, topic: TopicView, before: Progress) -> tuple[list[OffsetRange], int]:
        """Ranges of the next commit, and the lag: how many offsets are not exported yet."""
        name, settings = self.settings.topic, self.settings
        view = {name: topic}
        cursor = {name: TopicCursor(topic.topic_id, before.offsets)}
        # The same checks as the stream source: an export must not pass silently over records that
        # retention deleted.
        start = planning.repair(cursor, view, settings.fail_on_data_loss).cursor
        # Without a trigger the export stops at the ends that it found at its start, though
        # producers go on.
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
        dead_folder: str,
        known: Mapping[int, tuple[int, ...]],
    ) -> list[WriteTask]:
        size = sum(
            (each.end - each.start) * topic.partitions[each.partition].record_bytes
            for each in ranges
        )
        # A small commit gets few tasks: each costs a file for every table and partition that it
        # writes.
        pieces = max(1, int(size / _TASK_MIN_BYTES))
        pieces = pieces if pieces == 1 else min(self._parallelism(), pieces)
        return [
            replace(
                self._task(piece, dead_folder),
                dlq_known=tuple(
                    each
                    for each in known.get(piece.partition, ())
                    # Only its own, for the list travels with every task.
                    if piece.start <= each < piece.end
                ),
            )
            for piece in planning.split(ranges, pieces_min=pieces)
        ]

    def _task(self, piece: OffsetRange, dead_folder: str) -> WriteTask:
        """One task, before the landing assigns its destination."""
        settings, dead = self.settings, self._dead
        return WriteTask(
            bootstrap=settings.bootstrap, offsets=piece, location="", folder="", schema="",
            file_max_bytes=settings.file_max_bytes, format=settings.format,
            retry_timeout_s=settings.retry_timeout_s,
            fail_on_data_loss=settings.fail_on_data_loss,
            value_schema=settings.value_schema, message=settings.message,
            delimiter=settings.delimiter,
            evolve="strict" if settings.sql else settings.evolve,
            partition_by=settings.partition_by, traced=is_traced(),
            dlq_location=dead.table.location if dead is not None else "",
            dlq_folder=dead_folder, dlq_schema=self._dead_schema,
            upsert_key=parse_key(settings.upsert_key) if settings.upsert_key else None,
            births=self._births.get((piece.topic_id, piece.partition)),
        )  # fmt: skip

    def _after(self, key: ExportKey, before: Progress, ranges: list[OffsetRange]) -> Progress:
        return replace(
            before,
            attempt=before.attempt + 1,
            # Never derived from the content: a process that computes the same commit must not take
            # another's for its own.
            commit=new_token(),
            topic_mark=lake.topic_mark(key.topic_id),
            offsets={**before.offsets, **{each.partition: each.end for each in ranges}},
        )


def pause(number: int) -> None:
    """Wait before a commit is tried again."""
    time.sleep(min(1.0, 0.02 * number))
