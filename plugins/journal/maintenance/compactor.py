"""Rewriting sealed segments without what compaction drops. Edge: blocking file calls.

A compacted segment is written under a name of its own (a higher generation), made durable, and put
in place of its originals by one change of the manifest. A crash before that leaves a stray file; a
reader that has an original open goes on with it, the next one finds the new one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace

from lakemq.broker_core.api.errors import CorruptBatch
from lakemq.broker_core.api.records.batch import BatchHeader, read_header
from lakemq.broker_core.api.records.stored import open_stored
from lakemq.broker_core.api.types import TopicConfig
from lakemq.plugins.journal.log.folder import LogFolder
from lakemq.plugins.journal.maintenance.compaction import (
    KeepRule,
    LatestOffsets,
    compacted_batch,
    groups,
    is_due,
)
from lakemq.plugins.journal.segment.files import NEW_SUFFIX, FileHandle
from lakemq.plugins.journal.segment.index import SparseIndex
from lakemq.plugins.journal.segment.manifest import SegmentInfo
from lakemq.plugins.journal.segment.walk import BadBatch, walk

_log = logging.getLogger(__name__)
_WRITE_BYTES = 1024 * 1024


@dataclass(frozen=True)
class CompactionLimits:
    """Memory and work that one run of compaction may take."""

    keys_max: int
    dirty_ratio_min: float
    lag_max_ms: int


class Compactor:
    """Compacts one partition."""

    def __init__(
        self,
        folder: LogFolder,
        config: TopicConfig,
        limits: CompactionLimits,
        now_ms: int,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._folder = folder
        self._config = config
        self._limits = limits
        self._now_ms = now_ms
        self._place = (folder.manifest.topic, folder.manifest.partition)
        self._stopping = stopping

    def run(self, offset_end: int) -> int:
        """Compact the sealed segments below `offset_end` if that is due; returns bytes freed.

        OSError, StorageFenced: the log is as it was, or compacted; strays go at the next start.
        """
        sealed = [
            segment
            for segment in self._folder.manifest.segments
            if segment.sealed and segment.local and segment.next_offset <= offset_end
        ]
        limits = self._limits
        if not is_due(
            sealed, self._now_ms,
            dirty_ratio_min=limits.dirty_ratio_min, lag_max_ms=limits.lag_max_ms,
        ):  # fmt: skip
            return 0
        before = self._folder.size_bytes()
        try:
            self._compact(sealed)
        except (BadBatch, CorruptBatch) as error:
            _log.error("%s is not compacted: %s", self._folder.path, error)
            return 0
        return before - self._folder.size_bytes()

    def _compact(self, sealed: Sequence[SegmentInfo]) -> None:
        latest = LatestOffsets(self._limits.keys_max)
        taken = self._latest_offsets(sealed, latest)
        if not taken:
            return
        rule = KeepRule(
            latest,
            last_offset=self._last_record(taken),
            tombstones_before_ms=self._now_ms - self._config.tombstone_retention_ms,
        )
        for group in groups(taken, self._config.segment_max_bytes):
            if self._stopping():
                return
            self._rewrite(group, rule)

    def _latest_offsets(
        self, sealed: Sequence[SegmentInfo], latest: LatestOffsets
    ) -> Sequence[SegmentInfo]:
        """Take the keys of what is not compacted yet; returns the segments that were dealt with:
        all, or as many as there was room for the keys of."""
        for at, segment in enumerate(sealed):
            if segment.compacted:
                continue
            for _, data in self._batches(segment):
                batch = open_stored(data, *self._place)
                if batch is not None and not latest.take(batch):
                    # What was taken of this segment stays right: it only drops older records.
                    return self._prefix(sealed, at)
                if self._stopping():
                    return ()
        return sealed

    def _prefix(self, sealed: Sequence[SegmentInfo], count: int) -> Sequence[SegmentInfo]:
        if all(segment.compacted for segment in sealed[:count]):
            _log.warning(
                "%s: %s has more than %d keys and cannot be compacted; raise "
                "plugins.journal.compaction_keys_max",
                self._folder.path, sealed[count].log_name, self._limits.keys_max,
            )  # fmt: skip
            return ()
        return sealed[:count]

    def _batches(self, segment: SegmentInfo) -> Iterator[tuple[BatchHeader, bytes]]:
        if not segment.size_bytes:
            return
        path = self._folder.path / segment.log_name
        with closing(self._folder.files.open(path)) as handle:
            for batch in walk(handle.read_at, 0, segment.size_bytes):
                yield batch.header, batch.data

    def _last_record(self, segments: Sequence[SegmentInfo]) -> int:
        last = -1
        for segment in reversed(segments):
            for header, _ in self._batches(segment):
                last = header.last_offset
            if last >= 0:
                break
        return last

    def _rewrite(self, group: Sequence[SegmentInfo], rule: KeepRule) -> None:
        first, last = group[0], group[-1]
        generation = max(segment.generation for segment in group) + 1
        # Without a remote place: the object holds the records of before, and becomes garbage.
        merged = replace(
            first, generation=generation, next_offset=last.next_offset, compacted=True,
            created_ms=min(segment.created_ms for segment in group),
            sealed_ms=max(segment.sealed_ms for segment in group), remote=None,
        )  # fmt: skip
        folder = self._folder
        stray = folder.path / (merged.log_name + NEW_SUFFIX)
        index = SparseIndex(first.base_offset, generation, folder.active_index.interval_bytes)
        try:
            with closing(folder.files.create(stray)) as handle:
                self._copy(group, rule, handle, index)
                handle.sync()
            if len(group) == 1 and index.covered_bytes == first.size_bytes:
                folder.files.remove(stray)  # Nothing went: the original stays, and is done.
                self._mark_compacted(first)
                return
            newest_ms = max(segment.max_timestamp_ms for segment in group)
            merged = replace(merged, size_bytes=index.covered_bytes, max_timestamp_ms=newest_ms)
            folder.put_in_place(group, merged, stray, index)
        except OSError:
            with suppress(OSError):
                folder.files.remove(stray)
            raise

    def _mark_compacted(self, segment: SegmentInfo) -> None:
        folder = self._folder
        with folder.changing:
            segments = folder.manifest.segments
            if segment in segments:
                done = replace(segment, compacted=True)
                folder.commit(
                    folder.manifest.with_segments(
                        *(done if each == segment else each for each in segments)
                    )
                )

    def _copy(
        self,
        group: Sequence[SegmentInfo],
        rule: KeepRule,
        handle: FileHandle,
        index: SparseIndex,
    ) -> None:
        buffered: list[bytes] = []
        position = size = 0
        for segment in group:
            for _, data in self._batches(segment):
                kept = compacted_batch(data, rule, tombstones_go=segment.compacted)
                if not kept:
                    continue
                index.add(read_header(kept))
                buffered.append(kept)
                size += len(kept)
                if size >= _WRITE_BYTES:
                    handle.write_at(position, buffered)
                    position, size, buffered = position + size, 0, []
        handle.write_at(position, buffered)
