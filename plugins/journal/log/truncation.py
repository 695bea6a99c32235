"""Cutting a partition's log, as a follower does at its leader's word. Blocking; no flush runs.

The order is crash-safe: (1) a checkpoint at the cut, durable; (2) the manifest with the segment of
the cut as the active one; (3) the files behind it removed; (4) the rest of the segment cut off and
fsynced. A crash in between leaves a log that ends at the cut or behind it, and the leader has it
cut once more. Only after (4) may anything be appended: bytes behind a cut that was not fsynced
would be read back after a second crash (apache/rocketmq issue 10666).
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import pairwise

from lakemq.broker_core.api.errors import CorruptLog, StorageFenced, Unavailable
from lakemq.broker_core.api.records.batch import BatchHeader
from lakemq.plugins.journal.log.folder import LogFolder
from lakemq.plugins.journal.log.writer import LogWriter
from lakemq.plugins.journal.segment.epochs import EpochTable
from lakemq.plugins.journal.segment.index import SparseIndex
from lakemq.plugins.journal.segment.manifest import CHECKPOINT_NAME, Manifest, SegmentInfo
from lakemq.plugins.journal.segment.producers import ProducerTable
from lakemq.plugins.journal.segment.walk import BadBatch, walk, walk_headers

_log = logging.getLogger(__name__)


def truncate(writer: LogWriter, offset: int, high_watermark: int) -> None:
    """Cut all from `offset` on, an empty segment too; a batch that reaches over `offset` goes as a
    whole.

    Raises ValueError where nothing may be cut, Unavailable (nothing is cut; try again), CorruptLog,
    StorageFenced.
    """
    folder = writer.folder
    writer.close()
    # Throughout: a checkpoint must not name a segment that compaction replaces before the manifest
    # makes it the active one.
    with folder.changing:
        segments = folder.manifest.segments
        at = segment_of_cut(folder.manifest, offset)
        index = _index_at(folder, segments[at], offset, high_watermark)
        sealed_end = folder.records_end(at)
        epochs = writer.epochs.copy()
        epochs.truncate(index.next_offset if index.covered_bytes else sealed_end)
        producers = _producers_at(writer, segments[: at + 1], index)
        _replace_checkpoint(writer, index, producers, epochs)
        _make_active(writer, at, index, sealed_end)
    for each in segments[at + 1 :]:
        _drop(folder, each)
    _cut_file(writer, index)
    writer.restart(producers, epochs)


def restart_at(writer: LogWriter, offset: int, now_ms: int) -> None:
    """Drop every record: the log starts and ends at `offset`. Copies of sealed segments in an
    object store are left there: the leader may have them too. Raises as `truncate` does."""
    folder = writer.folder
    writer.close()
    try:
        with folder.changing:
            before = [s.generation for s in folder.manifest.segments if s.base_offset == offset]
            fresh = SegmentInfo(offset, max(before, default=-1) + 1, now_ms)
            folder.files.create(folder.path / fresh.log_name).close()
            # Gone before the manifest is replaced: beside the new one it would give this log the
            # producers of records that it no longer has.
            _remove_checkpoint(folder)
            gone = folder.manifest.segments
            folder.commit(
                replace(folder.manifest, log_start_offset=offset, segments=(fresh,), epochs=())
            )
            folder.active_index = SparseIndex(
                offset, fresh.generation, folder.active_index.interval_bytes
            )
    except StorageFenced as error:
        raise writer.fenced(str(error)) from None
    except OSError as error:
        raise Unavailable(f"{folder.path} does not start at {offset} yet: {error}") from None
    for segment in gone:
        _drop(folder, segment)
    writer.restart(ProducerTable(), EpochTable())
    writer.checkpoint()


def segment_of_cut(manifest: Manifest, offset: int) -> int:
    """Which segment is the active one behind a cut: the one with the last offset below it.

    ValueError where its bytes may not change, for compaction has rewritten them, or they are
    elsewhere."""
    segments = manifest.segments
    if offset < manifest.log_start_offset:
        raise ValueError(f"offset {offset} is below the log's start {manifest.log_start_offset}")
    bases = [segment.base_offset for segment in segments]
    at = max(0, bisect_left(bases, offset) - 1)
    if _is_plain(segments[at]):
        return at
    # A segment that begins at the cut takes the batches behind it; the one before stays sealed.
    if at + 1 < len(segments) and bases[at + 1] == offset:
        return at + 1
    raise ValueError(f"offset {offset} is in {segments[at].log_name}, which can't be cut")


def _is_plain(segment: SegmentInfo) -> bool:
    return not segment.compacted and segment.local and segment.remote is None


def _index_at(
    folder: LogFolder, segment: SegmentInfo, offset: int, high_watermark: int
) -> SparseIndex:
    """The segment's index up to `offset`. Raises ValueError within a batch that is committed,
    CorruptLog, Unavailable."""
    try:
        with closing(folder.files.open(folder.path / segment.log_name)) as handle:
            whole = folder.index_of(segment, handle.read_at)
            cut = _begin_of(whole, offset)
            for batch in walk(handle.read_at, cut.covered_bytes, folder.covered_bytes(segment)):
                if batch.header.last_offset >= offset:
                    if batch.header.base_offset < high_watermark:
                        raise ValueError(f"offset {offset} is within a batch that is committed")
                    break
                cut.add(batch.header)
    except BadBatch as bad:
        raise CorruptLog(f"{segment.log_name}: {bad}") from None
    except OSError as error:
        raise Unavailable(f"{segment.log_name} is not read now: {error}") from None
    return cut


def _begin_of(index: SparseIndex, offset: int) -> SparseIndex:
    """A copy of an index as it was before the batch of its last entry not behind `offset`."""
    at = max(0, bisect_right(index.offsets, offset) - 1)
    cut = SparseIndex(index.base_offset, index.generation, index.interval_bytes)
    if at and at < len(index.offsets):
        cut.offsets, cut.positions = index.offsets[:at], index.positions[:at]
        cut.times = index.times[:at]
        cut.covered_bytes = index.positions[at]
        cut.next_offset = index.offsets[at]
        cut.max_timestamp_ms = index.times[at]
    return cut


def _producers_at(
    writer: LogWriter, segments: tuple[SegmentInfo, ...], cut: SparseIndex
) -> ProducerTable:
    """Producers as they were at the cut. What a producer had below it is searched backwards, for
    those that have batches above it."""
    producers, offset = writer.producers.copy(), cut.next_offset
    wanted = producers.truncate(offset)
    if not wanted:
        return producers
    try:
        for header in _headers_backwards(writer.folder, segments, cut):
            if header.producer_id in wanted and not producers.note_older(header, offset):
                wanted.discard(header.producer_id)
                if not wanted:
                    break
    except (BadBatch, OSError) as error:
        # They are remembered as far as that: a repetition of an older batch is refused then.
        _log.warning("%s: producers behind a cut: %s", writer.folder.path, error)
    producers.forget_unfound()
    return producers


def _headers_backwards(
    folder: LogFolder, segments: tuple[SegmentInfo, ...], cut: SparseIndex
) -> Iterator[BatchHeader]:
    """Headers of the batches below a cut in the last of `segments`, the newest first."""
    for segment in reversed(segments):
        if not segment.local:
            return
        with closing(folder.files.open(folder.path / segment.log_name)) as handle:
            last = segment.base_offset == cut.base_offset
            index = cut if last else folder.index_of(segment, handle.read_at)
            bounds = [*index.positions, index.covered_bytes]
            for start, end in reversed(list(pairwise(bounds))):
                yield from reversed(list(walk_headers(handle.read_at, start, end)))


def _replace_checkpoint(
    writer: LogWriter, index: SparseIndex, producers: ProducerTable, epochs: EpochTable
) -> None:
    """Durable before a file gets shorter: recovery fences a log that is shorter than its checkpoint
    says. Where none can be written, none is left. Raises Unavailable."""
    try:
        writer.write_checkpoint(index, producers, epochs)
    except OSError as error:
        _log.warning("%s: no checkpoint at a cut: %s", writer.folder.path, error)
        try:
            _remove_checkpoint(writer.folder)
        except OSError as second:
            raise Unavailable(f"{writer.folder.path} is not cut yet: {second}") from None


def _remove_checkpoint(folder: LogFolder) -> None:
    folder.files.remove(folder.path / CHECKPOINT_NAME)
    folder.files.sync_folder(folder.path)


def _make_active(writer: LogWriter, at: int, index: SparseIndex, sealed_end: int) -> None:
    """Have the manifest end with its segment number `at`; the records before that end at
    `sealed_end`. Raises Unavailable, StorageFenced."""
    folder, before = writer.folder, writer.folder.manifest
    segment = before.segments[at]
    active = SegmentInfo(
        segment.base_offset, segment.generation, segment.created_ms, gaps=segment.gaps
    )
    epochs = tuple(each for each in before.epochs if each[1] < sealed_end)
    after = replace(before, segments=(*before.segments[:at], active), epochs=epochs)
    try:
        if after != before:
            folder.commit(after)
    except StorageFenced as error:
        raise writer.fenced(str(error)) from None
    except OSError as error:
        raise Unavailable(f"{folder.path} is not cut yet: {error}") from None
    folder.active_index = index
    folder.forget_index(segment)


def _drop(folder: LogFolder, segment: SegmentInfo) -> None:
    """Files that the manifest does not name mean nothing: the next start removes what is left."""
    try:
        folder.drop_files(segment)
    except OSError as error:
        _log.warning("%s: %s is still there: %s", folder.path, segment.log_name, error)


def _cut_file(writer: LogWriter, index: SparseIndex) -> None:
    """Raises StorageFenced: the manifest has changed, so there is no way back."""
    folder = writer.folder
    name = folder.manifest.segments[-1].log_name
    try:
        with closing(folder.files.open(folder.path / name, writable=True)) as handle:
            handle.truncate(index.covered_bytes)
            handle.sync()
    except OSError as error:
        raise writer.fenced(f"cutting {name} at {index.covered_bytes} failed: {error}") from None
